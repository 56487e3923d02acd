"""why and workers, as a person and as a script use them; whatever a name holds is harmless."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.main import app
from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS, STORE_FAILED
from holdfast.durations import micros
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import State
from holdfast.lifecycle.times import After
from holdfast.ports.models import WORKER_SILENCE
from holdfast.ports.store import Store
from holdfast.stores.sqlite.clock import wall_clock
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import CONTROL, HOUR, announcement, owner_of
from holdfast.testing.store_actions import do, job_in, running_job, submit_one
from holdfast.wiring import opened, read_address

HOSTILE = "evil\x1b[2J\x1b]0;owned\x07\r\n\u202egnp[bold red]x[/]\x9b31m:smile:"


def run(*words: str) -> Result:
    """Call the command."""
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "80"})


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Where the store is."""
    return str(tmp_path / "jobs.db")


def given(place: str, arrange: Callable[[Store], Awaitable[Any]]) -> Any:
    """Arrange something in the store, and close it."""

    async def work() -> Any:
        async with opened(read_address(place)) as store:
            return await arrange(store)

    return asyncio.run(work())


def assert_harmless(text: str) -> None:
    """Nothing but printable text and line ends reaches the terminal."""
    assert [one for one in text if one != "\n" and not one.isprintable()] == []


def test_a_person_reads_why_in_sentences(place: str) -> None:
    async def arrange(store: Store) -> Job:
        job = await running_job(store, job_id="report-7", queue="mail")
        retry = c.Retry(actor=owner_of(job), error_code="smtp", body=b'"refused"', retry_in=HOUR)
        job = await do(store, job, retry)
        await store.pause("mail", actor="ann", reason="full disk")
        return job

    given(place, arrange)
    outcome = run("why", "report-7", "--url", place)

    assert outcome.exit_code == 0, outcome.output
    lines = outcome.stdout.splitlines()
    assert lines[:4] == [
        "job            report-7",
        "task           greet",
        "queue          mail",
        "state          retrying, attempt 1",
    ]
    assert lines[4].startswith("why            [queue_paused] queue 'mail' was paused ")
    assert lines[4].endswith("by ann: full disk")
    assert lines[5] == "to do          holdfast queues resume mail"
    assert lines[6].startswith("also           [backoff] backs off until ")
    assert lines[7].startswith("also           [no_worker] no live worker serves queue 'mail'")
    assert lines[8].startswith("last failure   smtp in attempt 1 by worker-1: refused, ")


def test_a_script_reads_why_in_json(place: str) -> None:
    job = given(place, lambda store: submit_one(store, run_at=After(HOUR)))
    outcome = run("why", str(job.id), "--url", place, "--json")
    answer = json.loads(outcome.stdout)

    assert outcome.exit_code == 0
    assert (answer["id"], answer["internal_id"]) == (str(job.id), str(job.id))
    assert (answer["state"], answer["tenant"], answer["attempt"]) == ("queued", "default", 0)
    assert answer["reason"]["code"] == "not_due"
    assert job.run_at is not None
    assert micros(datetime.fromisoformat(answer["reason"]["until"])) == job.run_at
    assert [one["code"] for one in answer["also"]] == ["no_worker"]
    assert answer["text"].startswith("not due until ")


def test_a_job_is_looked_for_in_its_tenant(place: str) -> None:
    given(place, lambda store: submit_one(store, tenant="acme", job_id="a-1"))

    assert run("why", "a-1", "--url", place, "--tenant", "acme").exit_code == 0
    outcome = run("why", "a-1", "--url", place)
    assert outcome.exit_code == FOUND_PROBLEMS
    assert "no_such_job" in outcome.output


def test_an_ended_job_is_an_answer_too(place: str) -> None:
    job = given(place, lambda store: job_in(store, State.DEAD_LETTERED))
    outcome = run("why", str(job.id), "--url", place)

    assert outcome.exit_code == 0
    assert "[ended] dead_lettered" in outcome.stdout


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 1001])
def test_what_cannot_be_a_jobs_name_is_bad_input(place: str, name: str) -> None:
    given(place, submit_one)

    assert run("why", name, "--url", place).exit_code == BAD_INPUT


@pytest.mark.parametrize("command", [("why", "x"), ("workers",)])
def test_a_store_that_is_not_there_is_reported(tmp_path: Path, command: tuple[str, ...]) -> None:
    outcome = run(*command, "--url", str(tmp_path / "jbos.db"))

    assert outcome.exit_code == STORE_FAILED
    assert "no_such_store" in outcome.output
    assert list(tmp_path.iterdir()) == []


def test_no_name_of_a_job_or_worker_reaches_the_terminal_as_it_is(place: str) -> None:
    async def arrange(store: Store) -> None:
        worker = announcement(
            name=HOSTILE, host=HOSTILE, queues=(HOSTILE,), capabilities=frozenset({HOSTILE})
        )
        await store.announce(worker)
        fields = {"job_id": HOSTILE, "queue": HOSTILE, "tenant": HOSTILE}
        job = await running_job(store, owner=HOSTILE, **fields)
        job = await do(store, job, c.RequestCancel(actor=CONTROL, reason=HOSTILE))
        failed = await running_job(store, owner=HOSTILE, task=HOSTILE, job_id="f")
        retry = c.Retry(
            actor=owner_of(failed),
            error_code=HOSTILE,
            body=json.dumps({"type": HOSTILE, "message": HOSTILE}).encode(),
            retry_in=HOUR,
        )
        failed = await do(store, failed, retry)
        await do(store, failed, c.Hold(actor=CONTROL, hold=HOSTILE, reason=HOSTILE))
        await store.pause(failed.queue, actor=HOSTILE, reason=HOSTILE)

    given(place, arrange)
    for words in (("why", HOSTILE, "--tenant", HOSTILE), ("why", "f"), ("workers",)):
        for json_too in ((), ("--json",)):
            outcome = run(*words, "--url", place, *json_too)
            assert outcome.exit_code == 0, outcome.output
            assert "evil" in outcome.stdout
            assert_harmless(outcome.stdout)
    # Neither taken for markup nor for an emoji.
    assert "[bold red]x[/]" in run("workers", "--url", place).stdout
    assert ":smile:" in run("why", "f", "--url", place).stdout


def test_workers_are_listed_with_what_they_serve(place: str) -> None:
    async def arrange(store: Store) -> None:
        await store.announce(announcement(name="ended"))
        await store.retire("ended")
        await store.announce(
            announcement(
                name="lives", queues=("a", "b"), capabilities=frozenset({"gpu"}), tasks=("x", "y")
            )
        )

    given(place, arrange)
    outcome = run("workers", "--url", place)
    title, first, second = outcome.stdout.splitlines()

    assert outcome.exit_code == 0
    assert title.split()[:3] == ["WORKER", "STATUS", "SEEN"]
    assert first.split()[:2] == ["lives", "live"]
    assert first.split()[-6:] == ["8", "here", "42", "a,b", "gpu", "2"]
    assert second.split()[:2] == ["ended", "ended"]
    answer = json.loads(run("workers", "--url", place, "--json").stdout)
    assert [(one["name"], one["status"]) for one in answer["workers"]] == [
        ("lives", "live"),
        ("ended", "ended"),
    ]
    assert answer["workers"][0]["capabilities"] == ["gpu"]
    assert answer["workers"][0]["seen_at"] <= answer["now"]
    few = json.loads(run("workers", "--url", place, "--json", "--limit", "1").stdout)
    assert [one["name"] for one in few["workers"]] == ["lives"]


def test_workers_not_seen_for_long_are_listed_if_asked_for(place: str) -> None:
    async def announce(ago: int, name: str) -> None:
        store = SqliteStore(place, clock=lambda: wall_clock() - ago)
        await store.open()
        await store.announce(announcement(name=name))
        await store.close()

    asyncio.run(announce(2 * HOUR, "long-ago"))
    assert run("workers", "--url", place).stdout == "no worker was seen in the last hour\n"
    asyncio.run(announce(WORKER_SILENCE, "silent"))

    def listed(*words: str) -> dict[str, str]:
        answer = json.loads(run("workers", "--url", place, "--json", *words).stdout)
        return {one["name"]: one["status"] for one in answer["workers"]}

    assert listed() == {"silent": "silent"}
    assert listed("--all") == {"silent": "silent", "long-ago": "silent"}


def test_a_store_without_workers_is_reported(place: str) -> None:
    given(place, submit_one)

    assert run("workers", "--url", place, "--all").stdout == "no worker was seen\n"
