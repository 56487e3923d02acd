"""What every page of the tutorial has at hand: an app, and the kit that runs its jobs.

`holdfast_app` and `holdfast_kit` come with Holdfast itself; your own tests have them too.
"""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.testing import Kit


@pytest.fixture
def app(holdfast_app: Holdfast) -> Holdfast:
    """An app; yours would be imported."""
    return holdfast_app


@pytest.fixture
def kit(holdfast_kit: Kit) -> Kit:
    """Runs jobs when the test says so, on a database in memory, by a clock that it moves."""
    return holdfast_kit
