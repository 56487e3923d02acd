"""The executor: takes claimed jobs that wait, and runs each to its end.

An attempt is a task on the event loop, whatever runs its handler:
check → bind → start → run → collect → end. It ends only once nothing of the handler runs any more,
and only then is its end posted and its slot free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import Context as ContextVars
from contextvars import copy_context
from typing import cast

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.crash_points import reach
from holdfast.errors import ValidationError
from holdfast.flow.claim import make_terms_correction, release_unserved
from holdfast.flow.finish import end_after_shutdown, end_after_stop
from holdfast.ids import mint_request
from holdfast.lifecycle import commands as c
from holdfast.ports.models import ClaimGroup
from holdfast.ports.runner import AnySurvivingRunner, BoxedRunnable
from holdfast.tasks.context import TRACEPARENT
from holdfast.telemetry import Meters
from holdfast.telemetry.tracing import UNTRACED, Span, run_span
from holdfast.worker.durable_calls import DurableCalls
from holdfast.worker.failures import Failures
from holdfast.worker.outbox import START, CommitQueue
from holdfast.worker.owned_job import OwnedJob, OwnedJobs, lease_now
from holdfast.worker.prefetch import Prefetch
from holdfast.worker.run import HandlerCalls, Run, RunTerms, make_run_terms
from holdfast.worker.runner_table import RunnerTable
from holdfast.worker.stop import Stopper
from holdfast.worker.stop_request import StopRequest


class Executor(Struct, kw_only=True, eq=False):
    """Runs the jobs of one worker, a bounded number at a time; make it on its event loop."""

    owned: OwnedJobs
    commands: CommitQueue
    runners: RunnerTable
    concurrency: int
    stopper: Stopper
    stop_request: StopRequest
    durable_calls: DurableCalls
    handler_calls: HandlerCalls
    prefetch: Prefetch
    meters: Meters
    failures: Failures
    jitter: Callable[[], float]
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    variables: ContextVars = field(default_factory=copy_context)
    """What each attempt's context variables start from; no attempt sees another's."""

    def start_waiting(self) -> None:
        """Start jobs that wait, as far as there are free slots; release them at a shutdown."""
        waiting, running, in_room = self.owned.waiting, self.owned.running, self.owned.in_room
        stopping = self.stop_request.requested.is_set()
        while waiting and (len(running) - len(in_room) < self.concurrency or stopping):
            job = waiting.popleft()
            if not job.gone:
                self.start_or_end(job)
        self.meters.in_flight = len(running)
        self.meters.prefetched = len(waiting)

    def start_or_end(self, job: OwnedJob) -> None:
        """Start a job; post what is to be written instead where it must not run here and now."""
        if job.proven_until <= lease_now():
            self.stopper.lose(job, "its lease was over before it could be started")
        elif job.like.cancel_requested is not None:
            self.commands.post(job, c.Cancel(actor=job.actor))
        elif self.stop_request.requested.is_set():
            self._end_at_shutdown(job, started=False)
        else:
            self.start(job)

    def start(self, job: OwnedJob) -> None:
        """Start a job here and now; one that this worker has no runner for is released."""
        terms = self._find_terms(job.claimed.group)
        if terms is None:
            self.commands.post(job, release_unserved(job.record, job.actor))
            return
        run = job.run = Run(job, terms, self.handler_calls, job.claimed)
        self.owned.running.add(job)
        if job.takes_room:
            self.owned.in_room.add(job)
        run.task = self.loop.create_task(self._run(run), context=self.variables.copy())

    def _find_terms(self, group: ClaimGroup) -> RunTerms | None:
        """Return how jobs that were claimed alike are run: found once for all of them."""
        if isinstance(group.run_terms, RunTerms):
            return group.run_terms
        found = self.runners.find(group.like)
        if found is None:
            return None
        terms = group.run_terms = make_run_terms(group, *found, self.meters)
        return terms

    async def _run(self, run: Run) -> None:
        """Run one attempt to its end."""
        command: c.Command | None = None
        failed: BaseException | None = None
        try:
            run.entered = True
            if run.killed_at and not run.job.adopted:
                raise asyncio.CancelledError
            command = await self._run_attempt(run)
        except BaseException as error:  # noqa: BLE001  the attempt's edge: the job must end
            failed = error
        self._post_end(run, command, failed)

    async def _run_attempt(self, run: Run) -> c.Command | None:
        """Check, bind, start, run and collect; returns the command that ends the attempt."""
        job = run.job
        if run.terms.differ:
            await self._correct_terms(run)
        terms, runner = run.terms, run.runner
        if terms.undoes:
            await self.durable_calls.load_story(job, run.runnable.compensated_steps)
        now = time.monotonic()
        run.claimed, run.ends_at = job.claimed, _find_time_limit(run, now)
        call = run.call = runner.bind(run.runnable, run)
        reach("attempt.bound")
        if job.adopted:
            return await self._resume(run)
        preparing = runner.prepare(call)
        if preparing is not None:
            now = await self._prepare(run, preparing)
        self._post_start(run, now)
        if terms.awaits_start:
            # What must not run twice, or has failed before, acts only once its start is durable.
            await job.outbox.emptied()
            if job.gone:
                return None
            # The commit may have shown a request that came before the start.
            self.stopper.heed(job)
        reach("handler.entering")
        with _open_span(run) if terms.traced else UNTRACED:
            value = await runner.run(call)
        reach("handler.returned")
        if job.gone:
            return None
        if run.stop_reason in ("timeout", "deadline") and not runner.observes_exits:
            return self._choose_end(run, None)
        if terms.undoes:
            await self.durable_calls.note_compensated(job)
        return runner.collect(call, value, job.actor)

    async def _prepare(self, run: Run, preparing: Awaitable[None]) -> float:
        """Wait until the attempt can be started; return when that is.

        Its time limit counts from its start, the job's deadline all the time.
        """
        run.ends_at = run.job.deadline_at
        if run.ends_at is not None:
            self.stopper.watch(run.ends_at)
        await preparing
        now = time.monotonic()
        run.ends_at = _find_time_limit(run, now)
        return now

    async def _resume(self, run: Run) -> c.Command | None:
        """Continue an attempt that another worker of this host started."""
        job, runner = run.job, cast(AnySurvivingRunner, run.runner)
        run.ends_at = _find_time_left(job)
        job.started_at = time.monotonic()
        if run.ends_at is not None:
            self.stopper.watch(run.ends_at)
        if job.record.cancel_requested is not None:
            self.stopper.heed(job)
        with _open_span(run) if run.terms.traced else UNTRACED:
            value = await runner.resume(run.call)
        return None if job.gone else runner.collect(run.call, value, job.actor)

    def leave(self, run: Run) -> bool:
        """Let an attempt continue without this worker, if it can; nothing is written for it."""
        runner = cast(AnySurvivingRunner, run.runner)
        if run.job.gone or run.stop_reason is not None or run.call is None:
            return False
        if not runner.observes_exits:
            return False
        if not (run.job.record.running and runner.survives(run.call)):
            return False
        runner.leave(run.call)
        self.owned.leave(run.job)
        if run.task is not None:
            run.task.cancel()
        return True

    async def _correct_terms(self, run: Run) -> None:
        """Give a job its task's terms where its own are weaker; return once that is durable."""
        job = run.job
        command = make_terms_correction(
            job.record, job.claimed.created, job.actor, run.runnable.policy, mint_request()
        )
        if command is None:
            return
        refusal = await self.commands.ask(job, command)
        if refusal is not None:
            raise ValidationError(f"its terms could not be corrected: {refusal.message}")
        job.claimed = job.claimed.with_record(replace(job.claimed.job, policy=command.policy))
        run.terms = make_run_terms(job.claimed.group, run.runner, run.runnable, self.meters)

    def _post_start(self, run: Run, now: float) -> None:
        run.job.started_at = now
        if run.job.takes_room:
            run.job.network = cast(BoxedRunnable, run.runnable).network
        if run.ends_at is not None:
            self.stopper.watch(run.ends_at)
        self.commands.post(run.job, START)
        reach("start.posted")

    def _post_end(self, run: Run, command: c.Command | None, error: BaseException | None) -> None:
        """Post what an attempt ends with; its slot is free."""
        job = run.job
        try:
            if error is not None:
                command = self._choose_end(run, error)
            if isinstance(command, c.EndOfRun) and run.runner.observes_exits and run.call:
                command = cast(AnySurvivingRunner, run.runner).add_outputs(run.call, command)
            if command is not None:
                self.commands.post(job, command)
                if type(command) is not c.Complete:
                    self.failures.ended(job, command, error)
            reach("finish.posted")
        finally:
            # Whatever went wrong: a slot that stays taken would never run a job again.
            self.owned.running.discard(job)
            if job.takes_room:
                self.owned.in_room.discard(job)
            self._count_run(run)
            # Each refers to the other, and the garbage collector tracks neither, see `OwnedJob`.
            job.run = run.task = run.call = None
            self.owned.changed.set()
            self.start_waiting()

    def _count_run(self, run: Run) -> None:
        job = run.job
        if job.started_at:
            ran = time.monotonic() - job.started_at
            if not job.takes_room:
                self.prefetch.measured(ran)
            claimed = job.claimed
            waited = (claimed.updated_at - (claimed.run_at or claimed.updated_at)) / 1e6
            run.terms.counts.ran(waited, ran)
        if run.unkillable:
            self.meters.unkillable -= 1

    def _choose_end(self, run: Run, error: BaseException | None) -> c.Command | None:
        """Return how an attempt ends that was stopped, or whose handler raised."""
        job = run.job
        if job.gone:
            return None
        return end_after_stop(
            run.stop_reason,
            job.record,
            job.actor,
            error,
            job.claimed,
            self.jitter,
            started=job.started_at > 0,
        )

    def leave_behind(self, job: OwnedJob) -> None:
        """Post the end of a job whose handler could not be killed; the process kills it."""
        self._end_at_shutdown(job, started=True)

    def _end_at_shutdown(self, job: OwnedJob, *, started: bool) -> None:
        command = end_after_shutdown(job.record, job.actor, started=started)
        self.commands.post(job, command)
        self.failures.ended(job, command, None)


def _find_time_limit(run: Run, now: float) -> float | None:
    """Return when the time of an attempt that starts now is up, by the monotonic clock."""
    timeout, deadline_at = run.terms.timeout_seconds, run.job.deadline_at
    if timeout is None:
        return deadline_at
    return now + timeout if deadline_at is None else min(now + timeout, deadline_at)


def _find_time_left(job: OwnedJob) -> float | None:
    """Return when the time of an adopted attempt is up: its limit is kept across workers.

    The adoption was written at `updated_at` by the store's clock, before it was answered: counted
    from then, an attempt is never ended early.
    """
    timeout_at = job.record.timeout_at
    if timeout_at is None:
        return job.deadline_at
    ends_at = job.claimed_at + (timeout_at - job.record.updated_at) / 1e6
    return ends_at if job.deadline_at is None else min(ends_at, job.deadline_at)


def _open_span(run: Run) -> Span:
    """Make the handler's span a child of the one in which its job was submitted."""
    claimed = run.job.claimed
    record, traceparent = claimed.job, claimed.created.env.get(TRACEPARENT)
    return run_span(record.task, traceparent, record.public_id, record.attempt, queue=record.queue)
