"""`holdfast logs`: what a handler logged, for a person and for a script, and as it arrives."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.ports.models import LogEntry
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do, running_job, stored
from tests.cli.commands import HOSTILE, answered, assert_harmless, on, run
from tests.cli.following import following
from tests.cli.test_serving import running

AT = 1_700_000_000_123_456


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Where a new SQLite file may be."""
    return str(tmp_path / "jobs.db")


async def logged(store: Store, *lines: tuple[int, int, str], job: Job | None = None) -> Job:
    """Log lines of an attempt, a level and a text for a job."""
    job = job or await running_job(store, job_id="speaks")
    await store.keep_logs(
        [
            LogEntry(id=job.id, attempt=attempt, at=AT, level=level, message=text)
            for attempt, level, text in lines
        ]
    )
    return job


async def _some(store: Store) -> None:
    await logged(store, (1, 20, "started"), (1, 40, "broken\n  at line 7"), (2, 10, "again"))


def test_a_log_is_shown_line_by_line(place: str) -> None:
    on(place, _some)
    outcome = run(place, "logs", "speaks")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.splitlines() == [
        "2023-11-14 22:13:20.123Z 1 INFO    started",
        "2023-11-14 22:13:20.123Z 1 ERROR   broken",
        "      at line 7",
        "2023-11-14 22:13:20.123Z 2 DEBUG   again",
    ]


async def _failing(place: str) -> None:
    async with Holdfast(place) as app:

        @app.task(retries=1, backoff="1ms")
        async def charge() -> None:
            raise OSError("card declined")

        async with app.worker():
            job = await charge.options(job_id="speaks").submit()
            await job.wait("30s")


def test_a_log_has_each_failed_attempt_with_its_traceback(place: str) -> None:
    asyncio.run(_failing(place))
    retried, ended = answered(place, "logs", "speaks")["lines"]
    assert (retried["level_name"], retried["attempt"]) == ("WARNING", 1)
    assert (ended["level_name"], ended["attempt"]) == ("ERROR", 2)
    assert ended["message"].startswith("attempt 2 failed: OSError: card declined; dead-lettered")
    for line in (retried, ended):
        assert "in charge" in line["message"]
    shown = run(place, "logs", "speaks", "--level", "error").stdout
    assert "attempt 2 failed: OSError: card declined" in shown
    assert "attempt 1" not in shown


def messages(place: str, *words: str) -> list[str]:
    """Return what a script reads."""
    return [line["message"] for line in answered(place, "logs", "speaks", *words)["lines"]]


def test_a_log_is_narrowed_by_level_attempt_and_length(place: str) -> None:
    on(place, _some)
    assert messages(place, "--level", "info") == ["started", "broken\n  at line 7"]
    assert messages(place, "--level", "ERROR") == ["broken\n  at line 7"]
    assert messages(place, "--attempt", "2") == ["again"]
    assert messages(place, "--tail", "1") == ["again"]
    assert messages(place, "--tail", "1", "--level", "info") == ["broken\n  at line 7"]


def test_a_script_reads_times_levels_and_attempts(place: str) -> None:
    on(place, _some)
    line = answered(place, "logs", "speaks")["lines"][1]
    assert (line["level"], line["level_name"], line["attempt"]) == (40, "ERROR", 1)
    assert line["at"] == "2023-11-14T22:13:20.123456Z"


def test_no_log_of_a_job_that_is_not_there_or_not_ones_own(place: str) -> None:
    on(place, _some)
    assert run(place, "logs", "nobody").exit_code == FOUND_PROBLEMS
    assert run(place, "logs", "speaks", "--tenant", "acme").exit_code == FOUND_PROBLEMS
    assert run(place, "logs", "speaks", "--level", "loud").exit_code == BAD_INPUT


def test_a_hostile_log_cannot_speak_to_the_terminal(place: str) -> None:
    on(place, lambda store: logged(store, (1, 20, HOSTILE)))
    for words in ([], ["--json"]):
        assert_harmless(run(place, "logs", "speaks", *words).output)


async def _goes_on(store: Store, job: Job) -> None:
    await logged(store, (1, 20, "more"), job=job)


async def _ends(store: Store, job: Job) -> None:
    current = await stored(store, job.id)
    await do(store, current, c.Complete(actor=owner_of(current)))
    await logged(store, (1, 20, "last words"), job=job)


@pytest.mark.parametrize("way", ["store", "server"])
def test_a_log_is_followed_to_the_end_of_its_job(place: str, way: str, tmp_path: Path) -> None:
    job = on(place, lambda store: logged(store, (1, 20, "started"), (1, 10, "not this")))
    if way == "store":
        _follow_to_the_end(place, place, job)
        return
    with running(tmp_path, "serve", "--url", place) as served:
        _follow_to_the_end(str(served.http.base_url), place, job)


def _follow_to_the_end(url: str, place: str, job: Job) -> None:
    words = ("logs", "speaks", "-f", "--level", "info", "--json", "--url", url)
    with following(*words) as followed:
        assert _read(followed.line())["message"] == "started"
        on(place, lambda store: _goes_on(store, job))
        assert _read(followed.line())["message"] == "more"
        on(place, lambda store: _ends(store, job))
        code, rest = followed.ended()
    assert (code, [_read(line)["message"] for line in rest.splitlines()]) == (0, ["last words"])


def _read(line: str) -> Any:
    return json.loads(line)


def test_ctrl_c_ends_a_followed_log_without_a_traceback(place: str) -> None:
    on(place, _some)
    with following("logs", "speaks", "-f", "--tail", "1", "--url", place) as followed:
        assert followed.line().endswith("again")
        followed.interrupt()
        assert followed.ended() == (130, "")
