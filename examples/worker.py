"""A worker in plain Python: nothing of Holdfast is installed, and no database is known; only HTTP.

    HOLDFAST_SERVER=http://127.0.0.1:8080 HOLDFAST_TOKEN=… python worker.py

It works on one job at a time. Whatever cannot be said to the server is said again until it answers,
so a server that is restarted, or killed, costs a pause. See docs/worker-protocol.md.
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
    """The server understood, and said no."""


class Over(Exception):
    """The attempt is over, or has to be ended by this word; not the work's own failure."""

    def __init__(self, word: str | None = None) -> None:
        """Name the word that ends it, if one still has to be said."""
        super().__init__(word)
        self.word = word


class Stopped(Exception):
    """Somebody asked this process to end."""


def call(method: str, path: str, body: Json | None = None, patience: float = 1e9) -> Json:
    """Ask the server, again and again while it is away: every request may be repeated."""
    headers = {"content-type": "application/json"}
    if TOKEN:
        headers["authorization"] = f"Bearer {TOKEN}"
    data = None if body is None else json.dumps(body).encode()
    until, pause = time.monotonic() + patience, 0.1
    while True:
        request = urllib.request.Request(SERVER + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=40) as reply:
                told: Json = json.load(reply)
                return told
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
    """One attempt of one job: what its task is given."""

    def __init__(self, session: str, job: Json) -> None:
        """Ask what earlier attempts did, if there were any."""
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
        """Do something once: what is recorded is not done again."""
        known, use = self._come_by("step", name)
        if known is not None:
            return known["result"]
        result = function(*args)
        self.say("step", name=name, use=use, result=result)
        return result

    def wait_for(self, name: str) -> Any:
        """Wait for a signal. Until it comes the job is parked, and this attempt is over."""
        known, use = self._come_by("wait", name)
        if known is not None:
            return known["result"]
        answer = self.say("wait", signal=name, use=use)
        if "payload" not in answer:
            raise Over
        return answer["payload"]

    def _come_by(self, kind: str, name: str) -> tuple[Json | None, int]:
        if self._end is not None:
            raise self._end
        self._uses[kind, name] += 1
        use = self._uses[kind, name]
        return self._recorded.get((kind, name, use)), use

    def say(self, word: str, **more: Any) -> Json:
        """Report, and hear how the job stands."""
        which = {"internal_id": self._job["internal_id"], "attempt": self._job["attempt"]}
        report = {"say": word, **which, **more}
        body = {"session": self._session, "reports": [report]}
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
                self.say("heartbeat")
            except (Over, Refused):
                return

    def run(self, task: Callable[[Attempt], Any]) -> None:
        """Do the task from its beginning to a word that ends the attempt."""
        beating = threading.Thread(target=self._beat, daemon=True)
        try:
            self.say("start")
            beating.start()
            self.say("complete", result=task(self))
        except Over as over:
            if over.word is not None:
                self.say(over.word)
        except Exception as error:  # noqa: BLE001  whatever it is, the server is told
            told = {
                "type": type(error).__name__,
                "message": str(error),
                "traceback": traceback.format_exc(),
            }
            self.say("fail", error=told)
        finally:
            self._ended.set()


def effect(path: str, what: str, seconds: float) -> str:
    """Stand for the world outside: something happens that cannot be undone."""
    time.sleep(seconds)
    with open(path, "a", encoding="utf-8") as world:
        world.write(what + "\n")
    return what


def order(attempt: Attempt) -> Json:
    """Reserve, maybe wait until somebody says yes, then charge: each of them once."""
    args = attempt.args
    name, world, seconds = args["name"], args["world"], args.get("seconds", 0.1)
    reserved = attempt.step("reserve", effect, world, f"reserve {name}", seconds)
    approved = attempt.wait_for("approved") if args.get("asks") else "nobody was asked"
    charged = attempt.step("charge", effect, world, f"charge {name}", seconds)
    return {"reserved": reserved, "approved": approved, "charged": charged, "by": "python"}


TASKS: dict[str, Callable[[Attempt], Any]] = {"order": order}


class Worker:
    """Claims and works until it is asked to stop; then it ends the job at hand and says goodbye."""

    def __init__(self) -> None:
        """Be idle."""
        self._stopping = False
        self._idle = True

    def stop(self, *_: Any) -> None:
        """Stop after the job at hand; at once if there is none."""
        self._stopping = True
        if self._idle:
            raise Stopped

    def run(self) -> None:
        """Work until stopped. What a claim may have brought that was not read is given back."""
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
            # Its first answer was lost for so long that what it gave is somebody else's by now.
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
    """Refuse a task that this worker does not know; another may."""
    raise LookupError("this worker has no such task")


if __name__ == "__main__":
    worker = Worker()
    signal.signal(signal.SIGTERM, worker.stop)
    signal.signal(signal.SIGINT, worker.stop)
    worker.run()
