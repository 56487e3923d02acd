"""How attempts are stopped: by a cancel, their time limit, a shutdown, or the loss of their job.

A running attempt is asked first and killed after its grace; the kill is the cancellation of its
task. Only once nothing of it runs any more does the executor end it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import cast

from msgspec import Struct, field

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.states import CancelMode
from holdfast.ports.runner import AnySurvivingRunner
from holdfast.telemetry import Meters
from holdfast.worker.failures import Failures
from holdfast.worker.outbox import CommitQueue
from holdfast.worker.owned_job import OwnedJob, OwnedJobs
from holdfast.worker.run import Run, StopReason

log = logging.getLogger(__name__)

IGNORED_WHILE_KEEPING = frozenset({"cancel", "timeout", "deadline"})
"""What cannot stop an attempt that has ended and whose outputs are being kept."""


class Stopper(Struct, kw_only=True, eq=False):
    """Stops the attempts of one worker; make it on its event loop."""

    owned: OwnedJobs
    commands: CommitQueue
    meters: Meters
    failures: Failures
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _alarm: asyncio.TimerHandle | None = None

    def lose(self, job: OwnedJob, why: str) -> None:
        """Give up a job that is another owner's, or nobody's: nothing more is written for it."""
        self.failures.lost(job, why)
        self.meters.fenced()
        job.outbox.drop()
        self.owned.forget(job)
        if job.run is not None:
            self.stop(job.run, "lease_lost")

    def heed(self, job: OwnedJob) -> None:
        """React to a record that another process has changed."""
        if job.gone:
            return
        if not job.mine:
            # The committer settles what is posted: it may be our own end that we see.
            if not job.outbox.commands:
                self.lose(job, f"it is {job.record.state}, attempt {job.record.attempt}")
        elif job.record.cancel_requested is not None:
            self._cancel(job, hard=job.record.cancel_requested is CancelMode.HARD)

    def _cancel(self, job: OwnedJob, *, hard: bool) -> None:
        """Cancel an attempt. One that has ended is the law's to judge when its end is written."""
        run = job.run
        if run is not None:
            if run.stop_reason is None or (hard and not run.killed_at):
                self.stop(run, "cancel", hard=hard)
        elif job in self.owned.waiting:
            self.owned.waiting.remove(job)
            self.commands.post(job, c.Cancel(actor=job.actor))

    def lose_unproven(self, now: float) -> None:
        """Give up jobs whose lease may have passed; of those that ended the store is the judge."""
        for job in self.owned.snapshot():
            if job.proven_until <= now and (job.run is not None or job in self.owned.waiting):
                self.lose(job, "its lease could not be renewed in time")

    def stop(self, run: Run, reason: StopReason, *, hard: bool = False) -> None:
        """Ask an attempt to stop, and kill it after its grace, if it has one; `hard`: at once.

        The first reason stands.
        """
        if reason in IGNORED_WHILE_KEEPING and _is_keeping(run):
            return
        # A lost lease overrides all other reasons: nothing may be written any more.
        if run.stop_reason is None or reason == "lease_lost":
            run.stop_reason = reason
        if run.call is not None:
            run.runner.stop(run.call, reason)
        grace = 0.0 if hard else run.runnable.grace_seconds(reason)
        if grace:
            self.loop.call_later(grace, self._kill, run)
        else:
            self._kill(run)

    def _kill(self, run: Run) -> None:
        if run.job.run is not run or run.task is None or _is_keeping(run):
            return
        run.killed_at = time.monotonic()
        if run.call is not None:
            run.runner.kill(run.call)
        # A task that is cancelled before its first step never takes one; that step looks itself.
        if run.entered:
            run.task.cancel()
        self.loop.call_later(run.runner.kill_patience_seconds, self._check_dead, run)

    def _check_dead(self, run: Run) -> None:
        """Record that a handler survived its kill; kill it again from time to time."""
        job = run.job
        if job.run is not run or _is_keeping(run):
            return
        if not run.unkillable:
            run.unkillable = True
            self.meters.unkillable += 1
            log.error("job %s cannot be killed: its handler still runs", job.record.public_id)
            if job.started_at:
                self.commands.post(job, c.Progress(actor=job.actor, unkillable=True))
        self._kill(run)

    def watch(self, ends_at: float) -> None:
        """Look at the clock when the first attempt's time is up: one timer for all of them."""
        if self._alarm is None or ends_at < self._alarm.when():
            self.close()
            self._alarm = self.loop.call_at(ends_at, self._stop_timed_out)

    def _stop_timed_out(self) -> None:
        """Stop every attempt whose time is up, and watch for the next."""
        self._alarm = None
        now = time.monotonic()
        for job in list(self.owned.running):
            run = job.run
            if run is None or run.ends_at is None or run.stop_reason is not None:
                continue
            if run.ends_at <= now:
                past_deadline = job.deadline_at is not None and job.deadline_at <= now
                self.stop(run, "deadline" if past_deadline else "timeout")
            else:
                self.watch(run.ends_at)

    def close(self) -> None:
        """Watch the clock no longer."""
        if self._alarm is not None:
            self._alarm.cancel()


def _is_keeping(run: Run) -> bool:
    """Return whether an attempt has ended, and only its outputs are being kept."""
    if run.call is None or not run.runner.observes_exits:
        return False
    return cast(AnySurvivingRunner, run.runner).is_keeping(run.call)
