"""One attempt while it runs, and what its handler may ask of the worker meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.payload import Body
from holdfast.lifecycle.retry import is_compensation
from holdfast.ports.models import HIGHEST_LEVEL, Claimed, ClaimGroup, LogEntry
from holdfast.ports.runner import Runnable, Runner
from holdfast.tasks.context import TRACEPARENT
from holdfast.tasks.durable.protocol import Reply, Request
from holdfast.telemetry import Meters
from holdfast.telemetry.counters import TaskCounts
from holdfast.telemetry.tracing import is_traced
from holdfast.worker.durable_calls import DurableCalls
from holdfast.worker.outbox import CommitQueue
from holdfast.worker.owned_job import OwnedJob

StopReason: TypeAlias = Literal["cancel", "timeout", "deadline", "shutdown", "lease_lost"]


class RunTerms(Struct, frozen=True, eq=False):
    """How jobs that were claimed alike are run: worked out once for all of them."""

    runner: Runner[Any, Any]
    runnable: Runnable
    differ: bool
    """The terms of the jobs are not those of their task, and may have to be corrected."""
    undoes: bool
    """They are compensations."""
    awaits_start: bool
    """Their handlers act only once their start is durable."""
    timeout_seconds: float | None
    traced: bool
    counts: TaskCounts


def make_run_terms(
    group: ClaimGroup, runner: Runner[Any, Any], runnable: Runnable, meters: Meters
) -> RunTerms:
    """Work out how the jobs of a group are run."""
    like, policy = group.like, group.like.policy
    traceparent = group.created.env.get(TRACEPARENT)
    return RunTerms(
        runner,
        runnable,
        differ=policy != runnable.policy,
        undoes=is_compensation(like),
        awaits_start=not (policy.idempotent and like.failures == 0),
        timeout_seconds=None if policy.timeout is None else policy.timeout / 1e6,
        traced=is_traced(traceparent),
        counts=meters.lane(like.task, like.queue),
    )


class Run(Struct, eq=False, gc=False):
    """An attempt: the executor's notes on it, and the `Attempt` that its runner is given."""

    job: OwnedJob
    terms: RunTerms
    calls: HandlerCalls
    claimed: Claimed
    """The job as its runner sees it."""
    call: Any = None
    """What the runner made of the job's body; None before."""
    ends_at: float | None = None
    """When its time is up, by the monotonic clock."""
    task: asyncio.Task[None] | None = None
    entered: bool = False
    """Whether its task has taken its first step."""
    stop_reason: StopReason | None = None
    killed_at: float = 0.0
    unkillable: bool = False

    @property
    def runner(self) -> Runner[Any, Any]:
        """What runs it."""
        return self.terms.runner

    @property
    def runnable(self) -> Runnable:
        """What its job names."""
        return self.terms.runnable

    def progress(self, body: Body) -> None:
        """Record how far the job is."""
        self.calls.on_loop(self.calls.progress, self.job, body)

    def heartbeat(self) -> None:
        """Renew the lease in the handler's own name."""
        self.calls.on_loop(self.calls.heartbeat, self.job)

    def log(self, level: int, line: str) -> None:
        """Keep a line of the job's log."""
        self.calls.on_loop(self.calls.log, self.job, level, line)

    def ask(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """Make a durable call."""
        self.calls.on_loop(self.calls.ask, self.job, request, answer)


class HandlerCalls:
    """Does on the worker's event loop what running handlers ask for, from any thread."""

    def __init__(
        self,
        commands: CommitQueue,
        durable_calls: DurableCalls,
        keep_log: Callable[[LogEntry], None],
    ) -> None:
        """Serve handlers; make it on the worker's event loop."""
        self._commands = commands
        self._durable_calls = durable_calls
        self._keep_log = keep_log
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._asking: set[asyncio.Task[None]] = set()

    def on_loop(self, call: Callable[..., None], *args: Any) -> None:
        """Make a call on the event loop."""
        # On the loop at once: what follows in the handler may be its end.
        if threading.get_ident() == self._thread:
            call(*args)
        else:
            self._loop.call_soon_threadsafe(call, *args)

    def progress(self, job: OwnedJob, body: Body) -> None:
        """Post how far a handler is.

        Not once it has ended: what it left running must not speak over its outcome.
        """
        if job.run is not None:
            self._commands.post_progress(job, c.Progress(actor=job.actor, body=body))

    def heartbeat(self, job: OwnedJob) -> None:
        """Post a renewal in the handler's own name."""
        if job.run is not None:
            self._commands.post(job, c.Heartbeat(actor=job.actor, by_handler=True))

    def log(self, job: OwnedJob, level: int, line: str) -> None:
        """Keep a line of a handler's log, also one that comes after its attempt has ended."""
        record = job.claimed.job
        self._keep_log(
            LogEntry(
                id=record.id,
                attempt=record.attempt,
                at=time.time_ns() // 1000,
                level=min(max(level, 0), HIGHEST_LEVEL),
                message=line,
            )
        )

    def ask(self, job: OwnedJob, request: Request, answer: Callable[[Reply], None]) -> None:
        """Start to answer a durable call."""
        answering = self._loop.create_task(self._durable_calls.answer(job, request, answer))
        self._asking.add(answering)
        answering.add_done_callback(self._asking.discard)
