"""The reconciler: sweeps again and again, at any number of places at once.

It keeps nothing between two sweeps, so it can be killed at any moment; what it missed is due still.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.flow.children import Tended, tend, tend_unmarked
from holdfast.flow.recover import Swept, sweep
from holdfast.lifecycle.job import Actor, Change, JobId
from holdfast.lifecycle.states import Role
from holdfast.ports import LogEntry, Store
from holdfast.services.failures import JobLines, log_entry, swept_line
from holdfast.telemetry import Meters

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
"""How long a sweep that found nothing waits for the next; a lost job is found within that."""
LONGEST_PAUSE_SECONDS = 15.0
PULSE_SECONDS = 60.0
"""How long it may show no life: its longest pause, and a store that takes long to say no."""
FORGET_EVERY = 300
"""Sweeps after which it is looked for names that no job has any more."""
FOLD_EVERY = 30
"""Sweeps between two foldings of the summaries."""


LOOK_EVERY = 60
"""Sweeps between two looks at families that are not marked."""


class Health(Struct, kw_only=True):
    """How the loop is doing, for whoever watches it."""

    sweeps: int = 0
    written: int = 0
    failures_in_a_row: int = 0
    last_error: str | None = None


class Reconciler:
    """One loop of sweeps over one store."""

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        jitter: Callable[[], float],
        tick_seconds: float = TICK_SECONDS,
        on_sweep: Callable[[Swept], None] | None = None,
        meters: Meters | None = None,
    ) -> None:
        """Take the store; `run` begins."""
        self.health = Health()
        self._store = store
        self._actor = Actor(Role.RECONCILER, name)
        self._jitter = jitter
        self._tick = tick_seconds
        self._on_sweep = on_sweep
        self._meters = meters or Meters()
        self._lines = JobLines(log)
        self._stopping = asyncio.Event()
        self._looked_at: JobId | None = None
        """The last family that the slow pass has seen; lost with the process, it begins anew."""

    def stop(self) -> None:
        """End after the sweep that is under way."""
        self._stopping.set()

    async def run(self) -> None:
        """Sweep until stopped. Trouble is told, waited out and tried again, never the end."""
        pulse = self._meters.pulse("reconciler", limit_seconds=PULSE_SECONDS + 5 * self._tick)
        try:
            while not self._stopping.is_set():
                await self._pause(await self._turn())
        except asyncio.CancelledError:
            pulse.stop()
            raise
        # Not in a `finally`: one that died of anything else is to be missed.
        pulse.stop()

    async def _turn(self) -> float:
        """Sweep once; tells how long to rest."""
        try:
            report = await self.sweep()
        except HoldfastError as error:
            return self._trouble(error)
        except Exception as error:  # the loop's edge: nothing may end it but `stop`
            log.exception("a sweep failed")
            return self._trouble(error)
        self.health.failures_in_a_row = 0
        # A full batch means that there is more: go on at once.
        return 0.0 if report.written else self._tick

    async def sweep(self) -> Swept:
        """Look once at what is due."""
        report = await sweep(self._store, self._actor, jitter=self._jitter)
        self.health.sweeps += 1
        self.health.written += sum(report.written.values())
        for id_, problem in report.failed.items():
            log.error("job %s could not be swept: %s", id_, problem)
        await self._log(report.changes)
        await self._tend()
        if self.health.sweeps % FOLD_EVERY == 0:
            await self._store.fold_counts()
        if self.health.sweeps % FORGET_EVERY == 1:
            await self._store.forget_unused()
        self._meters.swept(report)
        if self._on_sweep is not None:
            self._on_sweep(report)
        return report

    async def _log(self, changes: Sequence[Change]) -> None:
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

    async def _tend(self) -> None:
        """Look at marked families; now and then also at some others, should a mark be lost."""
        self._note(await tend(self._store, self._actor))
        if self.health.sweeps % LOOK_EVERY == 0:
            tended, self._looked_at = await tend_unmarked(
                self._store, self._actor, after=self._looked_at
            )
            self._note(tended)

    def _note(self, tended: Tended) -> None:
        self.health.written += tended.written
        for id_, problem in tended.failed.items():
            log.error("the family of job %s could not be tended: %s", id_, problem)

    def _trouble(self, error: Exception) -> float:
        self._meters.sweep_failed()
        self.health.failures_in_a_row += 1
        self.health.last_error = str(error)
        log.warning("sweep failed %s times: %s", self.health.failures_in_a_row, error)
        return min(self._tick * 2.0**self.health.failures_in_a_row, LONGEST_PAUSE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return
