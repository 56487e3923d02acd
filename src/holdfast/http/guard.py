"""What every request passes before a route sees it: its name, its place, its errors.

Plain ASGI: it costs a request little, and also holds where no route is found.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import (
    HoldfastError,
    Overloaded,
    ServerFailed,
    TooLarge,
    UnsupportedMedia,
)
from holdfast.http.ending import Ending
from holdfast.http.limits import Limits
from holdfast.http.names import keep_slashes
from holdfast.http.problems import problem_response
from holdfast.identity import mint_request
from holdfast.points import reach
from holdfast.telemetry.meters import OTHER, DoorMeters

log = logging.getLogger(__name__)
REQUEST_ID = b"x-request-id"
SPARED = ("/healthz", "/readyz", "/metrics")
"""What is answered however busy the server is."""


class Guard:
    """Names each request, bounds their number, and reports errors as problems."""

    def __init__(self, app: ASGIApp, limits: Limits, meters: DoorMeters, ending: Ending) -> None:
        """Stand before `app`."""
        self._app = app
        self._limits = limits
        self._meters = meters
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = keep_slashes(scope)
        # Looked into several times: a dictionary is quicker than the framework's list.
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        request_id = _named(headers.get(REQUEST_ID))
        scope.setdefault("state", {})["request_id"] = request_id
        begun = 0
        began_at = time.monotonic()

        async def told(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                reach("http.answering")
                begun = message["status"]
                message["headers"] = _with_ours(message["headers"], request_id)
                if self._ending.begun:
                    # A connection that came while the server stopped listening would keep it.
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        self._meters.under_way += 1
        try:
            with ExitStack() as at_end:
                scope["state"]["at_end"] = at_end
                self._check_room(scope["path"])
                self._check_body(headers)
                await self._app(scope, receive, told)
        except Exception as error:
            # What has begun to answer can only break off.
            if begun:
                raise
            response = problem_response(_ours(error, request_id), request_id, scope["method"])
            await response(scope, receive, told)
        finally:
            self._meters.under_way -= 1
            self._meters.answered(_route(scope), begun, time.monotonic() - began_at)

    def _check_room(self, path: str) -> None:
        """Refuse what would be too many at once; a server that is busy is alive all the same."""
        if self._meters.under_way > self._limits.requests and path not in SPARED:
            raise Overloaded(f"{self._limits.requests:,} requests are under way already")

    def _check_body(self, headers: Mapping[bytes, str]) -> None:
        """Refuse what no route would read; what it may read is read once the caller is known."""
        if headers.get(b"content-encoding", "identity").strip().lower() != "identity":
            raise UnsupportedMedia("compressed bodies are not accepted")
        announced = headers.get(b"content-length", "0")
        if announced.isdigit() and int(announced) > self._limits.body_bytes:
            raise TooLarge(f"the limit of a body is {self._limits.body_bytes:,} bytes")


def _with_ours(
    headers: Sequence[tuple[bytes, bytes]], request_id: str
) -> list[tuple[bytes, bytes]]:
    """Add what every answer carries: the request's id, and not to guess its type or keep it."""
    made = [*headers, (REQUEST_ID, request_id.encode()), (b"x-content-type-options", b"nosniff")]
    if not any(name == b"cache-control" for name, _ in headers):
        made.append((b"cache-control", b"no-store"))
    return made


def _route(scope: Scope) -> str:
    """Tell which route was asked, by its pattern; what there is none for is one thing."""
    return getattr(scope.get("route"), "path", None) or OTHER


def at_end_of(request: Request) -> ExitStack:
    """Return what is called once a request has been answered."""
    stack: ExitStack = request.scope["state"]["at_end"]
    return stack


def request_id_of(request: Request) -> str:
    """Tell what a request is called in logs and answers."""
    named: str = request.scope["state"]["request_id"]
    return named


def _ours(error: Exception, request_id: str) -> HoldfastError:
    """Tell nothing of what went wrong inside: the log has it under the request's name."""
    if isinstance(error, HoldfastError):
        return error
    log.error("request %s failed", request_id, exc_info=error)
    return ServerFailed("the server failed by itself")


def _named(given: str | None) -> str:
    """Echo the client's name of its request, where that is one that a log can bear."""
    if given and len(given) <= 128 and given.isascii() and given.isprintable():
        return given
    return mint_request()
