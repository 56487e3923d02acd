"""Requests to a server: repeated until it answers, or for as long as the client is patient.

A request keeps its id at every repetition: what was done before its answer was lost is not done
again.
"""

from __future__ import annotations

import asyncio
import re
import time
from binascii import b2a_base64
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
from msgspec import Struct

from holdfast import __version__
from holdfast.errors import (
    BadAddress,
    BadData,
    BlobsUnavailable,
    HoldfastError,
    Overloaded,
    RateLimited,
    ServerFailed,
    ServerUnavailable,
    StoreUnavailable,
)
from holdfast.ids import jitter, mint_request
from holdfast.lifecycle.payload import check_text
from holdfast.operations.http_format import read_result
from holdfast.operations.json_format import has_own_format, read_json_as
from holdfast.operations.problems import ProblemDocument, error_of
from holdfast.operations.request import R, Request

try:
    import httpx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("the client needs httpx: pip install 'holdfast[client]'") from error

T = TypeVar("T")
ANSWER_SECONDS = 30.0
"""How long one answer may take, beyond the wait that was asked for."""
CONNECT_SECONDS = 5.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
CONNECTIONS = 100
_PASSING = (RateLimited, Overloaded, StoreUnavailable, BlobsUnavailable)
"""What a repetition may get past."""
_UNAVAILABLE = (502, 504)
"""What a proxy answers for a server that is not available."""


class ServerReply(Struct, frozen=True, kw_only=True):
    """What a server answered."""

    status: int
    body: bytes
    repeated: bool
    """It was sent more than once: the server may have carried out an earlier one."""

    def read(self, kind: type[T]) -> T:
        """Read the answer as `kind`."""
        with _translate_read_errors():
            if has_own_format(kind):
                return read_json_as(msgspec.json.decode(self.body), kind)
            return msgspec.json.decode(self.body, type=kind)

    def result(self, kind: type[Request[R]]) -> R:
        """Read the answer as the result of a kind of request."""
        with _translate_read_errors():
            return read_result(kind, self.status, self.body)


@contextmanager
def _translate_read_errors() -> Iterator[None]:
    try:
        yield
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError) as error:
        raise ServerFailed(
            f"the server's answer cannot be read: {error}; is it of a newer version?"
        ) from error


class FilePart:
    """A part of a file on a server, and how much of it has been read."""

    def __init__(self, start: int, end: int | None) -> None:
        """Read from `start` to before `end`; None: to the end of the file."""
        self.start = self.reached = start
        self._end = end
        self.size: int | None = None
        """That of the whole file, once the server has answered."""
        self.digest: str | None = None

    @property
    def end(self) -> int | None:
        """Where the part ends, as far as that is known."""
        ends = [one for one in (self._end, self.size) if one is not None]
        return min(ends, default=None)

    @property
    def is_complete(self) -> bool:
        """Whether all of it has been read."""
        return self.size is not None and self.end is not None and self.reached >= self.end

    @property
    def headers(self) -> dict[str, str]:
        """What to ask for: the rest, of the same file."""
        if self.reached == 0 and self._end is None:
            return {}
        last = "" if self._end is None else str(self._end - 1)
        same = {} if self.digest is None else {"if-range": f'"{self.digest}"'}
        return {"range": f"bytes={self.reached}-{last}"} | same

    def take(self, response: httpx.Response) -> None:
        """Read which file it is, and which part of it; ServerFailed if that is another."""
        digest = response.headers.get("etag", "").strip('"')
        first, size = 0, response.headers.get("content-length", "")
        if response.status_code == PARTIAL:
            found = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
            first, size = (int(found[1]), found[2]) if found is not None else (-1, "")
        is_same = self.digest in (None, digest) and first == self.reached
        if not is_same or not size.isdigit():
            raise ServerFailed(f"{response.url} did not answer with the part that was asked for")
        self.digest, self.size = digest, int(size)


PARTIAL = 206
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", re.ASCII)


class StreamedContent(Struct, frozen=True, kw_only=True):
    """A body that is sent piece by piece."""

    data: AsyncIterable[bytes]
    media: str
    bytes: int | None = None
    """How long it is, if that is known."""
    digest: str | None = None
    """Its SHA-256 in hexadecimal, if that is known."""

    @property
    def can_repeat(self) -> bool:
        """Whether it can be read from its start again."""
        return not isinstance(self.data, AsyncIterator)

    def headers(self) -> dict[str, str]:
        """Return what announces it."""
        headers = {"content-type": self.media}
        if self.bytes is not None:
            headers["content-length"] = str(self.bytes)
        if self.digest is not None:
            base64 = b2a_base64(bytearray.fromhex(self.digest), newline=False).decode()
            headers["content-digest"] = f"sha-256=:{base64}:"
        return headers


class _Patience:
    """How long a request is repeated."""

    def __init__(self, wait: float, seconds: float) -> None:
        self._seconds = seconds
        self.limit = time.monotonic() + wait + seconds
        """When a repetition starts at the latest."""

    def renew(self) -> None:
        """Be patient from now on: there was progress."""
        self.limit = max(self.limit, time.monotonic() + self._seconds)


class _WatchedBody:
    """A body that renews the patience with every byte that no earlier try has sent."""

    def __init__(self, data: AsyncIterable[bytes], patience: _Patience) -> None:
        self._data = data
        self._patience = patience
        self._furthest = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        sent = 0
        async for piece in self._data:
            yield piece
            sent += len(piece)
            if sent > self._furthest:
                self._furthest = sent
                self._patience.renew()


class Transport:
    """Sends requests to one server, from one event loop."""

    def __init__(self, http: httpx.AsyncClient, *, patience_seconds: float) -> None:
        """Send through `http`; give up after `patience_seconds` without an answer."""
        self._http = http
        self._patience = patience_seconds

    async def send(
        self,
        method: str,
        path: str,
        *,
        query: Sequence[tuple[str, str]] = (),
        body: Any = None,
        stream: StreamedContent | None = None,
        key: str | None = None,
        expected_rev: int | None = None,
        wait: float = 0.0,
        work: float = 0.0,
    ) -> ServerReply:
        """Send a request until there is an answer; a problem is raised as the error it shows.

        `key` makes a repetition harmless; `wait` is how long the server may take on purpose, and
        `work` how long it may be busy with what it was asked to do. `stream` is a body that is sent
        piece by piece; once, unless it can be read again: the client is patient from the last
        byte on that no earlier try has sent.
        """
        name = key or mint_request()
        headers = {"x-request-id": _safe(name), "idempotency-key": name}
        if expected_rev is not None:
            headers["if-match"] = f'"{expected_rev}"'
        content: bytes | AsyncIterable[bytes] | None = None
        can_repeat = stream is None or stream.can_repeat
        patience = _Patience(wait, self._patience if can_repeat else 0.0)
        if stream is not None:
            headers |= stream.headers()
            content = _WatchedBody(stream.data, patience) if can_repeat else stream.data
        elif body is not None:
            headers["content-type"] = "application/json"
            content = _encode(body)
        request = self._http.build_request(
            method,
            path,
            params=[(word, check_text(value, word)) for word, value in query] or None,
            content=content,
            headers=headers,
            timeout=httpx.Timeout(ANSWER_SECONDS + wait + work, connect=CONNECT_SECONDS),
        )
        return await self._await_answer(request, patience, renews=work > 0)

    async def _await_answer(
        self, request: httpx.Request, patience: _Patience, *, renews: bool
    ) -> ServerReply:
        """Send a request until it is answered, or a repetition would start too late.

        `renews`: what the first try took is not counted.
        """
        tries = 0
        while True:
            tries += 1
            outcome = await self._send_once(request, repeated=tries > 1)
            if isinstance(outcome, ServerReply):
                return outcome
            if renews and tries == 1:
                patience.renew()
            pause = _choose_pause(outcome, tries)
            if time.monotonic() + pause > patience.limit:
                raise outcome
            await asyncio.sleep(pause)

    async def _send_once(
        self, request: httpx.Request, *, repeated: bool
    ) -> ServerReply | HoldfastError:
        """Send a request once; return an error that a repetition may get past."""
        try:
            response = await self._http.send(request)
        except (httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise BadData(f"cannot be sent over HTTP: {error}") from error
        except httpx.TransportError as error:
            return self._unavailable(str(error) or type(error).__name__)
        if response.is_success:
            return ServerReply(
                status=response.status_code, body=response.content, repeated=repeated
            )
        if response.status_code in _UNAVAILABLE:
            return self._unavailable(f"a proxy answers {response.status_code}")
        problem = _read_error(response)
        if isinstance(problem, _PASSING):
            return problem
        raise problem

    async def read_file(self, path: str, part: FilePart) -> AsyncIterator[bytes]:
        """Read a part of a file in pieces; where the connection breaks, continue there."""
        tries, limit = 0, time.monotonic() + self._patience
        while not part.is_complete:
            tries += 1
            try:
                async for piece in self._read_once(path, part):
                    tries, limit = 0, time.monotonic() + self._patience
                    yield piece
                # An empty file has no data, and is complete.
                if tries == 0 or part.reached == part.end:
                    continue
                outcome: HoldfastError = self._unavailable("its answers have no data")
            except httpx.TransportError as error:
                outcome = self._unavailable(str(error) or type(error).__name__)
            except _PASSING as error:
                outcome = error
            pause = _choose_pause(outcome, tries or 1)
            if time.monotonic() + pause > limit:
                raise outcome
            await asyncio.sleep(pause)

    async def _read_once(self, path: str, part: FilePart) -> AsyncIterator[bytes]:
        async with self._http.stream(
            "GET",
            path,
            headers={"accept": "*/*", "accept-encoding": "identity"} | part.headers,
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
        ) as response:
            if not response.is_success:
                await response.aread()
                if response.status_code in _UNAVAILABLE:
                    raise self._unavailable(f"a proxy answers {response.status_code}")
                raise _read_error(response)
            part.take(response)
            async for piece in response.aiter_raw():
                part.reached += len(piece)
                yield piece

    def _unavailable(self, why: str) -> ServerUnavailable:
        return ServerUnavailable(f"the server at {self._http.base_url} does not answer: {why}")


def make_headers(token: str | None, tenant: str | None) -> dict[str, str]:
    """Return the headers that identify the client; `tenant` is for a token bound to none."""
    headers = {"user-agent": f"holdfast/{__version__}", "accept": "application/json"}
    if token is not None:
        headers["authorization"] = f"Bearer {_header(token, 'the token')}"
    if tenant is not None:
        headers["holdfast-tenant"] = quote(check_text(tenant, "tenant", limit=200))
    return headers


def make_http(
    url: str, headers: dict[str, str], transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    """Make the connections to a server; nothing is sent yet."""
    return httpx.AsyncClient(
        base_url=read_url(url),
        headers=headers,
        limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
        transport=transport,
        # A token is sent to the address that it was given for, and to no other.
        follow_redirects=False,
    )


def read_url(url: str) -> str:
    """Check a server's address: `http://localhost:8000`, or `https://host/prefix`."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError as error:
        raise BadAddress(f"invalid server URL {url!r}: {error}") from error
    if not good or parts.query or parts.fragment:
        raise BadAddress(f"invalid server URL {url!r}: use http://host:port or https://host")
    if parts.username is not None or parts.password is not None:
        raise BadAddress("a server URL must not contain a password: pass the token separately")
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


def _read_error(response: httpx.Response) -> HoldfastError:
    try:
        problem = msgspec.json.decode(response.content, type=ProblemDocument)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ServerFailed(
            f"{response.url} answered {response.status_code}, but not as a Holdfast server does: "
            "check the address"
        )
    return error_of(problem, _retry_in(response))


def _retry_in(response: httpx.Response) -> float:
    text: str = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else 1.0


def _choose_pause(error: HoldfastError, tries: int) -> float:
    """Return how long to pause before the next try: as the server asks, else ever longer."""
    if isinstance(error, RateLimited):
        return error.retry_in
    longest: float = min(FIRST_PAUSE_SECONDS * 2 ** min(tries - 1, 10), LONGEST_PAUSE_SECONDS)
    return longest * (0.5 + jitter() / 2)


def _safe(name: str) -> str:
    """Return an id for the server's log, which takes only plain text."""
    return name if name.isascii() and name.isprintable() and len(name) <= 128 else mint_request()
