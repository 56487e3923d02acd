"""One batch of jobs: decide each, commit all together, note what became of each.

Every sweep is this loop over what is due. One with a stale view loses its compare-and-set, and a
job that cannot be decided or written stops none of the others. `command` is the same for one job
and a caller that waits for the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, TypeAlias

from msgspec import Struct

from holdfast.errors import HoldfastError, StoreError
from holdfast.flow.command import add_correlation_ids
from holdfast.lifecycle.commands import Command
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.record import Change, Draft, Job, JobId, Refusal
from holdfast.ports.models import Committed, Lost, Rejected
from holdfast.ports.store import Jobs

Choose: TypeAlias = Callable[[Job], Awaitable[Sequence[Command]]]
"""Returns the commands that a job calls for, each to be decided upon the one before; often none."""


class Sweep(Struct, kw_only=True):
    """What a sweep did; each kind of sweep counts in its own words."""

    fatal: ClassVar[tuple[type[StoreError], ...]] = (StoreError,)
    """Errors that stop the sweep: they are not about one job."""

    def on_written(self, change: Change) -> None:
        """Count a change that was written."""

    def fail(self, id: JobId, why: str) -> None:
        """Note a job that could not be decided or written."""

    def on_missed(self, change: Change, current: Job | None) -> bool:
        """Note a job that another writer changed first; return whether to decide it again."""
        raise NotImplementedError

    def on_refused(self, job: Job, refusal: Refusal) -> None:
        """Note that the law refuses what a job calls for."""
        self.fail(job.id, refusal.message)

    def on_rejected(self, change: Change, outcome: Rejected) -> None:
        """Note that the store refused a change."""
        self.fail(change.id, outcome.message)

    @contextmanager
    def spare_others(self, id: JobId) -> Iterator[None]:
        """Record a store error as this job's failure, so that other jobs are still processed."""
        try:
            yield
        except self.fatal:
            raise
        except Exception as error:  # noqa: BLE001 - one poison row must not stop the others
            self.fail(id, str(error) if isinstance(error, HoldfastError) else repr(error))


class CountedSweep(Sweep, kw_only=True):
    """A sweep that leaves to the next one whatever another writer changed first."""

    lost: int = 0
    """Changes that lost their compare-and-set."""
    failed: dict[JobId, str] = {}
    """Jobs that could not be decided or written, and why; the others were."""

    def fail(self, id: JobId, why: str) -> None:
        """Note a job that could not be decided or written."""
        self.failed[id] = why

    def on_missed(self, change: Change, current: Job | None) -> bool:
        """Count it: the next sweep reads the job as it is then."""
        self.lost += 1
        return False


async def carry_out(
    store: Jobs, jobs: Sequence[Job], choose: Choose, sweep: Sweep, *, tries: int = 1
) -> list[Job]:
    """Carry out what each job calls for, in one commit; return the records that were written.

    What another writer changed first is decided again on its new record where `sweep.missed` wants
    that, `tries` times in all.
    """
    written: list[Job] = []
    for _ in range(tries):
        changes = await decide_each(jobs, choose, sweep)
        if not changes:
            return written
        done, jobs = await commit_all(store, changes, sweep)
        written += done
    for job in jobs:
        sweep.fail(job.id, f"it was changed {tries} times meanwhile")
    return written


async def decide_each(jobs: Iterable[Job], choose: Choose, sweep: Sweep) -> list[Change]:
    """Decide what each job calls for."""
    changes: list[Change] = []
    for job in jobs:
        with sweep.spare_others(job.id):
            changes += _decide_commands(job, await choose(job), sweep)
    return changes


def _decide_commands(job: Job, commands: Sequence[Command], sweep: Sweep) -> list[Change]:
    record: Draft = job
    changes: list[Change] = []
    for command in commands:
        decision = decide(record, command)
        if isinstance(decision, Refusal):
            sweep.on_refused(job, decision)
            return []
        if isinstance(decision, Change):
            changes.append(decision)
            record = decision.next
    return changes


async def commit_all(
    store: Jobs, changes: Sequence[Change], sweep: Sweep
) -> tuple[list[Job], list[Job]]:
    """Commit changes; return the records that were written, and those to decide again."""
    written: list[Job] = []
    moved: list[Job] = []
    changes = await add_correlation_ids(store, changes)
    for change, outcome in zip(changes, await store.commit(changes), strict=True):
        if isinstance(outcome, Committed):
            sweep.on_written(change)
            written.append(outcome.job)
        elif not isinstance(outcome, Lost):
            sweep.on_rejected(change, outcome)
        elif sweep.on_missed(change, outcome.current) and outcome.current is not None:
            moved.append(outcome.current)
    return written, moved
