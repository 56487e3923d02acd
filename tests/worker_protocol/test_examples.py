"""The workers in examples/, in plain Python and in Node: real processes against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.times import SECOND
from holdfast.testing.store_actions import submit_one
from holdfast.wiring import opened, read_address
from tests.support.lifeline import free_port
from tests.support.waiting import wait_until

pytestmark = pytest.mark.live
EXAMPLES = Path(__file__).parents[2] / "examples"
WORKERS = {
    "python": (sys.executable, str(EXAMPLES / "worker.py")),
    "node": ("node", str(EXAMPLES / "worker.mjs")),
}
LIMIT_SECONDS = 90.0


class Scene:
    """A server at one place and port, however often it dies; and a worker beside it."""

    def __init__(self, place: Path, language: str) -> None:
        """Begin with neither."""
        self.place = place
        self.language = language
        self.world = place / "world.txt"
        self.heard = place / "worker.log"
        port = free_port()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
        self._port = port
        self.token = ""
        """What the worker shows."""
        self._started: list[subprocess.Popen[bytes]] = []

    def serve(self) -> subprocess.Popen[bytes]:
        """Start the server, and wait until it answers."""
        command = (sys.executable, "-m", "holdfast.cli", "up", "--url", "jobs.db")
        process = self._start((*command, "--port", str(self._port)), self.place / "server.log")
        wait_until(self._answers, "the server", limit_seconds=LIMIT_SECONDS)
        return process

    def _answers(self) -> bool:
        try:
            return self.http.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def work(self) -> subprocess.Popen[bytes]:
        """Start the worker, and wait until it has a session."""
        before = len(self.heard.read_text()) if self.heard.exists() else 0
        process = self._start(WORKERS[self.language], self.heard)
        self.wait(lambda: "working as" in self.heard.read_text()[before:], "the worker")
        return process

    def _start(self, command: tuple[str, ...], log: Path) -> subprocess.Popen[bytes]:
        server = str(self.http.base_url).rstrip("/")
        with log.open("ab") as out:
            process = subprocess.Popen(
                command,
                cwd=self.place,
                stdout=out,
                stderr=out,
                env={**os.environ, "HOLDFAST_SERVER": server, "HOLDFAST_TOKEN": self.token},
            )
        self._started.append(process)
        return process

    def end(self) -> None:
        """Kill what still runs."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.http.close()

    def make_token(self, *options: str) -> str:
        """Make a token by the command that people use."""
        command = (sys.executable, "-m", "holdfast.cli", "token", "create", "name", *options)
        told = subprocess.run(
            (*command, "--url", "jobs.db", "--json"),
            cwd=self.place,
            capture_output=True,
            check=True,
            timeout=60,
        )
        return str(json.loads(told.stdout)["token"])

    def submit(self, name: str, **args: Any) -> str:
        """Submit an order."""
        given = {"name": name, "world": str(self.world), **args}
        reply = self.http.post("/v1/jobs", json={"task": "order", "args": given})
        assert reply.status_code == 201, reply.text
        return str(reply.json()["job_id"])

    def happened(self) -> list[str]:
        """List what happened outside."""
        return self.world.read_text().splitlines() if self.world.exists() else []

    def result(self, job: str) -> dict[str, Any]:
        """Wait for a job's end."""
        reply = self.http.get(f"/v1/jobs/{job}/result", params={"wait": 60})
        assert reply.status_code == 200, (reply.text, self.heard.read_text())
        told: dict[str, Any] = reply.json()
        return told

    def wait(self, condition: Any, what: str) -> None:
        """Wait for something, and tell what the worker said if it does not come."""
        try:
            wait_until(condition, what, limit_seconds=LIMIT_SECONDS)
        except TimeoutError as error:
            error.add_note(self.heard.read_text())
            raise

    def verify(self) -> None:
        """Have every job derived again from its events."""
        command = (sys.executable, "-m", "holdfast.cli", "verify", "--url", "jobs.db")
        told = subprocess.run(command, cwd=self.place, capture_output=True, check=False, timeout=60)
        assert told.returncode == 0, told


@pytest.fixture(params=list(WORKERS))
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    """A place for a server and a worker in each language."""
    made = Scene(tmp_path, request.param)
    yield made
    made.end()


def test_a_worker_outlives_its_server_killed_again_and_again(scene: Scene) -> None:
    server, worker = scene.serve(), scene.work()
    plain = [scene.submit(f"plain-{number}", seconds=0.2) for number in range(6)]
    asking = scene.submit("asking", asks=True, seconds=0.2)
    for lines in (1, 5, 9):
        scene.wait(lambda lines=lines: len(scene.happened()) >= lines, f"{lines} effects")
        heard = scene.heard.stat().st_size
        server.kill()
        server.wait()
        scene.wait(
            lambda heard=heard: b"does not answer" in scene.heard.read_bytes()[heard:],
            "the worker to notice",
        )
        server = scene.serve()
    answer = {"name": "approved", "payload": {"by": "ann"}}
    assert scene.http.post(f"/v1/jobs/{asking}/signal", json=answer).status_code == 200

    for job in plain:
        told = scene.result(job)
        assert (told["state"], told["result"]["by"]) == ("succeeded", scene.language)
        assert scene.http.get(f"/v1/jobs/{job}").json()["attempt"] == 1
    assert scene.result(asking)["result"]["approved"] == {"by": "ann"}
    # Whatever reply was lost, nothing was done twice: not a step, not a job.
    names = [f"plain-{number}" for number in range(6)] + ["asking"]
    assert sorted(scene.happened()) == sorted(
        f"{what} {name}" for name in names for what in ("reserve", "charge")
    )
    worker.terminate()
    assert worker.wait(60) == 0, scene.heard.read_text()
    [told] = scene.http.get("/v1/workers").json()["workers"]
    assert told["stopped_at"] is not None
    server.terminate()
    assert server.wait(60) == 0
    scene.verify()


def test_an_idle_worker_lets_its_server_end_and_goes_on_with_the_next(scene: Scene) -> None:
    server = scene.serve()
    scene.work()
    server.send_signal(signal.SIGTERM)
    # Its claim waits for longer than that: the server does not wait for it.
    assert server.wait(15) == 0
    scene.serve()
    told = scene.result(scene.submit("late"))
    assert told["result"]["charged"] == "charge late"


def test_another_worker_goes_on_at_the_step_where_one_was_killed(scene: Scene) -> None:
    scene.serve()
    worker = scene.work()
    args = {"name": "dear", "world": str(scene.world), "seconds": 2.5}
    job = asyncio.run(_submitted_with_short_leases(scene.place / "jobs.db", args))

    def steps() -> list[str]:
        events = scene.http.get(f"/v1/jobs/{job}/history").json()["events"]
        return [event["facts"]["step"] for event in events if event["type"] == "step_completed"]

    scene.wait(lambda: steps() == ["reserve"], "the first step")
    worker.kill()
    worker.wait()
    scene.work()
    told = scene.result(job)

    assert told["state"] == "succeeded"
    assert scene.happened() == ["reserve dear", "charge dear"]
    assert scene.http.get(f"/v1/jobs/{job}").json()["attempt"] > 1


async def _submitted_with_short_leases(database: Path, args: dict[str, Any]) -> str:
    policy = Policy(lease=3 * SECOND, heartbeat=SECOND, max_attempts=5)
    async with opened(read_address(str(database))) as store:
        job = await submit_one(store, task="order", policy=policy, body=json.dumps(args).encode())
    return job.public_id


def test_a_worker_with_a_token_of_one_tenant_and_queue_does_its_jobs_and_no_others(
    scene: Scene,
) -> None:
    scene.serve()
    scene.token = scene.make_token("--role", "worker", "--tenant", "mine", "--queues", "default")
    scene.work()
    mine, theirs = (
        {"authorization": f"Bearer {scene.make_token('--role', 'submitter', '--tenant', tenant)}"}
        for tenant in ("mine", "theirs")
    )
    scene.http.headers.update(theirs)
    left = scene.submit("theirs")
    scene.http.headers.update(mine)
    assert scene.result(scene.submit("mine"))["state"] == "succeeded"

    assert scene.happened() == ["reserve mine", "charge mine"]
    scene.http.headers.update(theirs)
    assert scene.http.get(f"/v1/jobs/{left}").json()["state"] == "queued"


@pytest.mark.parametrize("scene", ["python"], indirect=True)
def test_whoever_hung_up_while_it_waited_is_given_no_job(scene: Scene) -> None:
    scene.serve()
    session = scene.http.post("/v1/worker/sessions", json={}).json()["session"]
    for number in range(3):
        _hang_up_while_waiting(scene, session)
        scene.submit(str(number))
        wanted = {"session": session, "request_id": f"alive-{number}", "wait_seconds": 20}
        [job] = scene.http.post("/v1/worker/claim", json=wanted).json()["jobs"]
        assert job["args"]["name"] == str(number)


def _hang_up_while_waiting(scene: Scene, session: str) -> None:
    """Ask for a job, and go away once the server waits for one."""
    waiting = httpx.Client(base_url=scene.http.base_url, timeout=1.0)
    wanted = {"session": session, "request_id": str(id(waiting)), "wait_seconds": 20}
    with pytest.raises(httpx.ReadTimeout), waiting:
        waiting.post("/v1/worker/claim", json=wanted)


def test_a_task_that_a_worker_does_not_know_is_left_for_others(scene: Scene) -> None:
    scene.serve()
    scene.work()
    stranger = scene.http.post("/v1/jobs", json={"task": "stranger", "retries": 0})
    scene.result(scene.submit("known"))

    left = scene.http.get(f"/v1/jobs/{stranger.json()['job_id']}").json()
    assert (left["state"], left["attempt"]) == ("queued", 0)
