"""The wrapper that every defect starts from: it hands everything on to a good store."""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.record import Change, Job
from holdfast.lifecycle.states import State
from holdfast.ports.models import Lost, Outcome, Query
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.turn import Turn


class Wrapped:
    """Hands everything on to the good store; a defect overrides what it gets wrong."""

    caught_by: ClassVar[tuple[str, ...]] = ()

    def __init__(self, inner: SqliteStore) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def raw(self, sql: str, *parameters: Any) -> None:
        """Write past every guard of the schema."""

        def work(turn: Turn) -> None:
            connection = turn.connection
            connection.execute("PRAGMA ignore_check_constraints = ON")
            names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
            for (name,) in names.fetchall():
                connection.execute(f"DROP TRIGGER {name}")
            connection.execute(sql, parameters)

        await self.inner._session.perform(work)

    async def force(self, change: Change) -> Outcome:
        """Write a change whatever the revision and the lease are."""
        [current] = await self.inner.get([change.id])
        if current is None:
            return Lost(None)
        rev = current.rev + 1
        forced = replace(
            change,
            record=current,
            event=replace(change.event, rev=rev),
            next=replace(change.next, rev=rev),
            fenced=False,
        )
        [outcome] = await self.inner.commit([forced])
        return outcome

    async def do(self, job: Job, command: c.Command) -> None:
        """Carry out a command that nobody asked for."""
        change = decide(job, command)
        assert isinstance(change, Change)
        await self.inner.commit([change])

    async def jobs_in(self, *states: State) -> list[Job]:
        return (await self.inner.find(Query(states=states))).jobs
