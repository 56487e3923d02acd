"""The reconciler: sweeps again and again, at any number of places at once.

It keeps nothing between two sweeps, so it can be killed at any moment: what it missed is still due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from holdfast.errors import BadPolicy, HoldfastError
from holdfast.flow.admit import (
    AdmitSweep,
    admit_pending,
    decide_held,
    deny_held,
    expire_approvals,
)
from holdfast.flow.families import FamilySweep, tend, tend_ignoring_marks
from holdfast.flow.recover import Swept, sweep
from holdfast.ids import jitter as random_jitter
from holdfast.lifecycle.record import Actor, Change, JobId
from holdfast.lifecycle.states import Role
from holdfast.ports.kernel import ExternalKernel
from holdfast.ports.models import LogEntry
from holdfast.ports.store import Store
from holdfast.services.loop import Loop
from holdfast.telemetry import Meters
from holdfast.worker.failures import JobLines, log_entry, swept_line

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""How long a sweep that found nothing waits for the next; a lost job is found within that."""
LONGEST_PAUSE_SECONDS = 15.0
SILENT_SECONDS = 60.0
"""How long it may show no life: its longest pause, and a store that is slow to fail."""
FORGET_EVERY = 300
"""Sweeps between two that drop names which no job has any more."""
FOLD_EVERY = 30
"""Sweeps between two that fold the summaries."""
KERNEL_SECONDS = 1.0
"""How long a sweep waits for an external kernel; its answers are taken by a later one."""
LOOK_EVERY = 60
"""Sweeps between two that look at families which are not marked."""


class Reconciler(Loop):
    """One loop of sweeps over one store."""

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        jitter: Callable[[], float] = random_jitter,
        tick_seconds: float = TICK_SECONDS,
        on_sweep: Callable[[Swept], None] | None = None,
        meters: Meters | None = None,
        kernel: ExternalKernel | None = None,
    ) -> None:
        super().__init__(
            "reconciler",
            self._sweep,
            meters=meters,
            first_pause_seconds=tick_seconds,
            longest_pause_seconds=LONGEST_PAUSE_SECONDS,
            silent_seconds=SILENT_SECONDS + 5 * tick_seconds,
        )
        self.sweeps = 0
        self.written = 0
        """Jobs that it has changed so far."""
        self._store = store
        self._actor = Actor(Role.RECONCILER, name)
        self._jitter = jitter
        self._tick = tick_seconds
        self._on_sweep = on_sweep
        self._lines = JobLines(log)
        self._looked_at: JobId | None = None
        """The last family that the slow pass has seen; after a restart it starts from the first."""
        self._admitted_to: JobId | None = None
        """The last pending job that was looked at, if there were more than one pass takes."""
        self._decided_to: JobId | None = None
        """The last job that the rules were asked about again, likewise."""
        self._kernel = kernel
        self._deciding: asyncio.Task[AdmitSweep] | None = None
        """Decisions that are under way."""

    async def _sweep(self) -> float:
        before = self.written
        report = await self.sweep()
        # A sweep that wrote may have left more: sweep again at once.
        return 0.0 if report.written or self.written > before else self._tick

    async def run(self) -> None:
        """Run until stopped; a kernel that was asked is not waited for any more then."""
        try:
            await super().run()
        finally:
            if self._deciding is not None:
                self._deciding.cancel()
                await asyncio.gather(self._deciding, return_exceptions=True)

    async def sweep(self) -> Swept:
        """Do once what is due."""
        report = await sweep(self._store, self._actor, jitter=self._jitter)
        self.sweeps += 1
        self.written += sum(report.written.values())
        for id_, problem in report.failed.items():
            log.error("job %s could not be swept: %s", id_, problem)
        await self._log_changes(report.changes)
        await self._tend_families()
        await self._admit()
        if self.sweeps % FOLD_EVERY == 0:
            await self._store.fold_counts()
        if self.sweeps % FORGET_EVERY == 1:
            await self._store.forget_unused()
        self._meters.swept(report)
        if self._on_sweep is not None:
            self._on_sweep(report)
        return report

    async def _log_changes(self, changes: Sequence[Change]) -> None:
        """Log what was lost or ended, in the process's log and in those of the jobs."""
        kept: list[LogEntry] = []
        for change in changes:
            if (line := swept_line(change)) is None:
                continue
            (level, text), job = line, change.record
            kept.append(log_entry(job.id, job.attempt, level, text))
            self._lines.write(job, level, text, kind=change.event.type)
        if kept:
            try:
                await self._store.keep_logs(kept)
            except HoldfastError as error:
                log.warning("logs of jobs were not kept: %s", error)

    async def _tend_families(self) -> None:
        """Tend marked families; now and then also some others, in case a mark was lost."""
        self._note(await tend(self._store, self._actor))
        if self.sweeps % LOOK_EVERY == 0:
            report, self._looked_at = await tend_ignoring_marks(
                self._store, self._actor, after=self._looked_at
            )
            self._note(report)

    async def _admit(self) -> None:
        """Move pending jobs past the gates that let them through, and end those that none will.

        A policy that cannot be read here stops what needs it, and no other sweep.
        """
        store, name = self._store, self._actor.name
        for step in (self._admit_next, self._decide_next):
            try:
                await step()
            except BadPolicy as error:
                log.error("the policy cannot be read by this process: %s", error)
        self._note_admissions(await deny_held(store, name))
        self._note_admissions(await expire_approvals(store, name))

    async def _admit_next(self) -> None:
        report = await admit_pending(self._store, self._actor.name, after=self._admitted_to)
        self._admitted_to = report.next
        self._note_admissions(report)

    async def _decide_next(self) -> None:
        """Decide on what the rules left open; the other sweeps do not wait for a slow kernel."""
        if self._deciding is None:
            found = decide_held(self._store, self._actor.name, self._kernel, after=self._decided_to)
            self._deciding = asyncio.create_task(found)
        await asyncio.wait([self._deciding], timeout=KERNEL_SECONDS)
        if self._deciding.done():
            done, self._deciding = self._deciding, None
            report = await done
            self._decided_to = report.next
            self._note_admissions(report)

    def _note_admissions(self, report: AdmitSweep) -> None:
        self.written += report.written
        for id_, problem in report.failed.items():
            log.error("job %s could not be admitted: %s", id_, problem)

    def _note(self, report: FamilySweep) -> None:
        self.written += report.written
        for id_, problem in report.failed.items():
            log.error("the family of job %s could not be swept: %s", id_, problem)

    def fail(self, error: Exception) -> float:
        """Count a sweep that failed."""
        self._meters.sweep_failed()
        return super().fail(error)
