"""An address with several hosts: each gets its share of the time, the last that worked goes first.

The driver takes the hosts in their order under one time limit. A primary that hangs (it accepts a
connection and never answers) would use it all up at each try, and nobody would reach the standby
that was promoted in its place. Own to PostgreSQL: a file has no address.
"""

from __future__ import annotations

from typing import Any, TypeAlias
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit
from weakref import WeakKeyDictionary

import asyncpg

Connection: TypeAlias = Any

UNREACHABLE = (
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InterfaceError,
    # It is not what target_session_attrs asks for, or the connection ended in the middle.
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""What makes the next host be tried. Not a wrong password: the next host has the same."""


class Hosts:
    """The servers of one address, and which of them to try first."""

    def __init__(self, url: str) -> None:
        self._urls = split_url(url)
        self._first = 0
        self._numbers: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()
        self._asked = dict(parse_qsl(urlsplit(url).query)).get("target_session_attrs")

    @property
    def several(self) -> bool:
        """Whether there is a choice."""
        return len(self._urls) > 1

    async def connect(
        self, *, limit_seconds: float, writable: bool = True, **options: Any
    ) -> Connection:
        """Connect to the first host that answers in its share of the time and fits.

        `writable` demands a primary, or what the address demands by target_session_attrs: a standby
        would answer reads with what was true a moment ago.
        """
        if writable:
            options["target_session_attrs"] = (
                "read-write" if self._asked == "read-write" else "primary"
            )
        share = limit_seconds / len(self._urls)
        errors: list[BaseException] = []
        for number in self._order():
            try:
                connection = await asyncpg.connect(self._urls[number], timeout=share, **options)
            except UNREACHABLE as error:
                errors.append(error)
            else:
                self._first = self._numbers[connection] = number
                return connection
        raise errors[0] if len(errors) == 1 else ConnectionError(self._describe_errors(errors))

    def note_failure(self, connection: Connection, error: BaseException) -> None:
        """Start with the next host where this one hung or does not write any more.

        Not where a connection was merely cut: if its host is away, the next try learns that at
        once, and else it is still the one that last worked.
        """
        if not isinstance(error, TimeoutError | asyncpg.ReadOnlySQLTransactionError):
            return
        if self._numbers.get(connection) == self._first:
            self._first = (self._first + 1) % len(self._urls)

    def _order(self) -> list[int]:
        count = len(self._urls)
        return [(self._first + step) % count for step in range(count)]

    def _describe_errors(self, errors: list[BaseException]) -> str:
        hosts = [urlsplit(self._urls[number]).netloc.rpartition("@")[2] for number in self._order()]
        return "; ".join(
            f"{host}: {str(error) or type(error).__name__}"
            for host, error in zip(hosts, errors, strict=True)
        )


def split_url(url: str) -> list[str]:
    """Split an address with several hosts into addresses with one each."""
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if "," in hosts:
        return [urlunsplit(parts._replace(netloc=f"{user}{at}{host}")) for host in hosts.split(",")]
    return [url] if hosts else _split_query_url(parts)


def _split_query_url(parts: SplitResult) -> list[str]:
    """Split `postgresql:///jobs?host=a,b&port=1,2`, the other way to write it."""
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    hosts, ports = given.get("host", "").split(","), given.get("port", "").split(",")
    if len(hosts) == 1:
        return [f"{parts.scheme}://{parts.path}" + (f"?{parts.query}" if parts.query else "")]
    if len(ports) == 1:
        ports *= len(hosts)
    made = []
    for host, port in zip(hosts, ports, strict=True):
        query = given | {"host": host} | ({"port": port} if port else {})
        made.append(f"{parts.scheme}://{parts.path}?{urlencode(query)}")
    return made
