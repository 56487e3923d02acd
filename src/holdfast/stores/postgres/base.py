"""What every part of the PostgreSQL store stands on: connections, statements, the dictionary."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.errors import JobUnreadable
from holdfast.lifecycle.job import Draft, Job, JobId, LoggedEvent, NewJob
from holdfast.lifecycle.policy import (
    needs_key,
    needs_text,
    policy_key,
    policy_text,
    read_policy,
)
from holdfast.lifecycle.states import EventType
from holdfast.stores.columns import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    Dictionary,
    created_keys,
    read_event,
    read_job,
)
from holdfast.stores.needs_written import Written
from holdfast.stores.postgres.connections import Connection, Connections, await_standby
from holdfast.stores.postgres.pool import Lane
from holdfast.stores.quarantine import UNREADABLE, all_of, sift
from holdfast.stores.text import blocks

R = TypeVar("R")
PACKAGE = "holdfast.stores.postgres"
PLANNED_EACH_TIME = "SET LOCAL plan_cache_mode = force_custom_plan"
"""For a look-up that no one plan fits: which index serves it depends on the values."""
BY_BLOCKS = "SET LOCAL enable_bitmapscan = on"
"""For what is found by a block range (BRIN): only a bitmap can use one."""
_POLICY, _NEEDS = JOB_COLUMNS.index("policy"), JOB_COLUMNS.index("needs")
_TYPE, _DATA = EVENT_COLUMNS.index("type"), EVENT_COLUMNS.index("data")


class Base:
    """Connections, statements and the dictionary of policies and needs."""

    def __init__(self, connections: Connections) -> None:
        """Take the connections; `open` makes them."""
        self._connections = connections
        self._sql = blocks(PACKAGE)
        self._seen = Dictionary()
        self._needs_written = Written()

    async def _run(
        self,
        work: Callable[[Connection, int], Awaitable[R]],
        *,
        keep: tuple[type[BaseException], ...] = (),
        lane: Lane = Lane.FREE,
    ) -> R:
        return await self._connections.run(work, keep=keep, lane=lane)

    async def await_durable(self) -> None:
        """Wait until a synchronous standby, if there is one, has what could be read before."""
        await self._run(lambda connection, tries: await_standby(connection))

    async def _fetch(self, name: str, *args: Any) -> list[Any]:
        return await self._fetch_text(self._sql[name], *args)

    async def _fetch_durably(self, name: str, *args: Any) -> list[Any]:
        """Write, and return the rows that were written; where none was, the answer rests on others.

        Those may not be replicated, and a statement that writes nothing does not wait for it.
        """
        rows = await self._fetch(name, *args)
        if not rows:
            await self.await_durable()
        return rows

    async def _fetch_text(self, text: str, *args: Any) -> list[Any]:
        async def work(connection: Connection, tries: int) -> list[Any]:
            rows: list[Any] = await connection.fetch(text, *args)
            return rows

        return await self._run(work)

    async def _fetch_with(self, settings: str, text: str, *args: Any) -> list[Any]:
        """Read under settings that hold for this one statement."""

        async def work(connection: Connection, tries: int) -> list[Any]:
            async with connection.transaction():
                await connection.execute(settings)
                rows: list[Any] = await connection.fetch(text, *args)
                return rows

        return await self._run(work)

    async def _jobs(self, rows: Sequence[Any], *, on: Connection | None = None) -> list[Job]:
        """Read job rows, learning first what they name.

        Inside a transaction that is done `on` its connection: waiting for a second one while the
        first is held could end in all waiting for each other.
        """
        await self._learn(((row[_POLICY], row[_NEEDS]) for row in rows), on=on)
        return all_of(rows, self._job, _id_of)

    async def _readable_jobs(
        self, rows: Sequence[Any], *, on: Connection | None = None
    ) -> tuple[list[Job], dict[JobId, str]]:
        """Read job rows, and why some cannot be read: row by row only where one is damaged."""
        try:
            return await self._jobs(rows, on=on), {}
        except JobUnreadable:
            return sift(rows, self._job, _id_of)

    def _job(self, row: Sequence[Any]) -> Job:
        return read_job(row, self._seen)

    async def _events(
        self, rows: Sequence[Any], *, on: Connection | None = None
    ) -> list[LoggedEvent]:
        """Read event rows, learning first what they name."""
        first = EventType.CREATED.code
        await self._learn_created((row[_DATA] for row in rows if row[_TYPE] == first), on=on)
        return all_of(rows, self._event, _id_of)

    async def _readable_events(
        self, rows: Sequence[Any], *, on: Connection | None = None
    ) -> tuple[list[LoggedEvent], dict[JobId, str]]:
        """Read event rows, and why some cannot be read: row by row only where one is damaged."""
        try:
            return await self._events(rows, on=on), {}
        except JobUnreadable:
            return sift(rows, self._event, _id_of)

    def _event(self, row: Sequence[Any]) -> LoggedEvent:
        return read_event(row, self._seen)

    async def _learn_created(
        self, texts: Iterable[str | None], *, on: Connection | None = None
    ) -> None:
        """Learn what first events name, read through their text once."""
        named = []
        for text in texts:
            if text is not None and text not in self._seen.created:
                with contextlib.suppress(*UNREADABLE):  # reported when the job itself is read
                    named.append(created_keys(text))
        await self._learn(named, on=on)

    async def _learn(
        self, named: Iterable[tuple[int, int]], *, on: Connection | None = None
    ) -> None:
        unknown = {pair for pair in named if self._seen.missing(*pair)}
        if not unknown:
            return
        policies = [policy for policy, _ in unknown if policy not in self._seen.policies]
        for key, body in await self._look("policies", policies, on=on):
            self._seen.policies[key] = read_policy(body)
        needs = [needs for _, needs in unknown if needs not in self._seen.needs]
        for key, body in await self._look("needs", needs, on=on) if needs else ():
            self._seen.needs[key] = frozenset(msgspec.json.decode(body))

    async def _look(self, name: str, *args: Any, on: Connection | None) -> list[Any]:
        if on is None:
            return await self._fetch(name, *args)
        rows: list[Any] = await on.fetch(self._sql[name], *args)
        return rows

    def _remembered(self, jobs: Sequence[Draft]) -> bool:
        """Whether the policies and needs of these jobs are known to be written."""
        return all(
            policy_key(job.policy) in self._seen.policies
            and (not job.needs or self._needs_written.is_fresh(needs_key(job.needs)))
            for job in jobs
        )

    async def remember(self, jobs: Sequence[NewJob]) -> None:
        """Write policies and needs down before the first job that names them."""
        await self._remember([job.record for job in jobs])

    async def _remember(self, jobs: Sequence[Draft], *, again: bool = False) -> None:
        """Write policies and needs down; `again`: also those that were written or read before."""
        asked = {id(job.policy): job.policy for job in jobs}
        policies = {policy_key(policy): policy for policy in asked.values()}
        known = {} if again else self._seen.policies
        new = {key: value for key, value in policies.items() if key not in known}
        if new:
            await self._fetch(
                "add_policies",
                list(new),
                [policy_text(policy).decode() for policy in new.values()],
                [policy.lease for policy in new.values()],
                [policy.running_lease for policy in new.values()],
                [policy.start_timeout for policy in new.values()],
            )
            self._seen.policies.update(new)
        needs = {needs_key(job.needs): job.needs for job in jobs if job.needs}
        fresh = {
            key: value
            for key, value in needs.items()
            if again or not self._needs_written.is_fresh(key)
        }
        if fresh:
            texts = [needs_text(value).decode() for value in fresh.values()]
            await self._fetch("add_needs", list(fresh), texts)
            self._seen.needs.update(fresh)
            self._needs_written.note(fresh)


def _id_of(row: Sequence[Any]) -> JobId:
    """The id of a job or event row: the first column of both."""
    return JobId(row[0])
