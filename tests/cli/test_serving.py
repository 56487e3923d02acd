"""`holdfast serve` and `holdfast up`: they serve, report whether they can, and stop in order."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from holdfast import Holdfast
from holdfast.cli.serve import AllRoles, make_gateway
from holdfast.cli.settings import CommandFileOptions, ListenOptions
from holdfast.wiring import read_address
from tests.support.waiting import wait_until

APP = """
import time
from pathlib import Path
from holdfast import Holdfast

app = Holdfast("jobs.db")

@app.task
async def double(number: int) -> int:
    return 2 * number

@app.task
async def block(started: str, until: str) -> None:
    Path(started).touch()
    while not Path(until).exists():
        time.sleep(0.01)
"""
SLOW = """
import asyncio
from holdfast.cli.main import app
from holdfast.http import lifespan
from holdfast.stores.sqlite.store import SqliteStore

lifespan.PATIENCE_SECONDS = 0.01
at_once = SqliteStore.open

async def later(store: SqliteStore) -> None:
    await asyncio.sleep(50 * lifespan.PATIENCE_SECONDS)
    await at_once(store)

SqliteStore.open = later
app()
"""
"""The command on a database that takes longer to open than a server waits for it."""
AWAY = "postgresql://nobody@127.0.0.1:1/none"
LONG_SECONDS = 50
"""How long a long poll asks for: longer than a server has to end."""
CLAIM_SECONDS = 20
STREAM = {"accept": "text/event-stream, application/json"}


class Running:
    """A command that serves."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        """Take the process, and where it answers."""
        self.process = process
        self.http = httpx.Client(base_url=url, timeout=30)

    def end(self) -> int:
        """Stop it; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with an app in it, where the command is typed."""
    (tmp_path / "jobs_app.py").write_text(APP)
    return tmp_path


@contextmanager
def running(place: Path, *arguments: str) -> Iterator[Running]:
    """Run a command on any free port; it is killed at the end if it has not ended."""
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", *arguments, "--port", "0"],
        cwd=place,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        assert process.stderr is not None
        text = ""
        while not (found := re.search(r"serving (http://\S+);", text)):
            line = process.stderr.readline()
            assert line, text
            text += line
        served = Running(process, found[1])
        with served.http:
            # It listens before it serves, so that this waits for it.
            assert served.http.get("/healthz").status_code == 200
            yield served
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def typed(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *arguments],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "COLUMNS": "200"},
    )


def test_up_serves_and_works_in_one_process_on_a_file_that_it_makes(place: Path) -> None:
    with running(place, "up", "jobs_app:app") as served:
        made = served.http.post("/v1/jobs", json={"task": "double", "args": {"number": 21}})
        assert made.status_code == 201, made.text
        result = served.http.get(f"/v1/jobs/{made.json()['job_id']}/result", params={"wait": 30})
        assert result.json()["result"] == 42
        refused = served.http.post("/v1/jobs", json={"task": "double", "args": {"number": "x"}})
        assert refused.json()["code"] == "validation_failed"
        assert (place / "jobs.db").exists()
        assert served.http.get("/readyz").json()["status"] == "ready"
        text = served.http.get("/metrics").text
        assert re.search(r"holdfast_claims_total 1\.0", text)
        counted = r'holdfast_submitted_total\{queue="default",task="double"\} 1\.0'
        assert re.search(counted, text)
        assert re.search(r"holdfast_reconciler_sweeps_total [1-9]", text)
        assert served.end() == 0


def test_a_handler_that_blocks_the_workers_loop_keeps_nobody_waiting(place: Path) -> None:
    started, until = place / "started", place / "until"
    with running(place, "up", "jobs_app:app") as served:
        arguments = {"started": str(started), "until": str(until)}
        made = served.http.post("/v1/jobs", json={"task": "block", "args": arguments}).json()
        wait_until(started.exists, "the handler to start")
        # Its start is written with its end: a short handler's need not be waited for.
        assert served.http.get(f"/v1/jobs/{made['job_id']}").json()["state"] == "claimed"
        until.touch()
        done = served.http.get(f"/v1/jobs/{made['job_id']}/result", params={"wait": 30})
        assert done.json()["state"] == "succeeded"


def test_up_without_an_app_serves_and_sweeps(place: Path) -> None:
    with running(place, "up", "--url", "other.db", "--tick", "0.05") as served:
        wanted = {"task": "t", "deadline": "1ms"}
        job = served.http.post("/v1/jobs", json=wanted).json()["job_id"]
        done = served.http.get(f"/v1/jobs/{job}/result", params={"wait": 30})
        assert done.json()["state"] == "timed_out"
        assert served.end() == 0


@pytest.mark.parametrize("command", [("serve", "--url", "jobs.db"), ("up", "jobs_app:app")])
def test_sigterm_ends_whatever_waits_and_answers_it(place: Path, command: tuple[str, ...]) -> None:
    """A long poll, a claim and a stream: none of them would end by itself within the grace."""
    assert typed(place, "migrate", "--url", "jobs.db").returncode == 0
    with running(place, *command, "--grace", "5") as served:
        made = served.http.post("/v1/jobs", json={"task": "t", "delay": "1h"}).json()
        hired = served.http.post("/v1/worker/sessions", json={"queues": ["other"]}).json()
        claiming = {"session": hired["session"], "request_id": "1", "queues": ["other"]}
        asks = (
            ("GET", f"/v1/jobs/{made['job_id']}/result?wait={LONG_SECONDS}", None),
            ("POST", "/v1/worker/claim", claiming | {"wait_seconds": CLAIM_SECONDS}),
            ("GET", "/v1/events", None),
        )
        with (
            httpx.Client(base_url=served.http.base_url, timeout=60, headers=STREAM) as other,
            ThreadPoolExecutor() as threads,
        ):
            waiting = [threads.submit(other.request, *one[:2], json=one[2]) for one in asks]
            wait_until(lambda: _under_way(served) > len(asks), "all to be under way")
            assert served.end() == 0
            polled, claimed, streamed = (one.result() for one in waiting)
        assert polled.status_code == 202
        assert claimed.json() == {"jobs": []}
        assert streamed.headers["content-type"].startswith("text/event-stream")


def _under_way(served: Running) -> float:
    """Count what the server answers now, this question among it."""
    found = re.search(
        r"^holdfast_http_requests_under_way (\S+)$", served.http.get("/metrics").text, re.M
    )
    assert found is not None
    return float(found[1])


def test_a_store_that_is_not_there_is_named(place: Path) -> None:
    done = typed(place, "serve", "--url", "typo.db")
    assert done.returncode == 3
    assert "no_such_store" in done.stderr
    assert not (place / "typo.db").exists()


@pytest.mark.parametrize("command", ["serve", "up"])
def test_an_address_that_names_no_store_is_reported_in_one_line(place: Path, command: str) -> None:
    done = typed(place, command, "jobs_app:app", "--url", "nix://x")
    assert done.returncode == 2
    assert done.stderr.startswith("error bad_address: ")
    assert done.stderr.count("\n") == 1


def test_an_address_that_is_taken_is_named(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = typed(place, "up", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "cannot_serve" in done.stderr
    assert "in use" in done.stderr


EACH_THAT_SERVES = pytest.mark.parametrize(
    "command",
    [
        pytest.param(("serve", "--url", "jobs.db"), id="serve"),
        pytest.param(("up",), id="up"),
        pytest.param(("up", "jobs_app:app"), id="up with a worker"),
    ],
)


@EACH_THAT_SERVES
def test_beyond_this_machine_it_does_not_announce_serving_without_tokens(
    place: Path, command: tuple[str, ...]
) -> None:
    assert typed(place, "migrate", "--url", "jobs.db").returncode == 0
    done = typed(place, *command, "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 1
    assert done.stderr.startswith("error no_tokens: ")
    assert "holdfast token create" in done.stderr
    assert done.stderr.count("\n") == 1
    workers = typed(place, "workers", "--all", "--url", "jobs.db", "--json")
    assert json.loads(workers.stdout)["workers"] == []


@EACH_THAT_SERVES
def test_a_refusal_that_comes_with_a_slow_database_ends_what_serves(
    place: Path, command: tuple[str, ...]
) -> None:
    assert typed(place, "migrate", "--url", "jobs.db").returncode == 0
    (place / "slow.py").write_text(SLOW)
    done = subprocess.run(
        [sys.executable, "slow.py", *command, "--host", "0.0.0.0", "--port", "0"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "COLUMNS": "200", "HOLDFAST_URL": "jobs.db"},
    )
    assert done.returncode == 1, done.stderr
    lines = done.stderr.splitlines()
    assert "serving http://" in lines[0]
    assert sum("the server cannot continue and stops: " in line for line in lines) == 1
    assert lines[-1].startswith("error no_tokens: ")
    assert "Traceback" not in done.stderr


async def test_a_worker_that_is_stopped_before_its_database_came_did_not_end_well() -> None:
    app = Holdfast(AWAY)
    gateway = make_gateway(
        ListenOptions(port=0, grace=1), read_address(AWAY), app, files=CommandFileOptions()
    )
    roles = AllRoles(gateway, app, app.worker())
    announced: list[str] = []
    running_roles = asyncio.create_task(roles.run(lambda: announced.append("serving")))
    await asyncio.sleep(0)  # from here on it listens to signals
    signal.raise_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        assert await running_roles == 1
    assert announced == []


def test_a_database_that_is_away_makes_a_server_that_reports_it(place: Path) -> None:
    """It lives, is not ready, and answers requests with what to do."""
    with running(place, "serve", "--url", AWAY) as served:
        assert served.http.get("/healthz").status_code == 200
        for path in ("/readyz", "/v1/jobs"):
            away = served.http.get(path)
            assert (away.status_code, away.json()["code"]) == (503, "store_unavailable")
            assert away.headers["retry-after"] == "1"
        assert served.end() == 0
