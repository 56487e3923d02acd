"""Wake-up: NOTIFY as a hint, once per batch and queue; LISTEN on a connection of its own.

A hint goes with the transaction of a submit that comes alone, and by itself behind a burst. Losing
one costs latency, never work: callers also poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import asyncpg
from msgspec import Struct

from holdfast.stores.claim_ranges import Range
from holdfast.stores.postgres.hosts import Hosts
from holdfast.stores.postgres.schema import DEFAULT_SCHEMA, channel, listener_name

ASK_SECONDS = 0.2
"""How long no hint is sent, after no listener was found."""
TRUST_SECONDS = 10.0
"""How long hints are sent to listeners that were found, before they are looked for again."""
PING_SECONDS = 10.0
"""How often a silent LISTEN connection is asked whether it still lives."""
ANSWER_SECONDS = 5.0
"""How long a connection may take to come about, or to answer, before it counts as lost."""
FAREWELL_SECONDS = 1.0
"""How long a hint that is on its way may delay a close."""
POLL_SECONDS = 0.25
"""How long a waiter sleeps where nothing can wake it (a pooler without a direct address)."""
_LOST = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


QUEUES_LIMIT = 5000
"""Queues of which the last hint is remembered: submitters choose the names."""
CARRY_REST = 8
"""After a transaction that carried a hint, none does so for this many times as long as it took.

Such commits, of all databases of a server, wait for each other until the disk or the standby has
them. So a process takes part for a ninth of its time, and for less where many others do.
"""


HINTS_KNOWN = 16
"""Hints of which the ranges are remembered, the latest: more come only with more work than that."""
_SEPARATOR = "\x1f"
_RANGE = re.compile(r"(-?\d{1,19})\x1f(\d{1,4})\x1f(.*)", re.DOTALL | re.ASCII)
"""A notice that names a range: its lane, the length of the queue's name, and both names."""


class CarriedHint(Struct):
    """A hint that goes with a transaction: the server sends it at the commit, and not without."""

    channel: str
    notices: list[str]
    carried_at: float
    is_sent: bool = False
    """Whether a transaction with it was committed."""


class WakeUp:
    """Sends and receives the hint "there may be work in this queue"."""

    def __init__(
        self,
        url: str | None,
        *,
        schema: str = DEFAULT_SCHEMA,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """Listen at `url`; None means that only this process's own hints arrive."""
        self._hosts = None if url is None else Hosts(url)
        self._answer_seconds = answer_seconds
        self._channel = channel(schema)
        self._listener = listener_name(schema)
        self._waiters: dict[asyncio.Future[bool], frozenset[str]] = {}
        self._outbox: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._sender: Any = None
        self.number = 0
        """The number of the last hint."""
        self._hints: dict[str, int] = {}
        self._latest: deque[tuple[int, frozenset[str], Range | None]] = deque(maxlen=HINTS_KNOWN)
        self._forgotten = 0
        """The number of the last hint whose queue is not remembered."""
        self._live = False
        self._live_since = 0.0
        self._heard = False
        self._asked_at = -inf
        self._carries_at = -inf
        """When the next transaction may carry a hint."""

    async def close(self) -> None:
        """Close both connections, once a hint that is on its way has gone out."""
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=FAREWELL_SECONDS)
        for task in (self._sending, self._listening):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._drop_sender()

    def carry(self, queues: Iterable[str], only: Range | None = None) -> CarriedHint | None:
        """Return the hint for a transaction to carry; None where it must go by itself.

        It saves a round trip, and a commit. After the transaction it must be given to
        `note_carried`, also if that failed, and else to `hint`.
        """
        now = _now()
        # While nobody is known to listen, `hint` looks for listeners.
        trusted = self._heard and now - self._asked_at <= TRUST_SECONDS
        if self._hosts is None or not trusted or now < self._carries_at:
            return None
        # None beside it, however long it stalls.
        self._carries_at = inf
        return CarriedHint(self._channel, _write_notices(queues, only), now)

    def note_carried(self, carried: CarriedHint | None) -> None:
        """Take note that the transaction with a hint has ended, however it did."""
        if carried is not None:
            self._carries_at = _now() + CARRY_REST * (_now() - carried.carried_at)

    def hint(
        self,
        queues: Iterable[str],
        carried: CarriedHint | None = None,
        *,
        only: Range | None = None,
    ) -> None:
        """Send the hint that there may be work. Returns at once; hints gather while one is sent.

        `carried`: by a transaction that may have sent it already. `only`: all of it is there.
        """
        names = frozenset(queues)
        self._wake_waiters(names, only)
        if self._hosts is None or (carried is not None and carried.is_sent):
            return
        self._outbox.update(_write_notices(names, only))
        if self._outbox and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send_hints())

    async def wait(self, queues: Sequence[str], limit_seconds: float, *, since: int) -> bool:
        """Wait for a hint about one of these queues that is newer than number `since`."""
        if any(self._hints.get(queue, self._forgotten) > since for queue in queues):
            return True
        if self._hosts is not None and (self._listening is None or self._listening.done()):
            self._listening = asyncio.create_task(self._listen())
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters[waiter] = frozenset(queues)
        sure = self._live and _now() - self._live_since > 2 * ASK_SECONDS
        limit = limit_seconds if sure else min(limit_seconds, POLL_SECONDS)
        # Where no hint could have arrived there may be work, so the caller has to look.
        timer = loop.call_later(limit, _settle, waiter, not sure)
        try:
            return await waiter
        finally:
            timer.cancel()
            del self._waiters[waiter]

    def find_range(self, queues: Sequence[str], since: int) -> Range | None:
        """Return the one range that all hints about these queues since a number have named."""
        if self.number - since > len(self._latest):
            return None
        found = {
            only
            for number, hinted, only in self._latest
            if number > since and not hinted.isdisjoint(queues)
        }
        return found.pop() if len(found) == 1 else None

    def _hear(self, notice: str) -> None:
        queue, only = _read_notice(notice)
        self._wake_waiters(frozenset([queue]), only)

    def _wake_waiters(self, queues: frozenset[str], only: Range | None = None) -> None:
        self.number += 1
        self._latest.append((self.number, queues, only))
        if len(self._hints) >= QUEUES_LIMIT:
            self._hints.clear()
            self._forgotten = self.number
        self._hints.update(dict.fromkeys(queues, self.number))
        for waiter, wanted in self._waiters.items():
            if wanted & queues:
                _settle(waiter, True)

    async def _send_hints(self) -> None:
        while self._outbox:
            notices, self._outbox = self._outbox, set()
            try:
                if self._sender is None or self._sender.is_closed():
                    self._sender = await self._connect({"synchronous_commit": "off"})
                if await self._has_listeners():
                    await self._sender.execute(_notify_sql(self._channel, notices))
            except _LOST as error:
                # A lost hint costs one polling interval.
                if self._sender is not None and self._hosts is not None:
                    self._hosts.note_failure(self._sender, error)
                self._drop_sender()
                return

    def _drop_sender(self) -> None:
        if self._sender is not None:
            self._sender.terminate()
            self._sender = None

    async def _has_listeners(self) -> bool:
        """Return whether anyone listens, asked now and then: a hint doubles the cost of one submit.

        A new listener polls for twice as long as no hint is sent, and so misses nothing.
        """
        if _now() - self._asked_at > (TRUST_SECONDS if self._heard else ASK_SECONDS):
            self._asked_at = _now()
            self._heard = await self._sender.fetchval(
                "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE application_name = $1 "
                "AND datname = current_database())",
                self._listener,
            )
        return self._heard

    async def _connect(self, settings: dict[str, str]) -> Any:
        assert self._hosts is not None
        # A standby takes neither LISTEN nor NOTIFY.
        return await self._hosts.connect(
            limit_seconds=self._answer_seconds,
            server_settings={"standard_conforming_strings": "on", **settings},
            statement_cache_size=0,
            command_timeout=self._answer_seconds,
        )

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_once()
            except _LOST:
                self._live = False
                # Those who wait must look for themselves until the connection is back.
                self._wake_waiters(frozenset().union(*self._waiters.values()))
                await asyncio.sleep(POLL_SECONDS)

    async def _listen_once(self) -> None:
        assert self._hosts is not None
        connection = await self._connect({"application_name": self._listener})
        try:
            await connection.add_listener(self._channel, lambda *args: self._hear(args[3]))
            self._live, self._live_since = True, _now()
            while True:
                await asyncio.sleep(PING_SECONDS)
                # A half-open connection stays silent for ever; a question finds it out.
                await connection.execute("SELECT 1")
        except _LOST as error:
            self._hosts.note_failure(connection, error)
            raise
        finally:
            self._live = False
            connection.terminate()


def _settle(waiter: asyncio.Future[bool], woken: bool) -> None:
    if not waiter.done():
        waiter.set_result(woken)


def _write_notices(queues: Iterable[str], only: Range | None) -> list[str]:
    """Return a notice for each queue; one that names the range where there is only one."""
    if only is None:
        return [f"{_SEPARATOR}{queue}" for queue in queues]
    # By length: any character but NUL can be part of a name.
    return [f"{only.lane}{_SEPARATOR}{len(only.queue)}{_SEPARATOR}{only.queue}{only.route}"]


def _read_notice(notice: str) -> tuple[str, Range | None]:
    """Return the queue of a notice, and the range if it names one; others may write notices too."""
    found = _RANGE.fullmatch(notice)
    if found is None or abs(int(found[1])) >= 2**63:
        # The schema's own function sends the name of the queue alone.
        return notice.removeprefix(_SEPARATOR), None
    length, names = int(found[2]), found[3]
    return names[:length], Range(names[:length], names[length:], int(found[1]))


def _notify_sql(channel: str, notices: Iterable[str]) -> str:
    """Send all notices in one message to the server: what takes parameters would take two."""
    quoted = (notice.replace("'", "''") for notice in notices)
    return "; ".join(f"NOTIFY \"{channel}\", '{notice}'" for notice in quoted)


def _now() -> float:
    return asyncio.get_running_loop().time()
