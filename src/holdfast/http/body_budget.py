"""Request bodies in memory: read only for a caller that was admitted, within one budget for all.

A body counts from before its first byte is read until its request has been answered.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack

from starlette.requests import Request

from holdfast.auth.authorization import LOCAL
from holdfast.errors import Overloaded, RateLimited, TooLarge, TooSlow
from holdfast.http.limits import ServerLimits
from holdfast.http.slow_clients import BODY_ARRIVED

TOKEN_SHARE = 4
"""One token may hold a fourth of the budget: none of them can keep the bodies of all others out."""


class BodyBudget:
    """How many bytes of bodies are held at once, by all and by each token."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._token_bytes = max(limits.bodies_bytes // TOKEN_SHARE, limits.body_bytes)
        self._by_token: Counter[str] = Counter()
        self.held = 0

    async def read(self, request: Request, token: str) -> bytes:
        """Read the whole body of a request of this token; the same again if it was read before.

        Raises TooLarge, TooSlow, or Overloaded where there is no room for it now.
        """
        state = request.scope["state"]
        if "body" not in state:
            state["body"] = await self._read_within(request, token, state["at_end"])
        body: bytes = state["body"]
        return body

    async def _read_within(self, request: Request, token: str, at_end: ExitStack) -> bytes:
        announced = request.headers.get("content-length", "")
        hold = self._make_hold(token, at_end)
        # At once, where its length is known: bodies that wait for each other's room would all fail.
        size = int(announced) if announced.isdigit() else None
        if size is not None:
            self._check_size(size)
            hold(size)
        if request.scope["state"].get(BODY_ARRIVED):
            # A timer would cost more than to read it.
            return await self._collect(request, hold if size is None else None)
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                return await self._collect(request, hold if size is None else None)
        except TimeoutError as error:
            raise TooSlow(
                f"the body did not arrive within {self._limits.body_seconds:g} s"
            ) from error

    async def _collect(self, request: Request, hold: Callable[[int], None] | None) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise TooSlow("the client disconnected before the body was complete")
            part: bytes = message.get("body", b"")
            size += len(part)
            self._check_size(size)
            if hold is not None:
                hold(len(part))
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    def _check_size(self, size: int) -> None:
        if size > self._limits.body_bytes:
            raise TooLarge(f"a body may have at most {self._limits.body_bytes:,} bytes")

    def _make_hold(self, token: str, at_end: ExitStack) -> Callable[[int], None]:
        """Return what takes bytes from the budget until the request ends."""

        def hold(size: int) -> None:
            if self.held + size > self._limits.bodies_bytes:
                raise Overloaded("the server holds its limit of bytes of request bodies")
            if token != LOCAL and self._by_token[token] + size > self._token_bytes:
                raise RateLimited(
                    f"this token has {self._by_token[token]:,} bytes of request bodies under way"
                )
            self.held += size
            self._by_token[token] += size
            at_end.callback(give_back, size)

        def give_back(size: int) -> None:
            self.held -= size
            self._by_token[token] -= size
            if not self._by_token[token]:
                del self._by_token[token]

        return hold
