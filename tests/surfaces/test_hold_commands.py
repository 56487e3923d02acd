"""`holdfast hold`, `unhold` and `reschedule`; and that `why` names commands that exist."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.cli.main import app
from holdfast.cli.running import BAD_INPUT, REFUSED
from holdfast.flow import reasons as r
from holdfast.lifecycle.states import Cancel, Letter, State
from holdfast.ports import Store
from holdfast.testing.acts import running_job, submit_one
from tests.surfaces.commands import answered, on, run


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A store with a job that waits and one that runs."""
    place = str(tmp_path / "jobs.db")

    async def some(store: Store) -> None:
        await submit_one(store, job_id="waits")
        await running_job(store, job_id="runs")

    on(place, some)
    return place


def test_a_held_job_says_how_to_free_it_and_that_frees_it(place: str) -> None:
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
    assert later["run_at"] == 4102444800000000
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


SAID = r.Said(by="ann", at=1)
ENDED: dict[str, Any] = {
    "state": State.DEAD_LETTERED, "at": 1, "ended": SAID, "cancelled": None, "rule": None,
    "error": None, "attempts": 1, "stage": None, "kill": None, "last_owner": None,
    "settled": None, "redriven_as": None,
}  # fmt: skip
CHILD = r.Child(job_id="c", task="t", state=State.QUEUED)
FAILURE = r.Failure(error_code="x", error=None, cause=None, attempt=1, at=1, by="w")
REASONS: list[r.Reason] = [
    r.Ended(**ENDED, error_code="x", letter=Letter.OPEN),
    r.Held(holds=(r.Hold(name="audit"), r.Hold(name="two words"))),
    r.QueuePaused(queue="mail", paused=SAID),
    r.NotDue(until=2, set=None),
    r.Backoff(until=2, failure=FAILURE, failures=1, max_attempts=4),
    r.NoWorker(queue="mail", last_seen=()),
    r.NoCapableWorker(queue="q", needs=("gpu",), missing=("gpu",), closest="w", workers=1),
    r.CancelRequested(mode=Cancel.SOFT, asked=None, worker="w"),
    r.Overdue(what="lease", since=None, not_before=None, worker=None, seen=None),
    r.Waiting(signal="go", since=None, until=None),
    r.Waiting(signal="resolve:charge", since=None, until=None),
    r.StepsDiffer(parked=None, until=None),
    r.WaitsForChildren(live=1, more=False, children=(CHILD,), since=None),
]


def commands_in(text: str) -> list[list[str]]:
    """Find the commands in a sentence."""
    return [shlex.split(part) for part in text.split("holdfast ")[1:]]


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.code)
def test_every_command_that_why_advises_exists_with_its_options(reason: r.Reason) -> None:
    advice = reason.advise("job-7")
    assert advice is not None
    found = commands_in(advice)
    assert found
    for words in found:
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0).rstrip(";")]
        known = {one for each in command.params for one in (*each.opts, *each.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= known
