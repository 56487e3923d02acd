"""The store on PostgreSQL: the port's duties, each a function over the session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from holdfast.errors import BadPolicy, StoreError
from holdfast.lifecycle.alike import AlikeJobs
from holdfast.lifecycle.clock import ClockWatch
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.plan import PlannedEnd
from holdfast.lifecycle.record import Change, Job, JobId, NewJob
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
from holdfast.stores.cursors import read_cursor
from holdfast.stores.directory import SharedDirectory
from holdfast.stores.ledger import SharedLedger
from holdfast.stores.maintenance import SharedMaintenance
from holdfast.stores.postgres import read, upkeep
from holdfast.stores.postgres.claim import claim
from holdfast.stores.postgres.claim_start import ClaimStarts
from holdfast.stores.postgres.commit import LockedRows, commit, commit_locked
from holdfast.stores.postgres.connections import Connections
from holdfast.stores.postgres.migrate import check_schema
from holdfast.stores.postgres.planned import commit_planned
from holdfast.stores.postgres.policy import freshen_policy, read_policy
from holdfast.stores.postgres.schema import DEFAULT_SCHEMA
from holdfast.stores.postgres.session import PostgresSession
from holdfast.stores.postgres.submit import submit, submit_alike
from holdfast.stores.postgres.wakeup import WakeUp
from holdfast.stores.side_tables import PolicyMove, QueueMove, check_actor
from holdfast.stores.uploads import SharedUploads
from holdfast.stores.versions import Recheck


class PostgresStore(SharedLedger, SharedDirectory, SharedUploads, SharedMaintenance):
    """The ledger on PostgreSQL 14 or later, in a schema of its own.

    `pooled`: the url leads through PgBouncer in transaction mode; `listen_url` then names a direct
    address for wake-ups (without it, waiting means polling).
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        pooled: bool = False,
        listen_url: str | None = None,
        connections: int = 4,
        deadline_seconds: float = 30.0,
        attempt_seconds: float = 10.0,
    ) -> None:
        """Keep the settings; `open` connects."""
        self._connections = Connections(
            url,
            schema=schema,
            pooled=pooled,
            size=connections,
            deadline_seconds=deadline_seconds,
            attempt_seconds=attempt_seconds,
        )
        self._wake = WakeUp(listen_url or (None if pooled else url), schema=schema)
        self._session: PostgresSession = PostgresSession(self._connections, self._wake)
        self._recheck = Recheck()
        self._clock_watch = ClockWatch()
        self._claim_starts = ClaimStarts()
        self._locked_rows = LockedRows()
        self._heard = 0
        """The number of the last hint that came before the last claim."""

    async def open(self) -> None:
        """Connect, and check the schema."""
        await self._connections.open()
        try:
            await self._check_schema()
            # Who may not read it submits nothing that it would have to judge: the database refuses
            # that. All else works.
            with suppress(StoreError):
                await read_policy(self._session)
        except BaseException:
            await self._connections.close()
            raise

    async def _check_schema(self) -> None:
        await self._connections.run(check_schema)
        self._recheck.done()

    async def close(self) -> None:
        """Close all connections."""
        await self._wake.close()
        await self._connections.close()

    async def await_durable(self) -> None:
        """Wait until a synchronous standby, if there is one, has what could be read before."""
        await self._session.await_standby()

    async def clock(self) -> Clock:
        """Read the store's clock and epoch."""
        return (await upkeep.read_clock(self._session))[0]

    async def submit(
        self, jobs: Sequence[NewJob], *, await_keys: bool = True
    ) -> list[SubmitOutcome]:
        """Insert decided jobs with their first events and keys."""
        return await submit(self._session, jobs, await_keys=await_keys) if jobs else []

    async def submit_alike(self, jobs: AlikeJobs) -> int | None:
        """Insert decided jobs that differ in id and body alone: all of them, or none."""
        return await submit_alike(self._session, jobs)

    async def judge(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """Judge jobs by the applied policy, ahead of a caller's transaction that submits them.

        BadPolicy if this process cannot read it: the transaction would be refused in vain.
        """
        await freshen_policy(self._session)
        if (problem := self._session.policy.problem) is not None:
            raise BadPolicy(str(problem))
        return self._session.policy.judge(jobs)

    async def read_policy(self) -> None:
        """Read the policy again: a caller's transaction was refused because it has changed."""
        await read_policy(self._session)

    async def remember(self, jobs: Sequence[NewJob]) -> None:
        """Write policies and needs ahead of a caller's transaction that submits these jobs."""
        await self._session.remember([job.record for job in jobs])

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Give due jobs to an owner under lease."""
        check_text(request.owner, "owner", limit=200)
        check_text(request.request_id, "request_id")
        self._heard = self._wake.number
        return await claim(self._session, request, self._claim_starts)

    async def wake_up(self, queues: Sequence[str], *, limit_seconds: float) -> bool:
        """Wait until work may have come since the last claim, or the limit."""
        return await self._wake.wait(queues, limit_seconds, since=self._heard)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Write each change where its revision still holds."""
        return await commit(self._session, changes, self._locked_rows) if changes else []

    async def commit_planned(self, ends: Sequence[PlannedEnd]) -> PlannedOutcome:
        """Write planned ends in one statement."""
        return await commit_planned(self._session, ends, self._locked_rows)

    async def commit_locked(
        self, id: JobId, decide: DecideLocked, *, after: int | None = None
    ) -> Outcome:
        """Decide on a job's current record under its row lock, and commit."""
        return await commit_locked(self._session, id, decide, after)

    async def tail(self, cursor: str | None, *, limit: int = 1000) -> Tail:
        """Read all events after a cursor, up to the oldest transaction still under way."""
        return await read.tail(self._session, cursor, limit)

    async def tail_end(self) -> str:
        """Return the cursor before the oldest transaction still under way."""
        return await read.tail_end(self._session)

    def _read_cursor(self, cursor: str | None) -> object:
        return read_cursor(cursor)

    async def due(self, *, limit: int = 500) -> Due:
        """List jobs whose lease, deadline, timeout or wait is over."""
        if self._recheck.due:
            await self._check_schema()
        clock = await upkeep.tend_clock(self._session, self._clock_watch)
        return await upkeep.due(self._session, clock, limit)

    async def owned(
        self, owner: str, *, ended: Mapping[str, int] = NO_CLAIMS, older_than: int = 0
    ) -> list[Job]:
        """List what an owner holds."""
        return await read.owned(self._session, owner, ended, older_than)

    async def _move_queue(self, move: QueueMove) -> None:
        await upkeep.move_queue(self._session, move)

    async def _apply_policy(self, move: PolicyMove) -> None:
        await upkeep.apply_policy(self._session, move)
        await read_policy(self._session)

    async def release_quarantined(self, ids: Sequence[JobId]) -> int:
        """Let jobs be claimed and swept again."""
        return await upkeep.release_quarantined(self._session, ids)

    async def forget_unused(self) -> int:
        """Forget sets of needs that no job has any more."""
        return len(await self._session.write("forget_needs"))

    async def fold_counts(self) -> None:
        """Fold the summaries' deltas."""
        await upkeep.fold_counts(self._session)

    async def purge(
        self, ids: Sequence[JobId], *, actor: str, reason: str | None = None
    ) -> list[JobId]:
        """Remove cleaned jobs whole."""
        check_actor(actor)
        return await upkeep.purge(self._session, ids, actor, reason) if ids else []

    async def give_back_space(self) -> int:
        """Do nothing: a vacuum makes the space free for other rows."""
        return 0

    async def bump_epoch(self) -> int:
        """Fence all claims made so far."""
        return await upkeep.bump_epoch(self._session)

    async def set_sealing(self, on: bool) -> None:
        """Turn the hash chain over new events on or off."""
        await upkeep.set_sealing(self._session, on)

    async def size(self) -> int:
        """Estimate how many jobs there are."""
        return await read.size(self._session)

    async def rebuild(
        self, jobs: Sequence[Job], *, keys: Sequence[tuple[JobId, KeyRow]]
    ) -> list[JobId]:
        """Replace the projection of these jobs, except of those that have moved on."""
        return await upkeep.rebuild(self._session, jobs, keys)

    async def recount(self) -> None:
        """Count the summaries again."""
        await self._session.transact(upkeep.recount)
