"""A redrive into a queue that its tenant may not have."""

from __future__ import annotations

import pytest

from holdfast.errors import TooManyNames
from holdfast.flow.redrive import RedriveTerms, redrive
from holdfast.lifecycle.states import Letter
from holdfast.ports.models import Limits
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL
from holdfast.testing.store_actions import stored
from tests.queries.test_dead_letters import dead


async def test_a_redrive_into_one_queue_too_many_is_refused(either_store: Store) -> None:
    await either_store.set_limits(Limits(queues=1))
    job = await dead(either_store)
    with pytest.raises(TooManyNames, match="holdfast limits --queues"):
        await redrive(either_store, job.id, CONTROL, terms=RedriveTerms(queue="another"))
    assert (await stored(either_store, job.id)).letter is Letter.OPEN
