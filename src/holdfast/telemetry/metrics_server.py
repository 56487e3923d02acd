"""A small HTTP server for scrapers and probes, in threads of its own.

It shares nothing with the worker's event loop but numbers, so that it still answers, and reports
it, when that loop is blocked.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from holdfast.errors import CannotServe
from holdfast.telemetry.counters import Meters
from holdfast.telemetry.liveness import silent
from holdfast.telemetry.queue_depths import Depths

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0
"""How long a client may take over its request."""

POLL_SECONDS = 0.1
"""How soon the server notices that it is to end."""


class MetricsServer(ThreadingHTTPServer):
    """Answers GET /metrics and GET /healthz."""

    daemon_threads = True
    # A scraper that holds its connection open must not hold up the end of the worker.
    block_on_close = False

    def __init__(self, meters: Meters, depths: Depths | None, host: str, port: int) -> None:
        """Listen at once; answer from `serve_forever` on."""
        from prometheus_client.exposition import choose_encoder

        from holdfast.telemetry.prometheus import make_registry

        self._meters = meters
        self._registry = make_registry(meters, depths)
        self._choose = choose_encoder
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """Where it answers; with port 0, at the port that it was given."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def metrics(self, accept: str) -> tuple[int, str, bytes]:
        """Render all metrics in the format that the scraper accepts."""
        encode, content_type = self._choose(accept)
        return 200, content_type, encode(self._registry)

    def health(self) -> tuple[int, str, bytes]:
        """Return 200 while every part that must show life does, else 503 and which does not."""
        dead = silent(list(self._meters.pulses.values()))
        answer = {
            "status": "silent" if dead else "ok",
            "silent": {name: round(seconds, 1) for name, seconds in dead.items()},
        }
        return 503 if dead else 200, "application/json", json.dumps(answer).encode() + b"\n"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error, unless the client went away."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("a scrape failed")


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    server: MetricsServer
    timeout = PATIENCE_SECONDS
    server_version = "holdfast"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer by path."""
        match urlsplit(self.path).path:
            case "/metrics":
                self._answer(*self.server.metrics(self.headers.get("Accept", "")))
            case "/healthz":
                self._answer(*self.server.health())
            case _:
                self._answer(404, "text/plain", b"/metrics or /healthz\n")

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a probe comes every second."""


@contextmanager
def serve_metrics(
    meters: Meters, host: str = "127.0.0.1", port: int = 9464, *, depths: Depths | None = None
) -> Iterator[MetricsServer]:
    """Serve /metrics and /healthz in threads of their own while the block runs."""
    try:
        server = MetricsServer(meters, depths, host, port)
    except ModuleNotFoundError as error:
        raise CannotServe(
            "metrics need prometheus-client: pip install 'holdfast[metrics]'"
        ) from error
    except OSError as error:
        raise CannotServe(f"metrics cannot be served on {host}:{port}: {error}") from error
    thread = threading.Thread(
        target=server.serve_forever, args=(POLL_SECONDS,), name="holdfast-metrics", daemon=True
    )
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
