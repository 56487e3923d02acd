"""Requests to a server: repeated until it answers, or until patience ends.

Each is named once, and bears its name at every repetition: what was done before its answer was
lost is not done again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from holdfast import __version__
from holdfast.client.problems import error_of
from holdfast.errors import (
    BadAddress,
    BadData,
    HoldfastError,
    Overloaded,
    RateLimited,
    ServerFailed,
    ServerUnavailable,
    StoreUnavailable,
)
from holdfast.identity import jitter, mint_request
from holdfast.json_format import has_own_format, read_json_as
from holdfast.lifecycle.payload import check_text
from holdfast.messages import Problem

try:
    import httpx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("the client needs httpx: pip install 'holdfast[client]'") from error

T = TypeVar("T")
ANSWER_SECONDS = 30.0
"""How long one answer may take, beyond what was asked to be waited for."""
CONNECT_SECONDS = 5.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
CONNECTIONS = 100
_AWAY = (502, 504)
"""What a proxy says for a server that is not there."""


class Reply(Struct, frozen=True, kw_only=True):
    """What a server answered."""

    status: int
    body: bytes
    repeated: bool
    """It was asked more than once: an earlier time may have been heard."""

    def read(self, kind: type[T]) -> T:
        """Read the answer as `kind`."""
        try:
            if has_own_format(kind):
                return read_json_as(msgspec.json.decode(self.body), kind)
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ServerFailed(
                f"the server's answer cannot be read: {error}; is it of a newer version?"
            ) from error


class Requests:
    """Asks one server, from one event loop."""

    def __init__(self, http: httpx.AsyncClient, *, patience_seconds: float) -> None:
        """Ask through `http`; give up after so long without an answer."""
        self._http = http
        self._patience = patience_seconds

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Any = None,
        key: str | None = None,
        expected_rev: int | None = None,
        wait: float = 0.0,
    ) -> Reply:
        """Ask until there is an answer; a problem is raised as the error that it tells of.

        `key` is what makes a repetition harmless; `wait` is how long the server may hold it back.
        """
        name = key or mint_request()
        headers = {"x-request-id": _safe(name), "idempotency-key": name}
        if expected_rev is not None:
            headers["if-match"] = f'"{expected_rev}"'
        if body is not None:
            headers["content-type"] = "application/json"
        request = self._http.build_request(
            method,
            path,
            params=[(word, check_text(value, word)) for word, value in query] or None,
            content=None if body is None else _encode(body),
            headers=headers,
            timeout=httpx.Timeout(ANSWER_SECONDS + wait, connect=CONNECT_SECONDS),
        )
        return await self._answer(request, time.monotonic() + wait + self._patience)

    async def _answer(self, request: httpx.Request, limit: float) -> Reply:
        tries = 0
        while True:
            tries += 1
            outcome = await self._try(request, repeated=tries > 1)
            if isinstance(outcome, Reply):
                return outcome
            pause = _pause(outcome, tries)
            if time.monotonic() + pause > limit:
                raise outcome
            await asyncio.sleep(pause)

    async def _try(self, request: httpx.Request, *, repeated: bool) -> Reply | HoldfastError:
        """Ask once; an error comes back where it may be mended by asking again."""
        try:
            response = await self._http.send(request)
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise BadData(f"this cannot be asked over HTTP: {error}") from error
        except httpx.TransportError as error:
            return self._away(str(error) or type(error).__name__)
        if response.is_success:
            return Reply(status=response.status_code, body=response.content, repeated=repeated)
        if response.status_code in _AWAY:
            return self._away(f"a proxy answers {response.status_code}")
        told = _told(response)
        if isinstance(told, RateLimited | Overloaded | StoreUnavailable):
            return told
        raise told

    def _away(self, why: str) -> ServerUnavailable:
        return ServerUnavailable(f"the server at {self._http.base_url} does not answer: {why}")


def make_headers(token: str | None, tenant: str | None) -> dict[str, str]:
    """Say who asks; `tenant` is for a token that may act for all of them."""
    headers = {"user-agent": f"holdfast/{__version__}", "accept": "application/json"}
    if token is not None:
        headers["authorization"] = f"Bearer {_header(token, 'the token')}"
    if tenant is not None:
        headers["holdfast-tenant"] = quote(check_text(tenant, "tenant", limit=200))
    return headers


def make_http(
    url: str, headers: dict[str, str], transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    """Make the connections to a server; nothing is asked yet."""
    return httpx.AsyncClient(
        base_url=read_url(url),
        headers=headers,
        limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
        transport=transport,
        # A token goes to the address that it was given for, and to no other.
        follow_redirects=False,
    )


def read_url(url: str) -> str:
    """Check a server's address: `http://localhost:8000`, or `https://host/prefix`."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise BadAddress(f"{url!r} is no server: {error}") from error
    if not good or parts.query or parts.fragment:
        raise BadAddress(f"{url!r} is no server: say http://host:port or https://host")
    if parts.username is not None or parts.password is not None:
        raise BadAddress("a server's address holds no password: give the token beside it")
    return url


def _header(text: str, what: str) -> str:
    if not (text.isascii() and text.isprintable() and text and text == text.strip()):
        raise BadData(f"{what} must be printable ASCII without blanks around it")
    return text


def _encode(body: Any) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise BadData("a lone surrogate is not text") from error


def _told(response: httpx.Response) -> HoldfastError:
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ServerFailed(
            f"{response.url} answers {response.status_code}, and not as a Holdfast server would: "
            "check the address"
        )
    return error_of(problem, _retry_in(response))


def _retry_in(response: httpx.Response) -> float:
    said: str = response.headers.get("retry-after", "")
    return float(said) if said.isascii() and said.isdigit() else 1.0


def _pause(error: HoldfastError, tries: int) -> float:
    """Tell how long to rest before the next try: as told, else ever longer, never in step."""
    if isinstance(error, RateLimited):
        return error.retry_in
    longest: float = min(FIRST_PAUSE_SECONDS * 2 ** min(tries - 1, 10), LONGEST_PAUSE_SECONDS)
    return longest * (0.5 + jitter() / 2)


def _safe(name: str) -> str:
    """Name a request in the server's log, where only plain text may stand."""
    return name if name.isascii() and name.isprintable() and len(name) <= 128 else mint_request()
