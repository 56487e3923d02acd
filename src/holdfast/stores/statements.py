"""How the duties that both engines share run statements, and read rows as records.

An engine provides the statements by name, four ways to run them, and how it stores an id.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from holdfast.errors import JobUnreadable
from holdfast.lifecycle.record import Job, JobId, LoggedEvent
from holdfast.lifecycle.transitions import SUBMIT_EVENT
from holdfast.stores.columns import (
    DATA,
    NEEDS,
    POLICY,
    TYPE,
    Dictionary,
    created_keys,
    read_event,
    read_job,
)
from holdfast.stores.quarantine import UNREADABLE, read_all, read_undamaged
from holdfast.stores.side_tables import PolicyMove, QueueMove
from holdfast.stores.versions import Recheck

Row: TypeAlias = Sequence[Any]
Statement: TypeAlias = tuple[Any, ...]
"""The name of a statement, and its parameters."""


class Statements(ABC):
    """Runs named statements, each in a transaction of its own, and reads what they return."""

    sql: Mapping[str, str]
    seen: Dictionary

    @abstractmethod
    async def fetch(self, text: str, *parameters: Any) -> Sequence[Row]:
        """Run a statement that only reads."""

    @abstractmethod
    async def snapshot(self, *statements: Statement) -> list[Sequence[Row]]:
        """Run statements that only read, all in one snapshot."""

    @abstractmethod
    async def write(self, name: str, *parameters: Any) -> Sequence[Row]:
        """Run a statement that writes; it is durable when this returns. Return its rows."""

    @abstractmethod
    async def write_rows(self, name: str, rows: Sequence[Row], *shared: Any) -> None:
        """Run a statement that writes for each of some rows; `shared` are the same for all."""

    @abstractmethod
    async def set_aside(self, bad: Mapping[JobId, str]) -> None:
        """Keep damaged jobs out of claims and sweeps, each by itself: a mark may be refused."""

    async def rows(self, name: str, *parameters: Any) -> Sequence[Row]:
        """Run a named statement that only reads."""
        return await self.fetch(self.sql[name], *parameters)

    def id(self, value: Any) -> JobId:
        """Read an id as this engine stores it."""
        return JobId(value)

    def ids(self, values: Any) -> list[JobId]:
        """Read a list of ids as this engine stores it."""
        return [JobId(value) for value in values]

    def job(self, row: Row) -> Job:
        """Make a record out of a job row; what it names is known."""
        return read_job(row, self.seen)

    def event(self, row: Row) -> LoggedEvent:
        """Make an event out of an event row; what it names is known."""
        return read_event(row, self.seen)

    async def jobs(self, rows: Sequence[Row]) -> list[Job]:
        """Read job rows; raise JobUnreadable if one is damaged."""
        await self.learn((row[POLICY], row[NEEDS]) for row in rows)
        return read_all(rows, self.job, self._id_of)

    async def readable_jobs(self, rows: Sequence[Row]) -> tuple[list[Job], dict[JobId, str]]:
        """Read job rows, and why some cannot be read: row by row only where one is damaged."""
        try:
            return await self.jobs(rows), {}
        except JobUnreadable:
            return read_undamaged(rows, self.job, self._id_of)

    async def sweep(self, rows: Sequence[Row]) -> list[Job]:
        """Read job rows, and set damaged ones aside."""
        jobs, bad = await self.readable_jobs(rows)
        if bad:
            await self.set_aside(bad)
        return jobs

    async def events(self, rows: Sequence[Row]) -> list[LoggedEvent]:
        """Read event rows; raise JobUnreadable if one is damaged."""
        first = SUBMIT_EVENT.code
        await self.learn_created(row[DATA] for row in rows if row[TYPE] == first)
        return read_all(rows, self.event, self._id_of)

    async def readable_events(
        self, rows: Sequence[Row]
    ) -> tuple[list[LoggedEvent], dict[JobId, str]]:
        """Read event rows, and why some cannot be read: row by row only where one is damaged."""
        try:
            return await self.events(rows), {}
        except JobUnreadable:
            return read_undamaged(rows, self.event, self._id_of)

    def _id_of(self, row: Row) -> JobId:
        """The id of a job or event row: the first column of both."""
        return self.id(row[0])

    async def learn_created(self, texts: Iterable[str | None]) -> None:
        """Learn what first events name, read through their text once."""
        named = []
        for text in texts:
            if text is not None and text not in self.seen.created:
                with contextlib.suppress(*UNREADABLE):  # reported when the job itself is read
                    named.append(created_keys(text))
        await self.learn(named)

    async def learn(self, named: Iterable[tuple[int, int]]) -> None:
        """Look up the policies and needs that this process has not seen."""
        policies, needs = self.seen.find_unknown(named)
        if policies:
            self.seen.learn_policies(await self.rows("policies", policies))
        if needs:
            self.seen.learn_needs(await self.rows("needs", needs))


class EngineStore(ABC):
    """What the duties that both engines share need of a store."""

    _session: Statements
    _recheck: Recheck

    @abstractmethod
    async def await_durable(self) -> None:
        """Wait until what could be read before is as durable as a write."""

    @abstractmethod
    async def tail_end(self) -> str:
        """Return the cursor behind which comes all that is not committed yet."""

    @abstractmethod
    async def _check_schema(self) -> None:
        """Raise SchemaMismatch where this version must not work on the schema as it is now."""

    @abstractmethod
    async def _move_queue(self, move: QueueMove) -> None:
        """Pause or resume a queue, with its entry, in one transaction; repeating is success."""

    @abstractmethod
    async def _apply_policy(self, move: PolicyMove) -> None:
        """Apply or remove rules, with the entry and the guard, in one transaction."""

    @abstractmethod
    def _read_cursor(self, cursor: str | None) -> object:
        """Read a cursor of the tail; raise BadData where it is not one."""
