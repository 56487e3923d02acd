"""`holdfast worker`: runs jobs, stops in order, and reports what is wrong with its app."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.cli.worker import close_app
from holdfast.lifecycle.states import State
from tests.cli.commands import HOSTILE, assert_harmless
from tests.support.waiting import wait_until

APP = """
import os, threading, time
from pathlib import Path
from holdfast import Holdfast

app = Holdfast("never-made.db")

@app.task
async def who() -> int:
    return os.getpid()

@app.task
def stuck(place: str) -> None:
    Path(place).touch()
    threading.Event().wait()

@app.task(isolate="process")
def apart() -> int:
    return os.getpid()
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with an app in it, where the command is typed."""
    (tmp_path / "jobs_app.py").write_text(APP)
    return tmp_path


@contextmanager
def worker(
    place: Path, *arguments: str, app: str = "jobs_app:app"
) -> Iterator[subprocess.Popen[str]]:
    """Run the command; it is killed at the end if it has not ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "worker", app, "--url", "jobs.db", *arguments],
        cwd=place,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def jobs_app(place: Path) -> Holdfast:
    """The submitter's end."""
    return Holdfast(str(place / "jobs.db"))


def test_it_runs_jobs_and_ends_in_order(place: Path) -> None:
    app = jobs_app(place)
    try:
        with worker(place) as process:
            assert app.submit_sync("who").result_sync(30) == process.pid
            assert app.submit_sync("apart").result_sync(30) != process.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        assert not (place / "never-made.db").exists()
    finally:
        app.close_sync()


def test_two_processes_share_the_work_and_die_with_their_parent(place: Path) -> None:
    app = jobs_app(place)
    try:
        with worker(place, "--processes", "2", "--concurrency", "1") as process:
            seen: set[int] = set()
            while len(seen) < 2:
                seen |= {job.result_sync(30) for job in [app.submit_sync("who") for _ in range(8)]}
            assert process.pid not in seen
            process.kill()
            wait_until(lambda: not any(_alive(pid) for pid in seen), "both to end")
    finally:
        app.close_sync()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_member_is_replaced(place: Path) -> None:
    app = jobs_app(place)
    try:
        with worker(place, "--processes", "2", "--concurrency", "1"):
            first = app.submit_sync("who").result_sync(30)
            os.kill(first, signal.SIGKILL)
            wait_until(lambda: not _alive(first), "it to die")
            seen: set[int] = set()
            while len(seen) < 2:
                seen.add(app.submit_sync("who").result_sync(30))
            assert first not in seen
    finally:
        app.close_sync()


def test_a_number_of_processes_from_the_environment_counts_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each member finds the same number there, and does not lead a crew of its own."""
    monkeypatch.setenv("HOLDFAST_PROCESSES", "2")
    app = jobs_app(place)
    try:
        with worker(place) as process:
            member = app.submit_sync("who").result_sync(30)
            stat = Path(f"/proc/{member}/stat").read_text()
            assert int(stat.rpartition(")")[2].split()[1]) == process.pid
    finally:
        app.close_sync()


def test_what_cannot_be_killed_is_given_back_and_dies_with_the_process(place: Path) -> None:
    """And the exit code shows that it was not an orderly end."""
    app = jobs_app(place)
    started = place / "started"
    try:
        with worker(place, "--grace", "0") as process:
            job = app.submit_sync("stuck", place=str(started))
            wait_until(started.exists, "the handler to start")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 1
        assert job.refresh_sync().state is State.STALLED
        assert job.record.failures == 0
    finally:
        app.close_sync()


def test_metrics_are_served_beside_the_work(place: Path) -> None:
    app = jobs_app(place)
    try:
        with worker(place, "--metrics-port", "0") as process:
            app.submit_sync("who").result_sync(30)
            assert process.stderr is not None
            text = ""
            while not (found := re.search(r"metrics at (\S+)", text)):
                text += process.stderr.readline()
            text = urllib.request.urlopen(f"{found[1]}/metrics", timeout=10).read().decode()
            assert re.search(r"holdfast_claims_total(\{.*\})? 1\.0", text)
            assert urllib.request.urlopen(f"{found[1]}/healthz", timeout=10).status == 200
    finally:
        app.close_sync()


@pytest.mark.parametrize(
    ("app", "text"),
    [("nowhere:app", "nowhere"), ("jobs_app:other", "no Holdfast app named 'other'")],
)
def test_an_app_that_is_not_there_is_reported_in_one_line(place: Path, app: str, text: str) -> None:
    with worker(place, app=app) as process:
        assert process.wait(30) == 2
        assert process.stderr is not None
        assert text in process.stderr.read()


@pytest.mark.parametrize(
    ("words", "code"),
    [(("--url", "nix://x"), "bad_address"), (("--queues", "q" * 201), "bad_data")],
)
def test_bad_input_is_reported_in_one_line(place: Path, words: tuple[str, ...], code: str) -> None:
    with worker(place, *words) as process:
        assert process.wait(30) == 2
        assert process.stderr is not None
        text = process.stderr.read()
    assert text.startswith(f"error {code}: ")
    assert text.count("\n") == 1


def test_a_hostile_failure_does_not_reach_the_terminal(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed: Any = SimpleNamespace(failed=RuntimeError(HOSTILE), left_running=False)
    asyncio.run(close_app(jobs_app(place), failed, 1))
    assert_harmless(capsys.readouterr().err)


def test_a_worker_whose_store_is_away_waits_for_it_and_can_be_stopped(place: Path) -> None:
    with worker(place, "--url", "postgresql://nobody@127.0.0.1:1/none") as process:
        assert process.stderr is not None
        while "does not answer yet" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1
