"""How far a job is, as `holdfast show` and `holdfast watch` show it; and what it waits for."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast.cli.progress import ProgressReader, progress_text, read_measure
from holdfast.cli.watch import jobs_table
from holdfast.durations import instant
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import SLEEP, Job
from holdfast.lifecycle.signals import any_of
from holdfast.operations.request import Operations
from holdfast.operations.requests import GetProgress
from holdfast.operations.views import ProgressView
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do, running_job, stored
from tests.cli.commands import HOSTILE, answered, assert_harmless, on, run
from tests.cli.following import following


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Where a new SQLite file may be."""
    return str(tmp_path / "jobs.db")


async def reporting(store: Store, value: Any, job: Job | None = None) -> Job:
    """A running job whose handler reported how far it is."""
    job = job or await running_job(store, job_id="copies")
    body = json.dumps(value).encode()
    return await do(store, job, c.Progress(actor=owner_of(job), body=body))


async def parked(store: Store, signal: str, value: Any = None) -> Job:
    """A job that reported, and then waits."""
    job = await reporting(store, value)
    return await do(store, job, c.Wait(actor=owner_of(job), signal=signal))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"done": 2, "of": 4}, "█████░░░░░ 50 %  2 of 4"),
        ({"row": 1, "total": 3}, "███░░░░░░░ 33 %  1 of 3"),
        ({"done": 9, "of": 4}, "██████████ 100 %  9 of 4"),
        ({"percent": 25, "message": "a.txt"}, "██░░░░░░░░ 25 %  a.txt"),
        ({"done": 2, "of": 4, "text": "b", "x": [1]}, '█████░░░░░ 50 %  2 of 4, b, {"x": [1]}'),
        (0.5, "█████░░░░░ 50 %"),
        (7, "7"),
        ({"done": 7}, "7"),
        ({"of": 0, "done": 0}, "0 of 0"),
        ("half", '"half"'),
        (None, "null"),
        ({"done": True, "of": 2}, '{"done": true}'),
    ],
)  # fmt: skip
def test_a_report_is_drawn_as_far_as_it_can_be_measured(value: Any, text: str) -> None:
    assert progress_text(ProgressView(value=value, at=instant(0), attempt=1, rev=1)) == text


def test_hostile_reports_are_written_harmless() -> None:
    assert_harmless(read_measure({"message": HOSTILE, "done": 1, "of": 2}).text)


@pytest.mark.parametrize("state", ["running", "waiting"])
def test_show_shows_how_far_a_running_or_parked_job_is_and_since_when(
    place: str, state: str
) -> None:
    report = {"done": 1, "of": 2, "message": "half of it"}
    waits = state == "waiting"
    on(place, lambda store: parked(store, "go", report) if waits else reporting(store, report))
    shown = run(place, "show", "copies").stdout
    [line] = [line for line in shown.splitlines() if line.startswith("progress ")]
    assert "█████░░░░░ 50 %  1 of 2, half of it  (" in line
    assert line.endswith("ago, attempt 1)")
    answer = answered(place, "show", "copies")
    assert answer["job"]["state"] == state
    assert (answer["progress"]["value"], answer["progress"]["attempt"]) == (report, 1)


def test_a_watch_shows_each_report_as_it_comes(place: str) -> None:
    job = on(place, lambda store: reporting(store, {"done": 0, "of": 2}))
    with following("watch", "copies", "--every", "0.1", "--url", place) as followed:
        assert followed.line().endswith("copies  running  attempt 1  ░░░░░░░░░░ 0 %  0 of 2")
        on(place, lambda store: _reports_again(store, job))
        assert followed.line().endswith("copies  running  attempt 1  █████░░░░░ 50 %  1 of 2")
        on(place, lambda store: _ends(store, job))
        assert followed.ended()[0] == 0


async def _reports_again(store: Store, job: Job) -> None:
    await reporting(store, {"done": 1, "of": 2}, await stored(store, job.id))


async def _ends(store: Store, job: Job) -> None:
    current = await stored(store, job.id)
    await do(store, current, c.Complete(actor=owner_of(current)))


def drawn(jobs: list[Job], reports: dict[Any, ProgressView]) -> str:
    """Draw a table without colours."""
    page = io.StringIO()
    Console(file=page, width=120).print(jobs_table(jobs, jobs[0].updated_at, reports))
    return page.getvalue()


def test_the_table_has_a_bar_where_a_job_reported(place: str) -> None:
    job = on(place, running_job)
    report = ProgressView(value={"done": 1, "of": 2}, at=instant(0), attempt=1, rev=4)
    assert "PROGRESS" not in drawn([job], {})
    assert "█████░░░░░ 50 %  1 of 2" in drawn([job], {job.id: report})


class Counting:
    """Counts how often progress is read."""

    def __init__(self) -> None:
        self.reads = 0

    async def do(self, request: GetProgress) -> ProgressView:
        self.reads += 1
        return ProgressView(value=0.5, at=instant(0), attempt=1, rev=4)


def test_a_job_that_has_not_moved_on_is_not_read_again(place: str) -> None:
    on(place, _reads_once)


async def _reads_once(store: Store) -> None:
    job = await running_job(store)
    asked: Any = Counting()
    operations: Operations = asked
    reports = ProgressReader()
    for _ in range(3):
        assert list(await reports.read(operations, [job])) == [job.id]
    assert asked.reads == 1
    job = await do(store, job, c.Heartbeat(actor=owner_of(job)))
    await reports.read(operations, [job])
    assert asked.reads == 2
    ended = await do(store, job, c.Complete(actor=owner_of(job)))
    assert await reports.read(operations, [ended]) == {}


@pytest.mark.parametrize(
    ("signal", "text", "advice"),
    [
        ("go", "go", "holdfast signal copies go"),
        (any_of(["yes", "no"]), "no or yes", "holdfast signal copies no, or: "
         "holdfast signal copies yes"),
        (SLEEP, "its sleep to end", None),
        ("resolve:charge", "a verdict on step charge", "find out if it took effect, then: "
         "holdfast resolve copies charge --happened or --not-happened"),
    ],
)  # fmt: skip
def test_a_parked_job_shows_what_it_waits_for_and_how_to_wake_it(
    place: str, signal: str, text: str, advice: str | None
) -> None:
    on(place, lambda store: parked(store, signal))
    shown = run(place, "show", "copies").stdout
    assert f"waits for      {text}\n" in shown
    assert f"for {text}" in shown.splitlines()[-1]
    assert answered(place, "why", "copies")["advice"] == advice
    assert "holdfast:" not in run(place, "why", "copies").stdout
