"""Who a request comes from: by its token, or because it comes from this machine."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from functools import lru_cache
from hmac import compare_digest
from ipaddress import ip_address
from math import inf
from urllib.parse import urlsplit

from msgspec import Struct
from starlette.datastructures import Headers

from holdfast.auth.authorization import LOCAL, Caller, TokenRole
from holdfast.auth.tokens import split_token
from holdfast.errors import Forbidden, NoTokens, Unauthorized
from holdfast.http.request import Authenticator
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Token
from holdfast.ports.store import Store

FRESH_SECONDS = 2.0
"""How long a token is not read again: a revocation takes effect within that time."""
KNOWN_LIMIT = 10_000
"""How many tokens a server remembers at once."""
_NO_DIGEST = bytes(32)
_LOCAL_CALLER = Caller(name=LOCAL, token=LOCAL, role=TokenRole.ADMIN, tenant=None)
_HOW = "`holdfast token create NAME --role admin` makes one"

_HOST = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[0-9a-zA-Z.-]+)(?::[0-9]{1,5})?")
"""What a Host header may be: a name or an address, and a port; no user, path or fragment."""
_FOREIGN_SITES = frozenset({"cross-site", "same-site"})
_FORWARDED = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-server",
    "x-real-ip",
)
"""What a proxy adds: a client behind it need not be on this machine."""
_SUSPECT = frozenset(name.encode() for name in ("origin", "sec-fetch-site", *_FORWARDED))
"""The headers by which a request is refused; those of most programs have none of them."""

Monotonic = Callable[[], float]


def make_authenticator(store: Store, host: str) -> Authenticator:
    """Choose how a server that listens on `host` authenticates its callers."""
    tokens = TokenAuthenticator(store)
    return LocalAuthenticator(store, tokens) if is_loopback(host) else tokens


async def check_exposure(store: Store, host: str) -> None:
    """Refuse to listen beyond this machine while the store, which is open, has no token."""
    if not is_loopback(host) and not await store.tokens(limit=1):
        raise NoTokens(
            f"a server on {host!r} can be reached from other machines, and the store has no token "
            f"to authenticate callers: {_HOW}; or listen on 127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        # A name may resolve to any address.
        return False


class TokenAuthenticator:
    """Admits callers with a token that the store knows."""

    def __init__(
        self,
        store: Store,
        *,
        fresh_seconds: float = FRESH_SECONDS,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        """Read tokens from `store`, which is open by the time of the first request."""
        self._lookups = _Lookups(store, monotonic)
        self._known: dict[str, _Known] = {}
        self._fresh_seconds = fresh_seconds
        self._monotonic = monotonic

    async def caller(self, headers: Headers) -> Caller:
        """Return whose token this is; Unauthorized if it is not valid."""
        id_, digest = _read_token(headers)
        known = await self._look_up(id_)
        # An unknown token is compared, too: a known id takes no longer than another.
        same = compare_digest(digest, _NO_DIGEST if known is None else known.digest)
        if known is None or not same:
            raise Unauthorized("no such token")
        if known.refused is not None:
            raise Unauthorized(known.refused)
        if known.ends <= self._monotonic():
            raise Unauthorized("this token has expired")
        return known.caller

    async def _look_up(self, id_: str) -> _Known | None:
        known = self._known.get(id_)
        if known is not None and self._monotonic() - known.asked < self._fresh_seconds:
            return known
        found = await self._lookups.look_up(id_)
        if found is None:
            # Not remembered: made-up ids would fill the memory, and a new token is valid at once.
            self._known.pop(id_, None)
        else:
            if len(self._known) >= KNOWN_LIMIT:
                self._known.clear()
            self._known[id_] = found
        return found


class LocalAuthenticator:
    """Admits programs on this machine, as an admin, until the store has its first token."""

    def __init__(
        self, store: Store, tokens: TokenAuthenticator, *, fresh_seconds: float = FRESH_SECONDS
    ) -> None:
        """Use `tokens` once there are any."""
        self._store = store
        self._tokens = tokens
        self._fresh_seconds = fresh_seconds
        self._asked = -inf
        self._closed = False

    async def caller(self, headers: Headers) -> Caller:
        """Return the caller: without a token, a program on this machine."""
        if "authorization" in headers or await self._has_tokens():
            return await self._tokens.caller(headers)
        _check_local(headers)
        return _LOCAL_CALLER

    async def _has_tokens(self) -> bool:
        """Return whether a token was ever made, also if it was revoked since."""
        now = time.monotonic()
        if not self._closed and now - self._asked >= self._fresh_seconds:
            self._closed = bool(await self._store.tokens(limit=1))
            self._asked = now
        return self._closed


class _Known(Struct, frozen=True, kw_only=True):
    """A token as the store had it."""

    digest: bytes
    caller: Caller
    refused: str | None
    """Why it is not valid, if it never will be again."""
    asked: float
    ends: float


class _Lookups:
    """Reads tokens from the store, one read at a time; those asked for meanwhile join the next.

    So a client that makes ids up costs the store no more than that.
    """

    def __init__(self, store: Store, monotonic: Monotonic) -> None:
        self._store = store
        self._monotonic = monotonic
        self._waiting: dict[str, asyncio.Future[_Known | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def look_up(self, id_: str) -> _Known | None:
        """Read a token as it is now."""
        found = self._waiting.get(id_)
        if found is None:
            found = self._waiting[id_] = asyncio.get_running_loop().create_future()
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_on())
        # A cancelled caller leaves the read to the others.
        return await asyncio.shield(found)

    async def _ask_on(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, {}
                await self._ask(waiting)
        finally:
            self._asking = None

    async def _ask(self, waiting: dict[str, asyncio.Future[_Known | None]]) -> None:
        try:
            found = await self._read(list(waiting))
        except Exception as error:  # noqa: BLE001  a loop's edge: each caller gets it
            for future in waiting.values():
                future.set_exception(error)
                future.exception()  # retrieved, even if its caller is gone
        else:
            for future, known in zip(waiting.values(), found, strict=True):
                future.set_result(known)

    async def _read(self, ids: list[str]) -> list[_Known | None]:
        # From before the clock is read: a slow reply must not stretch a token's life.
        asked = self._monotonic()
        now = (await self._store.clock()).now
        found = await self._store.look_up_tokens(ids)
        return [None if token is None else _make_known(token, asked, now) for token in found]


def _make_known(token: Token, asked: float, now: int) -> _Known:
    refused = None if token.revoked_at is None else "this token was revoked"
    if token.role not in list(TokenRole):
        refused = refused or f"this version does not know role {token.role!r}"
    return _Known(
        digest=token.digest,
        caller=Caller(
            token=token.id,
            name=f"{token.name}/{token.id}",
            role=TokenRole.VIEWER if refused else TokenRole(token.role),
            tenant=token.tenant,
            queues=None if token.queues is None else frozenset(token.queues),
        ),
        refused=refused,
        asked=asked,
        ends=inf if token.expires_at is None else asked + (token.expires_at - now) / SECOND,
    )


def _read_token(headers: Headers) -> tuple[str, bytes]:
    """Return the id and the secret's digest of a request's token."""
    header = headers.get("authorization")
    if header is None:
        raise Unauthorized("authentication required: send `Authorization: Bearer <token>`")
    scheme, _, text = header.partition(" ")
    token = split_token(text.strip()) if scheme.lower() == "bearer" else None
    if token is None:
        raise Unauthorized("no such token")
    return token


def _check_local(headers: Headers) -> None:
    """Refuse what others made a browser or a proxy of this machine send.

    Such a request comes from this machine, too, and no program on it meant to send it: a page of
    another origin (other ports of this machine among them), a name that was rebound to loopback,
    or a proxy that serves the network.
    """
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not _is_local(hosts[0]):
        raise _not_local_error(
            "the Host header must name this machine (127.0.0.1, ::1 or localhost)"
        )
    if _SUSPECT.isdisjoint(name for name, _ in headers.raw):
        return
    if any(origin != f"http://{hosts[0]}" for origin in headers.getlist("origin")):
        raise _not_local_error("the request comes from a page of another origin")
    if any(site.lower() in _FOREIGN_SITES for site in headers.getlist("sec-fetch-site")):
        raise _not_local_error("the request comes from a page of another origin")
    if any(name in headers for name in _FORWARDED):
        raise _not_local_error("the request was forwarded by a proxy")


def _not_local_error(why: str) -> Forbidden:
    return Forbidden(
        f"{why}; while there are no tokens, the server answers only programs on its own machine. "
        f"To admit others: {_HOW}"
    )


@lru_cache(maxsize=1024)
def _is_local(host: str) -> bool:
    """Check a Host header, once: the same names come with every request."""
    if _HOST.fullmatch(host) is None:
        return False
    return is_loopback(urlsplit(f"//{host}").hostname or "")
