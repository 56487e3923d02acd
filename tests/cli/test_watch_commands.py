"""`holdfast watch`: jobs as they change, line by line, for a script, and as a live table."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from holdfast.cli.progress import ProgressReader
from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS
from holdfast.cli.watch import Snapshot, jobs_table, next_snapshot, take_snapshot
from holdfast.errors import StoreUnavailable
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import State
from holdfast.operations.request import Operations
from holdfast.operations.requests import GetClock, ListJobs, ListQueues, ListWorkers
from holdfast.operations.views import ClockView, Depth, Queues, Roll
from holdfast.ports.models import Page
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do, job_in, running_job, stored, submit_one
from tests.cli.commands import HOSTILE, assert_harmless, dead, on, run
from tests.cli.following import following
from tests.cli.test_serving import running


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Where a new SQLite file may be."""
    return str(tmp_path / "jobs.db")


async def _ends(store: Store, job: Job) -> None:
    current = await stored(store, job.id)
    await do(store, current, c.Complete(actor=owner_of(current)))


def test_jobs_that_ended_well_end_a_watch_well(place: str) -> None:
    on(place, lambda store: job_in(store, State.SUCCEEDED, job_id="done"))
    on(place, lambda store: dead(store, job_id="died"))
    well = run(place, "watch", "done")
    assert (well.exit_code, "done  succeeded  attempt 1" in well.stdout) == (0, True)

    badly = run(place, "watch", "done", "died")
    assert badly.exit_code == FOUND_PROBLEMS
    assert "died  dead_lettered  attempt 1  timeout, letter open" in badly.stdout


@pytest.mark.parametrize("way", ["store", "server"])
def test_a_job_is_watched_until_it_has_ended(place: str, way: str, tmp_path: Path) -> None:
    job = on(place, lambda store: running_job(store, job_id="runs"))
    if way == "store":
        _watch_to_the_end(place, place, job)
        return
    with running(tmp_path, "serve", "--url", place) as served:
        _watch_to_the_end(str(served.http.base_url), place, job)


def _watch_to_the_end(url: str, place: str, job: Job) -> None:
    with following("watch", "runs", "--every", "0.1", "--json", "--url", url) as followed:
        assert json.loads(followed.line())["state"] == "running"
        on(place, lambda store: _ends(store, job))
        code, rest = followed.ended()
    assert (code, [json.loads(line)["state"] for line in rest.splitlines()]) == (0, ["succeeded"])


def test_all_jobs_are_watched_until_ctrl_c(place: str) -> None:
    on(place, lambda store: job_in(store, State.SUCCEEDED, job_id="done"))
    on(place, lambda store: submit_one(store, job_id="waits", queue="other"))
    words = ("--every", "0.1", "--live", "--queue", "other", "--url", place)
    with following("watch", *words) as followed:
        assert followed.line().endswith("waits  queued  attempt 0")
        on(place, lambda store: submit_one(store, job_id="new", queue="other"))
        assert followed.line().endswith("new  queued  attempt 0")
        followed.interrupt()
        assert followed.ended() == (130, "")


def test_a_bad_watch_is_refused(place: str) -> None:
    on(place, submit_one)
    assert run(place, "watch", "--state", "lost").exit_code == BAD_INPUT
    assert run(place, "watch", "nobody").exit_code == FOUND_PROBLEMS


async def test_a_watch_outlives_a_store_that_is_away_for_a_while() -> None:
    async def away() -> Snapshot:
        raise StoreUnavailable("gone for now")

    last = Snapshot(now=1, jobs=[])
    again = await next_snapshot(away, last)
    assert (again.trouble, again.now) == ("gone for now", 1)


class OfOneTenant:
    """What a token of one tenant may ask of a server that has no job."""

    async def do(self, request: object) -> object:
        post = Depth(queue="post", jobs={State.QUEUED: 2})
        answers: dict[type, object] = {
            GetClock: ClockView(now=7),
            ListQueues: Queues(queues=[post, Depth(queue="other", jobs={})]),
            ListJobs: Page([], None),
            ListWorkers: Roll(now=7, workers=[]),
        }
        return answers[type(request)]


async def test_a_look_counts_the_jobs_of_the_queue_and_the_live_workers() -> None:
    operations, query = cast(Operations, OfOneTenant()), ListJobs(queue="post")
    snapshot = await take_snapshot(operations, (), query, ProgressReader())
    assert snapshot == Snapshot(now=7, jobs=[], counts={State.QUEUED: 2}, workers=0)


def _screen(place: str, *words: str) -> tuple[int, str]:
    """Run a command on a terminal; return its exit code, and all that came to the screen."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "120", "LINES": "30", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", *words, "--url", place],
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other side hung up
            break
        if not part:
            break
        seen += part
    os.close(ours)
    return process.wait(60), seen.decode()


def test_before_a_terminal_a_table_is_drawn(place: str) -> None:
    on(place, lambda store: job_in(store, State.SUCCEEDED, job_id="done", task="mail"))
    code, seen = _screen(place, "watch", "done")
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen)
    assert re.search(r"JOB +TASK +STATE +FOR +ATTEMPT +WORKER +NOTE", plain)
    assert re.search(r"done +mail +succeeded +\d+s +1", plain)


def drawn(jobs: list[Job], width: int) -> str:
    """Draw a table without colours."""
    page = io.StringIO()
    Console(file=page, width=width).print(jobs_table(jobs, jobs[0].updated_at + 5_000_000))
    return page.getvalue()


def test_a_narrow_table_keeps_the_states_whole(place: str) -> None:
    long: dict[str, Any] = {"job_id": "j" * 60, "task": "t" * 60}
    jobs = [on(place, lambda store: dead(store, **long)) for _ in "1"]
    narrow = drawn(jobs, 70)
    assert re.search(r"j+… +t+… +dead_lettered +5s +1", narrow)
    assert max(map(len, narrow.splitlines())) <= 70


def test_hostile_names_are_drawn_harmless(place: str) -> None:
    names = dict.fromkeys(("task", "job_id"), HOSTILE)
    job = on(place, lambda store: running_job(store, owner=HOSTILE, **names))
    assert _obeyed(drawn([job], 400)) == []
    on(place, lambda store: _fails(store, job))
    assert _obeyed(run(place, "watch", HOSTILE).output) == []
    assert_harmless(run(place, "watch", HOSTILE, "--json").output)


def _obeyed(text: str) -> list[str]:
    """What a terminal would obey; names are cut here, so that not all of them is there."""
    assert "owned" in text
    return [one for one in text if not one.isprintable() and one != "\n"]


async def _fails(store: Store, job: Job) -> None:
    await do(store, job, c.Fail(actor=owner_of(job), error_code=HOSTILE))
