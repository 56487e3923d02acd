"""The page on tasks names everything that can be said of one."""

from __future__ import annotations

import pytest

from holdfast.options import JobOptions, TaskOptions
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "tasks.md").read_text("utf-8")


@pytest.mark.parametrize("options", [TaskOptions, JobOptions])
def test_every_option_is_on_the_page(options: type) -> None:
    missing = [name for name in options.__annotations__ if f"`{name}`" not in PAGE]
    assert [name for name in missing if f"`{name}=" not in PAGE] == []
