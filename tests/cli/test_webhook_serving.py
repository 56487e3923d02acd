"""Webhooks of `holdfast up` and `holdfast reconcile`: which are notified, and which are not."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from holdfast.webhooks.signature import check_signature
from tests.cli.test_serving import APP, Running, running
from tests.support.waiting import wait_until

DOUBLE = {"task": "double", "args": {"number": 3}}


class Heard:
    """A receiver in a thread."""

    def __init__(self) -> None:
        """Listen on a free port."""
        self.messages: list[tuple[dict[str, str], bytes]] = []
        heard = self.messages

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                heard.append(({name.lower(): v for name, v in self.headers.items()}, body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture
def heard() -> Iterator[Heard]:
    """The receiver."""
    made = Heard()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with an app in it, where the command is typed."""
    (tmp_path / "jobs_app.py").write_text(APP)
    return tmp_path


@contextmanager
def up(place: Path, *words: str) -> Iterator[Running]:
    """Have everything in one process."""
    with running(place, "up", "jobs_app:app", *words) as served:
        yield served


def test_an_end_is_delivered_by_up(place: Path, heard: Heard) -> None:
    with up(place, "--webhooks-allow", "127.0.0.0/8") as served:
        made = served.http.post("/v1/webhooks", json={"url": heard.url, "states": ["succeeded"]})
        assert made.status_code == 201, made.text
        job = served.http.post("/v1/jobs", json=DOUBLE).json()
        wait_until(lambda: len(heard.messages) == 1, "the message")
        [(headers, body)] = heard.messages
        check_signature(made.json()["secret"], headers, body)
        answer = json.loads(body)
        assert (answer["type"], answer["data"]["id"]) == ("job.succeeded", job["job_id"])
        deliveries = served.http.get("/v1/jobs", params={"task": "holdfast.webhook"}).json()["jobs"]
        assert [one["queue"] for one in deliveries] == ["holdfast.webhooks"]
        assert served.end() == 0


def test_an_address_inside_is_refused_where_nobody_allowed_it(place: Path, heard: Heard) -> None:
    with up(place) as served:
        refused = served.http.post("/v1/webhooks", json={"url": heard.url})
        assert (refused.status_code, refused.json()["code"]) == (422, "address_blocked")
        # On a store's address it is judged only when the sender resolves it.
        named = heard.url.replace("127.0.0.1", "localhost")
        words = (sys.executable, "-m", "holdfast.cli", "webhook", "add", named)
        subprocess.run([*words, "--url", str(place / "jobs.db")], check=True, capture_output=True)
        served.http.post("/v1/jobs", json=DOUBLE)

        def failed() -> bool:
            query = {"task": "holdfast.webhook", "state": "failed"}
            jobs = served.http.get("/v1/jobs", params=query).json()["jobs"]
            return [one["error_code"] for one in jobs] == ["address_blocked"]

        wait_until(failed, "the delivery to fail")
        assert heard.messages == []
        assert served.end() == 0


def test_an_end_is_delivered_by_reconcile(place: Path, heard: Heard) -> None:
    words = (sys.executable, "-m", "holdfast.cli")
    store = str(place / "jobs.db")
    subprocess.run([*words, "migrate", "--url", store], check=True, capture_output=True)
    with running(place, "serve", "jobs_app:app", "--webhooks-allow", "127.0.0.0/8") as served:
        served.http.post("/v1/webhooks", json={"url": heard.url})
        job = served.http.post("/v1/jobs", json=DOUBLE).json()["job_id"]
        served.http.post(f"/v1/jobs/{job}/cancel", json={})
        loops = subprocess.Popen(
            [*words, "reconcile", "--url", store, "--webhooks-allow", "127.0.0.0/8"],
            stderr=subprocess.DEVNULL,
        )
        wait_until(lambda: len(heard.messages) == 1, "the message")
        loops.send_signal(signal.SIGTERM)
        assert loops.wait(30) == 0
        assert json.loads(heard.messages[0][1])["type"] == "job.cancelled"


def test_a_network_that_is_none_is_refused(place: Path) -> None:
    words = [sys.executable, "-m", "holdfast.cli", "reconcile", "--webhooks-allow", "inside"]
    bad = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
    assert (bad.returncode, "invalid network" in bad.stderr) == (2, True)
