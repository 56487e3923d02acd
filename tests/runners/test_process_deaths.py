"""Poison handlers: whatever they do to their process, the worker learns it and goes on."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from holdfast.errors import HandlerDied
from tests.runners.worlds import World, failure

pytestmark = pytest.mark.asyncio(loop_scope="module")


DEATHS: dict[str, dict[str, Any]] = {
    "exit_hard": {"exit_code": 3},
    "exit_softly": {"exit_code": 4},
    "exit_in_words": {"exit_code": 1},
    "exit_with_threads": {"exit_code": 5},
    "crash": {"signal": "SIGSEGV"},
    "recurse_in_c": {"signal": "SIGSEGV"},
    "be_killed": {"signal": "SIGKILL"},
    "babble": {"signal": "SIGKILL"},
    "babble_at_length": {"signal": "SIGKILL"},
    "hang_up": {"signal": "SIGKILL"},
    "close_everything": {"signal": "SIGKILL"},
}


@pytest.mark.parametrize("how", DEATHS)
async def test_a_handler_that_takes_its_process_along_is_told_and_the_next_one_runs(
    given: World, how: str
) -> None:
    error = await failure(given, "die", how=how)

    assert isinstance(error, HandlerDied)
    assert {name: getattr(error, name) for name in DEATHS[how]} == DEATHS[how]
    assert await given.run("add", a=1, b=2) == 3


@pytest.mark.parametrize("how", ["exit_hard", "exit_softly"])
async def test_an_async_handler_may_end_its_process_too(given: World, how: str) -> None:
    error = await failure(given, "die_async", how=how)
    assert isinstance(error, HandlerDied)
    assert error.exit_code == DEATHS[how]["exit_code"]


@pytest.mark.parametrize("how", ["python", "c"])
async def test_a_copy_of_the_process_does_not_hide_its_death(given: World, how: str) -> None:
    forked, channel = await given.run("fork", how=how)
    try:
        error = await failure(given, "die", how="exit_hard")
        assert isinstance(error, HandlerDied)
        assert error.exit_code == 3
        held = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{forked}/fd")}
        assert (channel in held) == (how == "c")
    finally:
        os.kill(forked, signal.SIGKILL)
