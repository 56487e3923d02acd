"""What every request passes before a route sees it: its name, its size, its pace, its errors.

Plain ASGI: it costs a request little, and also holds where no route is found.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.errors import (
    HoldfastError,
    Overloaded,
    ServerFailed,
    TooLarge,
    TooSlow,
    UnsupportedMedia,
)
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
    """Names each request, reads its body within bounds, and tells errors as problems."""

    def __init__(self, app: ASGIApp, limits: Limits, meters: DoorMeters) -> None:
        """Stand before `app`."""
        self._app = app
        self._limits = limits
        self._meters = meters

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
                message["headers"] = [*message["headers"], (REQUEST_ID, request_id.encode())]
            await send(message)

        self._meters.under_way += 1
        try:
            self._check_room(scope["path"])
            body = await self._read(headers, receive)
            await self._app(scope, _once(body, receive), told)
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

    async def _read(self, headers: Mapping[bytes, str], receive: Receive) -> bytes:
        """Read the whole body: no route begins before its request is there and within bounds."""
        if headers.get(b"content-encoding", "identity").strip().lower() != "identity":
            raise UnsupportedMedia("compressed bodies are not taken")
        announced = headers.get(b"content-length", "0")
        if announced.isdigit() and int(announced) > self._limits.body_bytes:
            raise self._too_large()
        if announced == "0" and b"transfer-encoding" not in headers:
            return b""
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                return await self._collect(receive)
        except TimeoutError as error:
            raise TooSlow(
                f"the body was not there within {self._limits.body_seconds:g} s"
            ) from error

    async def _collect(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise TooSlow("the client went away before its body was there")
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > self._limits.body_bytes:
                raise self._too_large()
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the limit of a body is {self._limits.body_bytes:,} bytes")


def _route(scope: Scope) -> str:
    """Tell which route was asked, by its pattern; what there is none for is one thing."""
    return getattr(scope.get("route"), "path", None) or OTHER


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


def _once(body: bytes, receive: Receive) -> Receive:
    """Hand the body over, then whatever the connection says."""
    waiting = True

    async def replayed() -> Message:
        nonlocal waiting
        if waiting:
            waiting = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replayed
