"""Recover: what a sweep makes of a job whose lease, deadline, timeout or wait is over.

It reads what is due, decides and commits like every other writer, so that two sweeps, or one with a
stale view, do no harm. Any number may run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import field

from holdfast.flow.batch import Choose, CountedSweep, commit_all, decide_each
from holdfast.lifecycle.commands import Command
from holdfast.lifecycle.due import remedy
from holdfast.lifecycle.lease import has_expired
from holdfast.lifecycle.record import Actor, Change, Job
from holdfast.lifecycle.states import EventType
from holdfast.ports.models import Due
from holdfast.ports.store import Store

WIDENINGS = 11
"""How often a sweep doubles its limit to see past jobs that it may not touch: past a million, which
one sweep can still hold. Few are ever in its way: those left to a live owner or a host for now."""


class Swept(CountedSweep, kw_only=True):
    """What one sweep did."""

    found: int = 0
    now: int = 0
    """When it read what is due, by the store's clock."""
    moved: dict[tuple[str, str, EventType], int] = field(default_factory=dict)
    """Changes written, by task, queue and event."""
    expired: int = 0
    """How many of the jobs it wrote to had an owner whose lease had expired."""
    changes: list[Change] = field(default_factory=list)
    """The changes written."""

    @property
    def written(self) -> dict[EventType, int]:
        """The changes written, by event."""
        sums: dict[EventType, int] = {}
        for (_, _, kind), jobs in self.moved.items():
            sums[kind] = sums.get(kind, 0) + jobs
        return sums

    def on_written(self, change: Change) -> None:
        """Count a change that was written."""
        record = change.record
        key = record.task, record.queue, change.event.type
        self.moved[key] = self.moved.get(key, 0) + 1
        self.changes.append(change)
        self.expired += has_expired(record, self.now)


async def sweep(
    store: Store, actor: Actor, *, jitter: Callable[[], float], limit: int = 500
) -> Swept:
    """Read once what is due, and do what the law calls for."""
    widest = limit << WIDENINGS
    wanted = limit
    while True:
        due = await store.due(limit=limit)
        report = Swept(found=len(due.jobs), now=due.now)
        changes = await decide_each(due.jobs, _choose_remedies(due, actor, jitter), report)
        # Those that must be left alone may hide others: then read further.
        if not due.more or len(changes) >= wanted or limit >= widest:
            await commit_all(store, changes, report)
            return report
        limit *= 2


def _choose_remedies(due: Due, actor: Actor, jitter: Callable[[], float]) -> Choose:
    async def choose(job: Job) -> Sequence[Command]:
        command = remedy(job, actor, now=due.now, epoch=due.epoch, jitter=jitter)
        return () if command is None else (command,)

    return choose
