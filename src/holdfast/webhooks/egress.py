"""Requests to addresses that users choose: only to public ones, also not through a redirect.

A name is resolved once for each request, all its addresses are checked, and the connection goes to
one of these addresses: a name that resolves to another one a moment later (rebinding) has no
effect. Redirects are not followed, and proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from socket import SOCK_STREAM
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

from msgspec import Struct

from holdfast.errors import AddressBlocked, BadData, Undelivered

log = logging.getLogger(__name__)

Ip: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
Resolve: TypeAlias = Callable[[str, int], Awaitable[list[str]]]

URL_LIMIT = 2000
TIMEOUT_SECONDS = 10.0
LINE_LIMIT = 8192
HEADERS_LIMIT = 200
"""How many lines of headers are read from an answer."""
INTERIM_LIMIT = 5
"""Answers such as `103 Early Hints` that may come before the one that counts."""
_PORTS = {"http": 80, "https": 443}
_NUMERIC = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+))*\.?")
"""A host that resolvers read as an IPv4 address in one of its old notations: 127.1, 0x7f000001."""

# Our own list, not what `ipaddress` calls global: that changes with Python's patch releases, and
# 3.11's calls 192.0.0.8 and 3fff::/20 global. By the IANA special-purpose address registries.
NOT_PUBLIC_V4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared, behind a carrier's NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, with the metadata services of clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments, the anycast addresses in it included
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4, withdrawn
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, with the broadcast address
    )
)
PUBLIC_V6 = IPv6Network("2000::/3")
"""Global unicast. All other IPv6 is not public: loopback, unique local fc00::/7, link-local
fe80::/10, site-local fec0::/10, multicast ff00::/8, segment routing 5f00::/16, discard 100::/64."""
NOT_PUBLIC_V6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which leads to any IPv4 address
        "3fff::/20",  # documentation
    )
)
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
"""What a resolver on an IPv6-only network answers for names that have IPv4 addresses alone."""


class Target(Struct, frozen=True, kw_only=True):
    """Where a request goes."""

    scheme: str
    host: str
    port: int
    path: str
    """With its query."""

    @property
    def authority(self) -> str:
        """The `Host` of the request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


class Reply(Struct, frozen=True):
    """What an address answered: no more than this is read."""

    status: int
    retry_after_seconds: float | None = None


class WholeReply(Struct, frozen=True):
    """The whole answer of an address."""

    status: int
    body: bytes


async def call(
    url: str, headers: Mapping[str, str], body: bytes, *, limit_bytes: int
) -> WholeReply:
    """Send a body to an address that the operator chose, public or not, and read the answer.

    Redirects are not followed. Undelivered if no answer came, or one of more than `limit_bytes`.
    The caller sets a time limit.
    """
    target = read_target(url)
    try:
        reader, writer = await asyncio.open_connection(
            target.host,
            target.port,
            limit=LINE_LIMIT,
            ssl=ssl.create_default_context() if target.scheme == "https" else None,
        )
        try:
            writer.write(_write_request(target, headers, body))
            await writer.drain()
            return await _read_answer(reader, limit_bytes)
        finally:
            writer.transport.abort()
    except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
        raise Undelivered(
            f"{target.host} could not be reached: {_describe_failure(error)}"
        ) from error


def read_target(url: str) -> Target:
    """Read an http or https URL; BadData describes what is wrong with it."""
    if not url or len(url) > URL_LIMIT:
        raise BadData(f"a url must have 1 to {URL_LIMIT} characters")
    # No blanks, no control characters: they would end up in the request's own lines.
    if not all("!" <= character <= "~" for character in url) or "\\" in url:
        raise BadData("a url must be printable ASCII without blanks; write other names as punycode")
    parts = _split_url(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise BadData("a url must start with http:// or https:// and name a host")
    if "@" in parts.netloc:
        raise BadData("a url must have no user or password: lists of webhooks would show them")
    if _NUMERIC.fullmatch(parts.hostname) and not _is_dotted(parts.hostname):
        raise BadData("a url's address must be four decimal numbers: 192.0.2.7")
    if parts.fragment:
        raise BadData("a url must have no fragment; it would not be sent")
    return Target(
        scheme=parts.scheme,
        host=parts.hostname,
        port=parts.port or _PORTS[parts.scheme],
        path=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
    )


def _is_dotted(host: str) -> bool:
    try:
        IPv4Address(host)
    except ValueError:
        return False
    return True


def _split_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        if parts.port == 0:
            raise BadData("a url's port must not be 0")
    except ValueError as error:
        raise BadData(f"invalid url: {error}") from error
    return parts


def read_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Read networks such as `10.0.0.0/8`."""
    try:
        return tuple(ip_network(text) for text in texts)
    except ValueError as error:
        raise BadData(f"invalid network: {error}") from error


def is_public(address: Ip) -> bool:
    """Return whether an address is public: not of this machine, a local network, or reserved."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in NOT_PUBLIC_V4)
    if address in _MAPPED or address in _NAT64:
        # It leads to the IPv4 address in its last bits.
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    return address in PUBLIC_V6 and not any(address in network for network in NOT_PUBLIC_V6)


class Outside:
    """Sends requests out."""

    def __init__(
        self,
        *,
        allow: Sequence[Network] = (),
        timeout_seconds: float = TIMEOUT_SECONDS,
        resolve: Resolve | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        """Also allow these networks, although they are not public.

        `resolve` finds the addresses of a name, `context` has the certificates to trust.
        """
        self._allow = tuple(allow)
        self._timeout = timeout_seconds
        self._resolve = resolve or _resolve
        self._context = context

    def check(self, url: str) -> Target:
        """Refuse a url that names an internal address; names are checked when they are resolved."""
        target = read_target(url)
        if target.host == "localhost" or target.host.endswith(".localhost"):
            self._check_public(target, [IPv4Address("127.0.0.1")])
            return target
        try:
            address = ip_address(target.host)
        except ValueError:
            return target
        self._check_public(target, [address])
        return target

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Send a body and read the answer's status.

        AddressBlocked if the address is not public, Undelivered if no answer came.
        """
        target = read_target(url)
        try:
            async with asyncio.timeout(self._timeout):
                address = await self._resolve_address(target)
                return await self._exchange(target, address, _write_request(target, headers, body))
        except TimeoutError as error:
            raise Undelivered(f"{target.host} did not answer within {self._timeout:g} s") from error
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise Undelivered(
                f"{target.host} could not be reached: {_describe_failure(error)}"
            ) from error

    async def _resolve_address(self, target: Target) -> Ip:
        found = [_read_ip(text) for text in await self._resolve(target.host, target.port)]
        if not found:
            raise Undelivered(f"{target.host} has no address")
        self._check_public(target, found)
        return found[0]

    def _check_public(self, target: Target, addresses: Sequence[Ip]) -> None:
        """Refuse all if one is internal: a name that has both is suspicious."""
        for address in addresses:
            if not is_public(address) and not any(address in network for network in self._allow):
                # For the operator alone: a user must not learn what a name resolves to inside.
                log.warning("blocked: %s resolves to %s, which is not public", target.host, address)
                raise AddressBlocked(
                    f"{target.host} is not public, or resolves to an address that is not; the "
                    "operator of the server can allow a network with --webhooks-allow"
                )

    async def _exchange(self, target: Target, address: Ip, request: bytes) -> Reply:
        secure = target.scheme == "https"
        reader, writer = await asyncio.open_connection(
            str(address),
            target.port,
            limit=LINE_LIMIT,
            ssl=(self._context or ssl.create_default_context()) if secure else None,
            # The certificate is the name's, though the connection goes to its address.
            server_hostname=target.host if secure else None,
        )
        try:
            writer.write(request)
            await writer.drain()
            return await _read_reply(reader)
        finally:
            # Not closed in order: the other side could delay that.
            writer.transport.abort()


def _describe_failure(error: Exception) -> str:
    """Return why, without the address that was called: an OSError names it."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return type(error).__name__ if isinstance(error, OSError | EOFError) else str(error)


async def _resolve(host: str, port: int) -> list[str]:
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def _read_ip(text: str) -> Ip:
    # A zone names an interface of this machine; what has one is link-local, and refused as such.
    return ip_address(text.partition("%")[0])


def _write_request(target: Target, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [
        f"POST {target.path} HTTP/1.1",
        f"Host: {target.authority}",
        *(f"{name}: {value}" for name, value in headers.items()),
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


async def _read_reply(reader: asyncio.StreamReader) -> Reply:
    for _ in range(INTERIM_LIMIT):
        status = _read_status(await reader.readuntil(b"\n"))
        headers = await _read_headers(reader)
        if status >= 200:
            return Reply(status, _seconds(headers.get("retry-after", "")))
    raise ValueError("only interim answers")


async def _read_answer(reader: asyncio.StreamReader, limit_bytes: int) -> WholeReply:
    for _ in range(INTERIM_LIMIT):
        status = _read_status(await reader.readuntil(b"\n"))
        headers = await _read_headers(reader)
        if status < 200:
            continue
        length = headers.get("content-length", "")
        if "transfer-encoding" in headers or not length.isdigit() or len(length) > 9:
            raise ValueError("the answer has no content-length")
        if int(length) > limit_bytes:
            raise ValueError(f"the answer has {int(length):,} bytes; the limit is {limit_bytes:,}")
        return WholeReply(status, await reader.readexactly(int(length)))
    raise ValueError("only interim answers")


def _read_status(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or not code.isdigit() or len(code) != 3:
        raise ValueError("the answer is not HTTP")
    return int(code)


async def _read_headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(HEADERS_LIMIT):
        line = (await reader.readuntil(b"\n")).strip()
        if not line:
            return headers
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    raise ValueError(f"more than {HEADERS_LIMIT} headers")


def _seconds(text: str) -> float | None:
    """Read a `Retry-After` in seconds; one that is a date is left to the backoff."""
    return float(text) if text.isascii() and text.isdigit() and len(text) < 7 else None
