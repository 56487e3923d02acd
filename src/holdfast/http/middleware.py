"""What every request passes before a route sees it: its id, the limits, its errors.

Plain ASGI: it costs a request little, and also holds where no route is found.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.crash_points import reach
from holdfast.errors import (
    HoldfastError,
    Overloaded,
    ServerFailed,
    TooLarge,
    UnsupportedMedia,
)
from holdfast.http.lifespan import ServerShutdown
from holdfast.http.limits import ServerLimits
from holdfast.http.problems import problem_response
from holdfast.ids import mint_request
from holdfast.telemetry.counters import OTHER, DoorMeters

log = logging.getLogger(__name__)
REQUEST_ID = b"x-request-id"
SPARED = ("/healthz", "/readyz", "/metrics")
"""What is answered however busy the server is."""


class Guard:
    """Names each request, bounds their number, and reports errors as problems."""

    def __init__(
        self,
        app: ASGIApp,
        limits: ServerLimits,
        meters: DoorMeters,
        shutdown: ServerShutdown,
        *,
        streams: Callable[[Scope], bool] = lambda _: False,
    ) -> None:
        """Pass requests on to `app`; those that `streams` may have bodies of any length."""
        self._app = app
        self._limits = limits
        self._meters = meters
        self._shutdown = shutdown
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = keep_slashes(scope)
        # Read several times: a dictionary is quicker than the framework's list.
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        request_id = _choose_request_id(headers.get(REQUEST_ID))
        scope.setdefault("state", {})["request_id"] = request_id
        status = 0
        started_at = time.monotonic()

        async def send_with_ours(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                reach("http.answering")
                status = message["status"]
                message["headers"] = _add_headers(message["headers"], request_id)
                if self._shutdown.started:
                    # A connection that came while the server stopped listening would keep it.
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        self._meters.under_way += 1
        try:
            with ExitStack() as at_end:
                scope["state"]["at_end"] = at_end
                self._check_room(scope["path"])
                self._check_body(headers, scope)
                await self._app(scope, receive, send_with_ours)
        except Exception as error:
            # An answer that has started can only break off.
            if status:
                raise
            response = problem_response(
                _hide_internal_error(error, request_id), request_id, scope["method"]
            )
            await response(scope, receive, send_with_ours)
        finally:
            self._meters.under_way -= 1
            self._meters.answered(_route(scope), status, time.monotonic() - started_at)

    def _check_room(self, path: str) -> None:
        """Refuse what would be too many at once, except probes: a busy server is alive."""
        if self._meters.under_way > self._limits.requests and path not in SPARED:
            raise Overloaded(f"{self._limits.requests:,} requests are under way already")

    def _check_body(self, headers: Mapping[bytes, str], scope: Scope) -> None:
        """Refuse a body that no route would read; others are read once the caller is known."""
        if headers.get(b"content-encoding", "identity").strip().lower() != "identity":
            raise UnsupportedMedia("compressed bodies are not accepted")
        announced = headers.get(b"content-length", "0")
        if not (announced.isdigit() and int(announced) > self._limits.body_bytes):
            return
        if not self._streams(scope):
            raise TooLarge(f"a body may have at most {self._limits.body_bytes:,} bytes")


def _add_headers(
    headers: Sequence[tuple[bytes, bytes]], request_id: str
) -> list[tuple[bytes, bytes]]:
    """Add what every answer carries: the request's id, and not to guess its type or keep it."""
    made = [*headers, (REQUEST_ID, request_id.encode()), (b"x-content-type-options", b"nosniff")]
    if not any(name == b"cache-control" for name, _ in headers):
        made.append((b"cache-control", b"no-store"))
    return made


def _route(scope: Scope) -> str:
    """Return what metrics call a request's route; one name for all that have none."""
    return getattr(scope.get("endpoint"), "label", OTHER)


def at_end_of(request: Request) -> ExitStack:
    """Return what is called once a request has been answered."""
    stack: ExitStack = request.scope["state"]["at_end"]
    return stack


def request_id_of(request: Request) -> str:
    """Return what a request is called in logs and answers."""
    named: str = request.scope["state"]["request_id"]
    return named


def _hide_internal_error(error: Exception, request_id: str) -> HoldfastError:
    """Hide what went wrong inside: the log has it under the request's id."""
    if isinstance(error, HoldfastError):
        return error
    log.error("request %s failed", request_id, exc_info=error)
    return ServerFailed("internal error")


def _choose_request_id(given: str | None) -> str:
    """Return the client's id of its request, where that is plain text for a log; else a new one."""
    if given and len(given) <= 128 and given.isascii() and given.isprintable():
        return given
    return mint_request()


_SLASH = "\ud800"
"""Replaces a slash in a name until it is routed; no path decodes to it, for it is a surrogate."""


def keep_slashes(scope: Scope) -> Scope:
    """Return a request in whose path a name with a slash is one piece."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return scope
    pieces = raw.decode("latin-1").split("/")
    return {**scope, "path": "/".join(unquote(one).replace("/", _SLASH) for one in pieces)}


def shown_path(path: str) -> str:
    """Write a path down for a person."""
    return path.replace(_SLASH, "%2F")


def path_name(request: Request, name: str) -> str:
    """Return a name that is a piece of a request's path."""
    text: str = request.path_params[name]
    return text.replace(_SLASH, "/")
