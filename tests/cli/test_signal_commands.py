"""`holdfast signal` and `resolve`, as a person and as a script use them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS, REFUSED
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.states import EventType, State
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do, job_in, running_job, stored
from tests.cli.commands import HOSTILE, answered, assert_harmless, on, run


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Where a new SQLite file may be."""
    return str(tmp_path / "jobs.db")


def parked(place: str, signal: str, **fields: str) -> Job:
    """Have a job that waits for a signal."""

    async def work(store: Store) -> Job:
        job = await running_job(store, **fields)
        return await do(store, job, c.Wait(actor=owner_of(job), signal=signal))

    return on(place, work)


def now(place: str, job: Job) -> Job:
    return on(place, lambda store: stored(store, job.id))


def sent(place: str, job: Job) -> LoggedEvent:
    """Read the signal that was sent last."""

    async def work(store: Store) -> LoggedEvent:
        [event] = await store.latest_events(job.id, [EventType.SIGNAL_RECEIVED], limit=1)
        return event

    return on(place, work)


@pytest.mark.req("E5")
def test_a_signal_wakes_the_job_that_waits_for_it(place: str) -> None:
    job = parked(place, "approved")
    outcome = run(place, "signal", str(job.id), "approved", "--payload", '{"by": "ann"}')
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout == f"signal approved sent; job {job.id} continues\n"
    assert (now(place, job).state, now(place, job).signals) == (State.QUEUED, ())
    event = sent(place, job)
    assert decode_body(event.body) == {"by": "ann"}
    assert event.actor.startswith("control:")


@pytest.mark.req("E5")
def test_a_signal_that_nobody_waits_for_is_kept(place: str) -> None:
    job = on(place, running_job)
    outcome = run(place, "signal", str(job.id), "approved")
    assert outcome.stdout == (
        f"signal approved sent; kept until job {job.id} (running) waits for it (1 kept)\n"
    )
    answer = answered(place, "signal", str(job.id), "approved", "--request-id", "r")
    assert (answer["id"], answer["internal_id"]) == (job.public_id, str(job.id))
    assert (answer["state"], answer["signal"], answer["kept"]) == ("running", "approved", 2)
    answered(place, "signal", str(job.id), "approved", "--request-id", "r")
    assert [one.name for one in now(place, job).signals] == ["approved"] * 2


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("signal", "JOB", "go", "--payload", "{"), BAD_INPUT),
        (("signal", "JOB", "go", "--payload", '{"a":1,"a":2}'), BAD_INPUT),
        (("signal", "JOB", "holdfast:sleep"), BAD_INPUT),
        (("signal", "JOB", ""), BAD_INPUT),
        (("signal", "nobody", "go"), FOUND_PROBLEMS),
        (("resolve", "JOB", "charge"), BAD_INPUT),
        (("resolve", "JOB", "charge", "--not-happened", "--result", "1"), BAD_INPUT),
        (("resolve", "JOB", "charge", "--happened", "--result", "nonsense"), BAD_INPUT),
        (("resolve", "nobody", "charge", "--happened"), FOUND_PROBLEMS),
        (("resolve", "JOB", "charge", "--happened"), REFUSED),
    ],
)
def test_a_bad_line_is_refused_and_nothing_is_sent(
    place: str, words: tuple[str, ...], code: int
) -> None:
    job = parked(place, "go", job_id="JOB")
    outcome = run(place, *words)
    assert outcome.exit_code == code, outcome.output
    assert outcome.stderr
    assert now(place, job).rev == job.rev


def test_a_job_that_has_ended_takes_no_signal(place: str) -> None:
    job = on(place, lambda store: job_in(store, State.SUCCEEDED))
    assert run(place, "signal", str(job.id), "go").exit_code == REFUSED
    assert run(place, "resolve", str(job.id), "charge", "--happened").exit_code == REFUSED


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("--happened", "--result", '{"receipt": 7}'),
            {"happened": True, "result": {"receipt": 7}},
        ),
        (("--happened",), {"happened": True, "result": None}),
        (("--not-happened",), {"happened": False}),
    ],
)
def test_a_step_is_resolved_for_the_job_that_asks(
    place: str, words: tuple[str, ...], text: object
) -> None:
    job = parked(place, "resolve:charge")
    outcome = run(place, "resolve", str(job.id), "charge", *words)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout == f"step charge resolved; job {job.id} continues\n"
    assert now(place, job).state is State.QUEUED
    assert decode_body(sent(place, job).body) == text


def test_a_step_is_resolved_once(place: str) -> None:
    job = parked(place, "resolve:charge")
    assert run(place, "resolve", str(job.id), "charge", "--happened").exit_code == 0
    again = run(place, "resolve", str(job.id), "charge", "--not-happened")
    assert again.exit_code == REFUSED
    assert "not_waiting" in again.stderr
    assert now(place, job).signals == ()


def test_another_step_than_it_asks_about_is_refused_unless_forced(place: str) -> None:
    job = parked(place, "resolve:ship")
    outcome = run(place, "resolve", str(job.id), "charge", "--happened")
    assert outcome.exit_code == REFUSED
    assert "does not ask about step 'charge': it asks about step 'ship'" in outcome.stderr
    answer = answered(place, "resolve", str(job.id), "charge", "--happened", "--force")
    assert (answer["state"], answer["kept"]) == ("waiting", 1)


def test_hostile_names_reach_no_terminal(place: str) -> None:
    job = parked(place, f"resolve:{HOSTILE}")
    outcome = run(place, "resolve", str(job.id), "charge", "--happened")
    assert outcome.exit_code == REFUSED
    outcome = run(place, "signal", str(job.id), HOSTILE)
    assert_harmless(outcome.stdout)
