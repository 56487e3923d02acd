"""The duties of care: retention, quarantine, verify and repair, written once for both engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.seal import read_switches
from holdfast.ports.models import (
    Aged,
    LedgerEntry,
    Mark,
    Purgeable,
    PurgedJob,
    PurgeEntry,
    Quarantine,
    Quarantined,
)
from holdfast.stores.cursors import HIGHEST, LOWEST, NEVER
from holdfast.stores.ledger_entries import build_entries, dictionary_problems, list_named
from holdfast.stores.quarantine import REASON_LIMIT
from holdfast.stores.side_tables import (
    PURGES,
    QUEUE_EVENTS,
    QUEUES,
    cursor_problems,
    hold_problems,
    mark_problems,
    queue_problems,
    signal_problems,
    token_problems,
    upload_problems,
    webhook_problems,
)
from holdfast.stores.statements import EngineStore, Row

LEDGER_EVENTS = 8
"""Events, heartbeats or keys per job that a batch of the ledger may hold; then it ends earlier."""
FREE_BATCH = 10_000
"""Keys that one statement looks at to free those of no job: others wait meanwhile."""
_LEDGER = (
    "ledger_jobs",
    "ledger_events",
    "ledger_keys",
    "ledger_holds",
    "ledger_unclaimed",
    "ledger_quarantined",
    "ledger_purged",
)


class SharedMaintenance(EngineStore):
    """Lists what may be cleaned or purged, reads all for verify, and sets damaged jobs aside."""

    async def unmark(self, marks: Sequence[Mark]) -> None:
        """Remove marks that were seen."""
        if marks:
            await self._session.write("unmark", [mark.number for mark in marks])

    async def quarantine(self, ids: Sequence[JobId], *, reason: str) -> None:
        """Keep jobs out of claims and sweeps."""
        await self._session.set_aside(dict.fromkeys(ids, reason[:REASON_LIMIT]))
        await self.await_durable()

    async def quarantined(self, *, after: JobId | None = None, limit: int = 100) -> Quarantine:
        """List jobs that are set aside."""
        rows = await self._session.rows("quarantined", after or LOWEST, limit)
        [[total]] = await self._session.rows("count_quarantined")
        return Quarantine(
            [
                Quarantined(id=self._session.id(id_), since=since, reason=reason or "")
                for id_, since, reason in rows
            ],
            total,
        )

    async def aged(
        self, *, ended_before: int, after: JobId | None = None, look_at: int = 1000
    ) -> Aged:
        """List ended jobs that are not cleaned, among the next ones by id."""
        rows, end = await self._read_ended("aged", ended_before, after, look_at)
        return Aged(await self._session.sweep(rows), end)

    async def purgeable(
        self, *, ended_before: int, after: JobId | None = None, look_at: int = 1000
    ) -> Purgeable:
        """List ended jobs among the next ones by id."""
        rows, end = await self._read_ended("purgeable", ended_before, after, look_at)
        linked = frozenset(self._session.id(row[1]) for row in rows if row[0])
        return Purgeable(await self._session.sweep([row[1:] for row in rows]), linked, end)

    async def _read_ended(
        self, name: str, ended_before: int, after: JobId | None, look_at: int
    ) -> tuple[Sequence[Row], JobId | None]:
        """Read what ended before a time among the next jobs; also return where these end."""
        bound = await self._session.rows("aged_bound", after or LOWEST, look_at)
        end = self._session.id(bound[0][0]) if bound else None
        return await self._session.rows(name, after or LOWEST, end or HIGHEST, ended_before), end

    async def continued(self, ids: Sequence[JobId]) -> set[JobId]:
        """Return those of these jobs whose records another job may still read."""
        return {
            self._session.id(row[0]) for row in await self._session.rows("continued", list(ids))
        }

    async def purged(self, ids: Sequence[JobId]) -> list[PurgedJob | None]:
        """Read what is left of purged jobs."""
        rows = await self._session.rows("purged", list(ids))
        found = {
            (id_ := self._session.id(row[0])): PurgedJob(
                id=id_, tenant=row[1], at=row[2], actor=row[3]
            )
            for row in rows
        }
        return [found.get(id_) for id_ in ids]

    async def purges(self, *, before: int | None = None, limit: int = 100) -> list[PurgeEntry]:
        """Read the ledger of purges."""
        rows = await self._session.rows("purges", NEVER if before is None else before, limit)
        return [PURGES.read(row) for row in rows]

    async def ledger(
        self, *, after: JobId | None = None, batch: int = 500
    ) -> AsyncIterator[list[LedgerEntry]]:
        """Read every job and all its events by id, in short snapshots.

        Up to the newest id at the start: live work would otherwise keep it going for ever.
        """
        session = self._session
        low: UUID = after or LOWEST
        [[last]] = await session.rows("ledger_end", low)
        end = None if last is None else session.id(last)
        while end is not None and low < end:
            bounds = (low, batch, batch * LEDGER_EVENTS, end)
            [[bound]] = await session.rows("ledger_bound", *bounds)
            high = session.id(bound)
            yield await self._read_entries(low, high)
            low = high

    async def _read_entries(self, low: UUID, high: UUID) -> list[LedgerEntry]:
        """Read what lies between two ids: in one snapshot, so that a job that moves meanwhile
        raises no false alarm."""
        session = self._session
        parts = await session.snapshot(*((name, low, high) for name in _LEDGER), ("meta",))
        jobs, events, keys, held, unclaimed, aside, purged, meta = parts
        await session.learn(list_named(jobs, events))
        holds: dict[JobId, set[str]] = {}
        for id_, hold in held:
            holds.setdefault(session.id(id_), set()).add(hold)
        return build_entries(
            jobs,
            events,
            keys,
            session,
            switches=read_switches(dict(map(tuple, meta)).get("sealing_log")),
            holds=holds,
            unclaimed={session.id(row[0]) for row in unclaimed},
            quarantined={session.id(row[0]): row[1] for row in aside},
            purged={session.id(row[0]) for row in purged},
        )

    async def dictionary_problems(self) -> list[str]:
        """Describe the policies and needs that do not match their key."""
        return dictionary_problems(await self._session.rows("dictionary"))

    async def side_problems(self) -> list[str]:
        """Describe what is wrong beside the ledger."""
        rows = self._session.rows
        # The cursors first: the tail's end only moves on.
        cursors = await rows("all_cursors")
        queues = [QUEUES.read(row) for row in await rows("queues")]
        log = [QUEUE_EVENTS.read(row) for row in await rows("queue_events", None)]
        marks = [(number, self._session.id(id_)) for number, id_ in await rows("stray_marks")]
        return [
            *queue_problems(queues, log),
            *mark_problems(marks),
            *hold_problems((self._session.id(row[0]), row[1]) for row in await rows("stray_holds")),
            *signal_problems(self._session.id(row[0]) for row in await rows("stray_signals")),
            *token_problems(await rows("all_tokens")),
            *webhook_problems(await rows("all_webhooks")),
            *upload_problems(await rows("all_uploads"), await rows("stray_uploads")),
            *cursor_problems(cursors, await self.tail_end(), self._read_cursor),
        ]

    async def erase_bodies(self, ids: Sequence[JobId]) -> int:
        """Erase bodies of jobs that are being cleaned, and their logs."""
        await self._session.write("erase_logs", list(ids))
        return len(await self._session.write("erase_bodies", list(ids)))

    async def drop_beats(self, *, before: int, limit: int = 10_000) -> int:
        """Drop old heartbeats."""
        return len(await self._session.write("drop_beats", before, limit))

    async def free_stray_keys(self) -> int:
        """Free the keys of no job, batch by batch: others may wait for the lock meanwhile."""
        total = 0
        low: UUID = LOWEST
        while True:
            bound = await self._session.rows("stray_keys_bound", low, FREE_BATCH)
            high = self._session.id(bound[0][0]) if bound else HIGHEST
            total += len(await self._session.write("free_stray_keys", low, high))
            if not bound:
                break
            low = high
        await self._session.write("drop_stray_signals")
        await self._session.write("drop_stray_holds")
        return total
