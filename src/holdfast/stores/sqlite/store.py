"""The store on SQLite: the port's duties, each a function on the writer's thread or a reader's.

differs from postgres: what writes is done by the one writer of the file, in the order of coming.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from holdfast.errors import JobUnreadable, LawBroken
from holdfast.lifecycle.alike import AlikeJobs
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.plan import PlannedEnd
from holdfast.lifecycle.record import Change, Job, JobId, NewJob
from holdfast.lifecycle.states import BEATS
from holdfast.ports.models import (
    Claimed,
    ClaimRequest,
    Clock,
    DecideLocked,
    Due,
    KeyRow,
    Outcome,
    PlannedOutcome,
    SubmitOutcome,
    Tail,
)
from holdfast.ports.store import NO_CLAIMS
from holdfast.stores.cursors import read_position
from holdfast.stores.directory import SharedDirectory
from holdfast.stores.ledger import SharedLedger
from holdfast.stores.maintenance import SharedMaintenance
from holdfast.stores.side_tables import PolicyMove, QueueMove, check_actor
from holdfast.stores.sqlite import read, upkeep
from holdfast.stores.sqlite.caller_transaction import Guest, run_as_guest
from holdfast.stores.sqlite.claim import claim, claim_carefully
from holdfast.stores.sqlite.clock import wall_clock
from holdfast.stores.sqlite.commit import commit, commit_locked
from holdfast.stores.sqlite.connections import SqlitePlace
from holdfast.stores.sqlite.migrate import check_schema
from holdfast.stores.sqlite.planned import commit_planned
from holdfast.stores.sqlite.session import SqliteSession
from holdfast.stores.sqlite.submit import submit, submit_alike
from holdfast.stores.sqlite.turn import Turn
from holdfast.stores.statements import Row
from holdfast.stores.uploads import SharedUploads
from holdfast.stores.versions import Recheck

T = TypeVar("T")
QUEUE_SETS_LIMIT = 1000
"""Sets of queues of which it is remembered what their last claim has seen."""


class SqliteStore(SharedLedger, SharedDirectory, SharedUploads, SharedMaintenance):
    """The ledger in one SQLite file, or in memory (`:memory:`, shared within the process)."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], int] = wall_clock,
        deadline_seconds: float = 30.0,
        synchronous: str = "FULL",
        vfs: str | None = None,
    ) -> None:
        """Keep the settings; `open` opens the file, or creates it."""
        place = SqlitePlace.of(
            path, vfs=vfs, synchronous=synchronous, deadline_seconds=deadline_seconds
        )
        self._session: SqliteSession = SqliteSession(place, clock)
        self._recheck = Recheck()
        self._seen_news: dict[frozenset[str], int] = {}

    async def open(self) -> None:
        """Open the file; a new one gets the schema, any other must have this version's."""
        await self._session.open()

    async def close(self) -> None:
        """Finish what was started and let go of the file."""
        await self._session.close()

    async def _check_schema(self) -> None:
        await self._session.read(lambda snapshot: check_schema(snapshot.connection))
        self._recheck.done()

    async def await_durable(self) -> None:
        """Do nothing: SQLite shows a commit to readers only once it has synced it."""

    async def clock(self) -> Clock:
        """Read the store's clock and epoch."""
        epoch = await self._session.read(upkeep.epoch)
        clock = self._session.clock
        return Clock(clock.now(), epoch, clock.ahead(), clock.step)

    async def submit(
        self, jobs: Sequence[NewJob], *, await_keys: bool = True
    ) -> list[SubmitOutcome]:
        """Insert decided jobs with their first events and keys; here no key is ever undecided."""
        del await_keys
        return await self._session.perform(lambda turn: submit(turn, jobs)) if jobs else []

    async def submit_alike(self, jobs: AlikeJobs) -> int | None:
        """Insert decided jobs that differ in id and body alone: all of them, or none."""
        return await self._session.perform(lambda turn: submit_alike(turn, jobs))

    async def transact(self, work: Callable[[Guest], T]) -> T:
        """Do a caller's work in one transaction, on the writer's thread.

        It may be done again, where others made the transaction fail as a whole.
        """
        return await self._session.perform(lambda turn: run_as_guest(turn, work))

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Give due jobs to an owner under lease."""
        check_text(request.owner, "owner", limit=200)
        queues = frozenset(request.queues)

        def action(turn: Turn) -> list[Claimed]:
            if len(self._seen_news) >= QUEUE_SETS_LIMIT:
                # The next that waits looks once more than it has to.
                self._seen_news.clear()
            self._seen_news[queues] = turn.news
            return claim(turn, request)

        try:
            return await self._session.perform(action)
        except (JobUnreadable, LawBroken):
            # One damaged row made the claim fail for all: find it, set it aside, take the others.
            return await self._session.perform(lambda turn: claim_carefully(turn, request))

    async def wake_up(self, queues: Sequence[str], *, limit_seconds: float) -> bool:
        """Wait until work may have come since the last claim from these queues, or the limit."""
        wanted = frozenset(queues)
        seen = self._seen_news.get(wanted, 0)
        writer = self._session.database.writer
        return await writer.await_news(wanted, seen, limit_seconds=limit_seconds)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Write each change where its revision still holds."""
        if not changes:
            return []
        # A lease must not expire while its renewal waits behind a long queue of other work.
        urgent = all(change.event.type in BEATS for change in changes)
        return await self._session.perform(lambda turn: commit(turn, changes), urgent=urgent)

    async def commit_planned(self, ends: Sequence[PlannedEnd]) -> PlannedOutcome:
        """Write planned ends, those of one plan together."""
        return await self._session.perform(lambda turn: commit_planned(turn, ends))

    async def commit_locked(
        self, id: JobId, decide: DecideLocked, *, after: int | None = None
    ) -> Outcome:
        """Decide on a job's current record and commit, in one transaction."""
        # Urgent, because it may be a renewal, and because it has lost several times already.
        return await self._session.perform(
            lambda turn: commit_locked(turn, id, decide, after), urgent=True
        )

    async def _children(
        self, name: str, parents: list[JobId], after: UUID, limit: int
    ) -> Sequence[Row]:
        # One parent at a time: SQLite has no LATERAL that could bound the children of each.
        found = await self._session.snapshot(*((name, one, after, limit) for one in parents))
        return [row for rows in found for row in rows]

    async def tail(self, cursor: str | None, *, limit: int = 1000) -> Tail:
        """Read all events after a cursor."""
        return await read.tail(self._session, cursor, limit)

    async def tail_end(self) -> str:
        """Return the cursor of the last event."""
        return await read.tail_end(self._session)

    def _read_cursor(self, cursor: str | None) -> object:
        return read_position(cursor)

    async def due(self, *, limit: int = 500) -> Due:
        """List jobs whose lease, deadline, timeout or wait is over."""
        if self._recheck.due:
            await self._check_schema()
        if self._session.clock.is_due:
            await self._session.perform(lambda turn: None)
        return await upkeep.due(self._session, limit)

    async def owned(
        self, owner: str, *, ended: Mapping[str, int] = NO_CLAIMS, older_than: int = 0
    ) -> list[Job]:
        """List what an owner holds."""
        return await read.owned(self._session, owner, ended, older_than)

    async def _move_queue(self, move: QueueMove) -> None:
        await self._session.perform(lambda turn: upkeep.move_queue(turn, move))

    async def _apply_policy(self, move: PolicyMove) -> None:
        await self._session.perform(lambda turn: upkeep.apply_policy(turn, move))

    async def release_quarantined(self, ids: Sequence[JobId]) -> int:
        """Let jobs be claimed and swept again."""
        return await self._session.perform(lambda turn: upkeep.release_quarantined(turn, ids))

    async def forget_unused(self) -> int:
        """Forget sets of needs that no job has any more, and queues without jobs."""
        return await self._session.perform(upkeep.forget_unused)

    async def fold_counts(self) -> None:
        """Do nothing: here the summaries are kept as they stand."""

    async def purge(
        self, ids: Sequence[JobId], *, actor: str, reason: str | None = None
    ) -> list[JobId]:
        """Remove cleaned jobs whole. The job of the newest event stays until there is a newer."""
        check_actor(actor)
        if not ids:
            return []
        return await self._session.perform(lambda turn: upkeep.purge(turn, ids, actor, reason))

    async def give_back_space(self) -> int:
        """Return free pages to the file system; 0 for a file that was made without auto_vacuum."""
        return await self._session.perform(upkeep.give_back_space)

    async def bump_epoch(self) -> int:
        """Fence all claims made so far."""
        return await self._session.perform(upkeep.bump_epoch)

    async def set_sealing(self, on: bool) -> None:
        """Turn the hash chain over new events on or off."""
        await self._session.perform(lambda turn: upkeep.set_sealing(turn, on))

    async def size(self) -> int:
        """Return how many jobs there are, by the summaries."""
        return await read.size(self._session)

    async def rebuild(
        self, jobs: Sequence[Job], *, keys: Sequence[tuple[JobId, KeyRow]]
    ) -> list[JobId]:
        """Replace the projection of these jobs, except of those that have moved on."""
        return await self._session.perform(lambda turn: upkeep.rebuild(turn, jobs, keys))

    async def recount(self) -> None:
        """Count the summaries again."""
        await self._session.perform(upkeep.recount)
