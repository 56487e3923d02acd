"""Wake-up: NOTIFY as a hint, once per batch and queue and outside the hot transaction; LISTEN on a
connection of its own. Losing either costs latency, never work: callers also poll."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import asyncpg

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
        self._waiters: dict[asyncio.Event, frozenset[str]] = {}
        self._outbox: set[str] = set()
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._sender: Any = None
        self.number = 0
        """The number of the last hint."""
        self._hints: dict[str, int] = {}
        self._forgotten = 0
        """The number of the last hint whose queue is not remembered."""
        self._live = False
        self._live_since = 0.0
        self._heard = False
        self._asked_at = float("-inf")

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

    def hint(self, queues: Iterable[str]) -> None:
        """Send the hint that there may be work. Returns at once; hints gather while one is sent."""
        names = set(queues)
        self._wake_waiters(names)
        if self._hosts is None:
            return
        self._outbox |= names
        if self._outbox and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send_hints())

    async def wait(self, queues: Sequence[str], limit_seconds: float, *, since: int) -> bool:
        """Wait for a hint about one of these queues that is newer than number `since`."""
        if any(self._hints.get(queue, self._forgotten) > since for queue in queues):
            return True
        if self._hosts is not None and (self._listening is None or self._listening.done()):
            self._listening = asyncio.create_task(self._listen())
        event = asyncio.Event()
        self._waiters[event] = frozenset(queues)
        sure = self._live and _now() - self._live_since > 2 * ASK_SECONDS
        try:
            await asyncio.wait_for(
                event.wait(), limit_seconds if sure else min(limit_seconds, POLL_SECONDS)
            )
        except TimeoutError:
            # No hint could have arrived: there may be work, so the caller has to look.
            return not sure
        finally:
            del self._waiters[event]
        return True

    def _wake_waiters(self, queues: set[str]) -> None:
        self.number += 1
        if len(self._hints) >= QUEUES_LIMIT:
            self._hints.clear()
            self._forgotten = self.number
        self._hints.update(dict.fromkeys(queues, self.number))
        for event, wanted in self._waiters.items():
            if wanted & queues:
                event.set()

    async def _send_hints(self) -> None:
        while self._outbox:
            names, self._outbox = self._outbox, set()
            try:
                if self._sender is None or self._sender.is_closed():
                    self._sender = await self._connect({"synchronous_commit": "off"})
                if await self._has_listeners():
                    await self._sender.execute(_notices(self._channel, names))
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
                self._wake_waiters({name for wanted in self._waiters.values() for name in wanted})
                await asyncio.sleep(POLL_SECONDS)

    async def _listen_once(self) -> None:
        assert self._hosts is not None
        connection = await self._connect({"application_name": self._listener})
        try:
            await connection.add_listener(
                self._channel, lambda *args: self._wake_waiters({args[3]})
            )
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


def _notices(channel: str, queues: Iterable[str]) -> str:
    """Name all queues in one message to the server: what takes parameters would take two."""
    quoted = (name.replace("'", "''") for name in queues)
    return "; ".join(f"NOTIFY \"{channel}\", '{name}'" for name in quoted)


def _now() -> float:
    return asyncio.get_running_loop().time()
