"""A session: statements on the connections of the pool, and what the process knows of the database.

Every operation is a function over it. Inside `run` it is bound to one connection, and what it runs
there belongs to that connection's transaction.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from copy import copy
from typing import Any, TypeVar

import asyncpg

from holdfast.admission.book import Book
from holdfast.errors import BadPolicy, LawBroken
from holdfast.lifecycle.execution_policy import needs_key, needs_text, policy_key, policy_text
from holdfast.lifecycle.record import Change, Draft, JobId, NewJob
from holdfast.stores.columns import Dictionary
from holdfast.stores.door import judge_births, judge_submits
from holdfast.stores.postgres.connections import Connection, Connections, await_standby
from holdfast.stores.postgres.pool import ConnectionUse
from holdfast.stores.postgres.wakeup import WakeUp
from holdfast.stores.quarantine import report_refused, report_set_aside
from holdfast.stores.sql_files import statements
from holdfast.stores.statements import Row, Statement, Statements

R = TypeVar("R")
SQL = statements("postgres")
BY_BLOCKS = "SET LOCAL enable_bitmapscan = on"
"""For what is found by a block range (BRIN): only a bitmap can use one."""
_PLANNED_EACH_TIME = f"SET LOCAL plan_cache_mode = force_custom_plan; {BY_BLOCKS}"
"""For a look-up that no one plan fits: which index serves it depends on the values."""
_SETTINGS = {
    "events_by_type": _PLANNED_EACH_TIME,
    "events_by_correlation": _PLANNED_EACH_TIME,
}
"""What holds for one statement only."""
WRITE_NEEDS_AGAIN_SECONDS = 600.0
"""After how long a set of needs is written again with the next job that names it. Far less than the
hour for which a set is kept that no job has: so it is there when the job comes."""
NEEDS_KNOWN = 10_000
"""Sets of needs that are remembered; submitters choose them."""


class WrittenNeeds:
    """When this process wrote sets of needs: those that no job has are forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._at: dict[int, float] = {}
        self._clock = clock

    def is_fresh(self, key: int) -> bool:
        """Return whether a set was written so lately that it is there for certain."""
        return self._clock() - self._at.get(key, float("-inf")) < WRITE_NEEDS_AGAIN_SECONDS

    def note(self, keys: Iterable[int]) -> None:
        """Note that sets were written."""
        if len(self._at) > NEEDS_KNOWN:
            self._at.clear()
        self._at.update(dict.fromkeys(keys, self._clock()))


class KnownPolicy:
    """The rules that judge new jobs, as they were last read."""

    def __init__(self) -> None:
        self.book: Book | None = None
        self.problem: BadPolicy | None = None
        """Why this process cannot read the rules that are applied."""
        self.read_at = 0.0
        """By the monotonic clock."""

    @property
    def is_any(self) -> bool:
        """Whether rules were applied when that was last looked at."""
        return self.book is not None or self.problem is not None

    def judge(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """Return new jobs as the rules let them be born."""
        return jobs if self.book is None else judge_births(jobs, self.book)

    def judge_changes(self, changes: Sequence[Change]) -> Sequence[Change]:
        """Return changes whose new jobs are as the rules let them be born."""
        return changes if self.book is None else judge_submits(changes, self.book)


class PostgresSession(Statements):
    """Runs statements on any connection of the pool, or on the one that it is bound to."""

    sql = SQL

    def __init__(self, connections: Connections, wake: WakeUp) -> None:
        self.connections = connections
        self.wake = wake
        self.seen = Dictionary()
        self.needs_written = WrittenNeeds()
        self.policy = KnownPolicy()
        self.connection: Connection | None = None

    def bound_to(self, connection: Connection) -> PostgresSession:
        """Return this session bound to a connection: waiting for a second one while the first is
        held could end in all waiting for each other."""
        bound = copy(self)
        bound.connection = connection
        return bound

    async def run(
        self,
        work: Callable[[PostgresSession, int], Awaitable[R]],
        *,
        keep: tuple[type[BaseException], ...] = (),
        use: ConnectionUse = ConnectionUse.FREE,
    ) -> R:
        """Do `work(session, tries before)` on one connection; see `Connections.run`."""
        return await self.connections.run(
            lambda connection, tries: work(self.bound_to(connection), tries), keep=keep, use=use
        )

    async def transact(self, work: Callable[[PostgresSession], Awaitable[R]]) -> R:
        """Do `work(session)` in one transaction; again, whole, when the database gave way."""

        async def once(session: PostgresSession, tries: int) -> R:
            async with session.transaction():
                return await work(session)

        return await self.run(once)

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Open a transaction on the connection, or a savepoint in the one that is open."""
        assert self.connection is not None
        return self.connection.transaction()  # type: ignore[no-any-return]

    async def fetch(self, text: str, *parameters: Any) -> Sequence[Row]:
        """Run a statement and read its rows."""
        if self.connection is not None:
            return await self.connection.fetch(text, *parameters)  # type: ignore[no-any-return]
        return await self.connections.run(
            lambda connection, tries: connection.fetch(text, *parameters)
        )

    async def rows(self, name: str, *parameters: Any) -> Sequence[Row]:
        """Run a named statement, under its settings if it has some."""
        settings = _SETTINGS.get(name)
        if settings is None:
            return await self.fetch(SQL[name], *parameters)

        async def work(session: PostgresSession) -> Sequence[Row]:
            await session.script(settings)
            return await session.fetch(SQL[name], *parameters)

        return await self.transact(work)

    async def write(self, name: str, *parameters: Any) -> Sequence[Row]:
        """Run a named statement that writes."""
        return await self.fetch(SQL[name], *parameters)

    async def write_rows(self, name: str, rows: Sequence[Row], *shared: Any) -> None:
        """Run a named statement whose first parameters are the columns of these rows."""
        await self.fetch(SQL[name], *map(list, zip(*rows, strict=True)), *shared)

    async def snapshot(self, *statements: Statement) -> list[Sequence[Row]]:
        """Run statements that only read, all in one snapshot."""

        async def work(session: PostgresSession, tries: int) -> list[Sequence[Row]]:
            connection: Any = session.connection
            if connection.is_in_transaction():
                await session.script("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                return [await session.rows(*statement) for statement in statements]
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return [await session.rows(*statement) for statement in statements]

        return await self.run(work)

    async def script(self, text: str, **options: Any) -> None:
        """Run statements without parameters on the connection."""
        assert self.connection is not None
        await self.connection.execute(text, **options)

    async def await_standby(self) -> None:
        """Wait until a synchronous standby, if there is one, has what could be read before."""
        if self.connection is not None:
            await await_standby(self.connection)
        else:
            await self.connections.run(lambda connection, tries: await_standby(connection))

    async def set_aside(self, bad: Mapping[JobId, str]) -> None:
        """Keep damaged jobs out of claims and sweeps, each by itself: a mark may be refused."""
        for id_, reason in bad.items():
            try:
                if self.connection is None:
                    marked = await self.write("quarantine", id_, reason)
                else:
                    async with self.transaction():
                        marked = await self.write("quarantine", id_, reason)
            except (LawBroken, asyncpg.IntegrityConstraintViolationError) as error:
                report_refused([id_], error)
            else:
                if marked:
                    report_set_aside({id_: reason})

    def is_remembered(self, jobs: Sequence[Draft]) -> bool:
        """Return whether the policies and needs of these jobs are known to be written."""
        return all(
            policy_key(job.policy) in self.seen.policies
            and (not job.needs or self.needs_written.is_fresh(needs_key(job.needs)))
            for job in jobs
        )

    async def remember(self, jobs: Sequence[Draft], *, again: bool = False) -> None:
        """Write policies and needs before the first job that names them.

        `again`: also those that were written or read before.
        """
        # By identity first: the jobs of a batch mostly share one policy object.
        policies = {policy_key(p): p for p in {id(job.policy): job.policy for job in jobs}.values()}
        known = {} if again else self.seen.policies
        new = {key: value for key, value in policies.items() if key not in known}
        if new:
            rows = [
                (key, policy_text(p).decode(), p.lease, p.running_lease, p.start_timeout)
                for key, p in new.items()
            ]
            await self.write_rows("add_policies", rows)
            self.seen.policies.update(new)
        needs = {needs_key(job.needs): job.needs for job in jobs if job.needs}
        stale = {
            key: value
            for key, value in needs.items()
            if again or not self.needs_written.is_fresh(key)
        }
        if stale:
            texts = [(key, needs_text(value).decode()) for key, value in stale.items()]
            await self.write_rows("add_needs", texts)
            self.seen.needs.update(stale)
            self.needs_written.note(stale)
