"""`holdfast hold`, `unhold` and `reschedule`; what `why` advises does it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from holdfast.cli.runtime import BAD_INPUT, REFUSED
from holdfast.ports.store import Store
from holdfast.testing.store_actions import running_job, submit_one
from tests.cli.commands import answered, on, run


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A store with a job that waits and one that runs."""
    place = str(tmp_path / "jobs.db")

    async def some(store: Store) -> None:
        await submit_one(store, job_id="waits")
        await running_job(store, job_id="runs")

    on(place, some)
    return place


def test_a_held_job_shows_how_to_free_it_and_that_frees_it(place: str) -> None:
    held = run(place, "hold", "waits", "--reason", "look at it first")
    assert held.stdout == "job waits (queued) is held by operator\n"
    assert run(place, "hold", "waits", "--name", "audit").exit_code == 0
    why = answered(place, "why", "waits")
    assert why["reason"]["code"] == "held"
    commands = why["advice"].split("; ")
    freed = [run(place, *shlex.split(command)[1:]).stdout for command in commands]
    assert freed[-1] == "job waits (queued) is free\n"
    assert answered(place, "show", "waits")["job"]["held_by"] == []


def test_a_job_is_rescheduled_to_later_and_to_now(place: str) -> None:
    later = answered(place, "reschedule", "waits", "--at", "2100-01-01T00:00")
    assert later["run_at"] == "2100-01-01T00:00:00Z"
    why = answered(place, "why", "waits")
    assert why["reason"]["code"] == "not_due"
    command = shlex.split(why["advice"].partition(": ")[2])
    assert run(place, *command[1:]).exit_code == 0
    assert answered(place, "why", "waits")["reason"]["code"] == "no_worker"


def test_what_cannot_be_done_is_refused(place: str) -> None:
    assert run(place, "hold", "runs").exit_code == REFUSED
    assert run(place, "reschedule", "runs", "--in", "5m").exit_code == REFUSED
    for words in ((), ("--in", "5m", "--at", "2100-01-01"), ("--in", "soon"), ("--at", "noon")):
        refused = run(place, "reschedule", "waits", *words)
        assert (refused.exit_code, refused.stderr[:14]) == (BAD_INPUT, "error bad_data")
