"""A worker in plain Python, without Holdfast and without database credentials: only HTTP.

    HOLDFAST_SERVER=http://127.0.0.1:8080 HOLDFAST_TOKEN=… python worker.py

It runs one job at a time. It repeats every request until the server answers, so a restart or a
crash of the server only causes a delay. See docs/worker-protocol.md.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]
SERVER = os.environ.get("HOLDFAST_SERVER", "http://127.0.0.1:8080")
TOKEN = os.environ.get("HOLDFAST_TOKEN")


class Refused(Exception):
    """The server refused a request."""


class Over(Exception):
    """The attempt is over, or must be ended with this report; the task itself did not fail."""

    def __init__(self, report: str | None = None) -> None:
        """Name the report that ends it, if one must still be sent."""
        super().__init__(report)
        self.report = report


class Stopped(Exception):
    """The process was asked to stop."""


def call(method: str, path: str, body: Json | None = None, patience: float = 1e9) -> Json:
    """Send a request; retry while the server does not answer. Every request can be repeated."""
    headers = {"content-type": "application/json"}
    if TOKEN:
        headers["authorization"] = f"Bearer {TOKEN}"
    data = None if body is None else json.dumps(body).encode()
    until, pause = time.monotonic() + patience, 0.1
    while True:
        request = urllib.request.Request(SERVER + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=40) as reply:
                answer: Json = json.load(reply)
                return answer
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 429:
                raise Refused(error.read().decode()) from error
        except (OSError, ValueError) as error:
            print(f"the server does not answer: {error!r}", flush=True)
        if time.monotonic() > until:
            raise Refused(f"no answer to {method} {path}")
        time.sleep(pause)
        pause = min(pause * 2, 2.0)


class Attempt:
    """One attempt of a job; the argument of a task."""

    def __init__(self, session: str, job: Json) -> None:
        """Recall what earlier attempts recorded, if there were any."""
        self.args: Json = job["args"]
        self._session = session
        self._job = job
        self._uses: Counter[tuple[str, str]] = Counter()
        self._ended = threading.Event()
        self._end: Over | None = None
        self._recorded: dict[tuple[str, str, int], Json] = {}
        if job["recall"]:
            which = {
                "session": session,
                "internal_id": job["internal_id"],
                "attempt": job["attempt"],
            }
            for one in call("POST", "/v1/worker/recall", which)["steps"]:
                self._recorded[one["kind"], one["name"], one["use"]] = one

    def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Run a step and record its result; a recorded step does not run again."""
        known, use = self._recorded_use("step", name)
        if known is not None:
            return known["result"]
        result = function(*args)
        self.report("step", name=name, use=use, result=result)
        return result

    def wait_for(self, name: str) -> Any:
        """Wait for a signal. If it has not arrived, the job waits and this attempt is over."""
        known, use = self._recorded_use("wait", name)
        if known is not None:
            return known["result"]
        answer = self.report("wait", signal=name, use=use)
        if "payload" not in answer:
            raise Over
        return answer["payload"]

    def _recorded_use(self, kind: str, name: str) -> tuple[Json | None, int]:
        if self._end is not None:
            raise self._end
        self._uses[kind, name] += 1
        use = self._uses[kind, name]
        return self._recorded.get((kind, name, use)), use

    def report(self, kind: str, **more: Any) -> Json:
        """Send a report; return the server's answer."""
        which = {"internal_id": self._job["internal_id"], "attempt": self._job["attempt"]}
        body = {"session": self._session, "reports": [{"say": kind, **which, **more}]}
        answer: Json = call("POST", "/v1/worker/report", body)["reports"][0]
        if not answer["accepted"]:
            code = answer["problem"]["code"]
            if not answer["held"]:
                self._end = Over()
            elif code == "past_timeout":
                self._end = Over("time_out")
            else:
                raise Refused(answer["problem"]["detail"])
            raise self._end
        if answer["cancel"]:
            self._end = Over("cancel")
        return answer

    def _beat(self) -> None:
        while not self._ended.wait(self._job["heartbeat_seconds"]):
            try:
                self.report("heartbeat")
            except (Over, Refused):
                return

    def run(self, task: Callable[[Attempt], Any]) -> None:
        """Run the task, from `start` to the report that ends the attempt."""
        beating = threading.Thread(target=self._beat, daemon=True)
        try:
            self.report("start")
            beating.start()
            self.report("complete", result=task(self))
        except Over as over:
            if over.report is not None:
                self.report(over.report)
        except Exception as error:  # noqa: BLE001  every error is reported
            failure = {
                "type": type(error).__name__,
                "message": str(error),
                "traceback": traceback.format_exc(),
            }
            self.report("fail", error=failure)
        finally:
            self._ended.set()


def effect(path: str, what: str, seconds: float) -> str:
    """Simulate an external effect."""
    time.sleep(seconds)
    with open(path, "a", encoding="utf-8") as world:
        world.write(what + "\n")
    return what


def order(attempt: Attempt) -> Json:
    """Reserve, optionally wait for an approval, then charge; each happens once."""
    args = attempt.args
    name, world, seconds = args["name"], args["world"], args.get("seconds", 0.1)
    reserved = attempt.step("reserve", effect, world, f"reserve {name}", seconds)
    approved = attempt.wait_for("approved") if args.get("asks") else "nobody was asked"
    charged = attempt.step("charge", effect, world, f"charge {name}", seconds)
    return {"reserved": reserved, "approved": approved, "charged": charged, "by": "python"}


TASKS: dict[str, Callable[[Attempt], Any]] = {"order": order}


class Worker:
    """Claims and runs jobs until it is asked to stop; then it finishes the job and its session."""

    def __init__(self) -> None:
        """Start idle."""
        self._stopping = False
        self._idle = True

    def stop(self, *_: Any) -> None:
        """Stop after the current job, or at once if there is none."""
        self._stopping = True
        if self._idle:
            raise Stopped

    def run(self) -> None:
        """Run until stopped. Ending the session releases jobs of a claim that was not read."""
        queues = os.environ.get("HOLDFAST_QUEUES", "default").split(",")
        me = {"queues": queues, "tasks": list(TASKS), "host": socket.gethostname()}
        session = call("POST", "/v1/worker/sessions", {**me, "pid": os.getpid()})["session"]
        print(f"working as {session}", flush=True)
        try:
            while not self._stopping:
                self._work(session, queues)
        except Stopped:
            pass
        finally:
            self._idle = False
            call("DELETE", f"/v1/worker/sessions/{session}", patience=5)

    def _work(self, session: str, queues: list[str]) -> None:
        wanted = {"session": session, "queues": queues, "request_id": secrets.token_hex(16)}
        try:
            jobs = call("POST", "/v1/worker/claim", {**wanted, "wait_seconds": 20})["jobs"]
        except Refused as refused:
            # The answer was lost for so long that other workers have claimed its jobs.
            print(f"the claim was refused: {refused}", flush=True)
            time.sleep(1)
            return
        self._idle = False
        for job in jobs:
            try:
                Attempt(session, job).run(TASKS.get(job["task"], unknown))
            except (Over, Refused) as end:
                print(f"job {job['id']} was given up: {end!r}", flush=True)
        self._idle = True


def unknown(attempt: Attempt) -> None:
    """Fail a job whose task this worker does not have."""
    raise LookupError("this worker has no such task")


if __name__ == "__main__":
    worker = Worker()
    signal.signal(signal.SIGTERM, worker.stop)
    signal.signal(signal.SIGINT, worker.stop)
    worker.run()
