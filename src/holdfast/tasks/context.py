"""The context of a handler: the first parameter of a task, `ctx`.

The same class is used in the worker's process and in an isolated child; only its link to the worker
differs. Everything here may be used from any thread and never waits for the database.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, overload

import msgspec
from msgspec import Struct

from holdfast.durations import Span, span_seconds
from holdfast.errors import HoldfastError
from holdfast.lifecycle.linked import first_job
from holdfast.lifecycle.payload import Body, encode_body
from holdfast.lifecycle.retry import is_compensation
from holdfast.ports.models import Claimed
from holdfast.tasks.cancellation import CANCELLATION_LOCK, Cancelled
from holdfast.tasks.durable.children import (
    ChildHandle,
    Spawnable,
    build_child_request,
    gather,
    spawn,
)
from holdfast.tasks.durable.driver import DurableCall
from holdfast.tasks.durable.progress import ProgressReports
from holdfast.tasks.durable.protocol import Reply, Request
from holdfast.tasks.durable.replay import Durable
from holdfast.tasks.durable.steps import count_step, step, step_terms
from holdfast.tasks.durable.timeouts import limit_ends_at
from holdfast.tasks.job_logger import JobLogger
from holdfast.telemetry.redaction import REDACTOR
from holdfast.telemetry.tracing import current_traceparent

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
TRACEPARENT = "traceparent"
"""The key under which a job's `env` carries the W3C trace context of its submitter."""

current_context: ContextVar[Context] = ContextVar("holdfast_context")
"""The context of the handler that runs here, if one does."""


class ContextLink(Protocol):
    """How a context reaches its worker. Callable from any thread; never blocks."""

    def progress(self, body: Body) -> None:
        """Record how far the job is."""

    def heartbeat(self) -> None:
        """Renew the lease in the handler's own name."""

    def log(self, level: int, line: str) -> None:
        """Keep a line of the job's log."""

    def ask(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """Make a durable call; `answer` is called in any thread."""


class FencingToken(Struct, frozen=True):
    """Identifies one attempt. A resource that stores the greatest token can refuse older ones.

    Compare `(epoch, attempt)` of one job: a fenced attempt has a smaller pair.
    """

    job_id: str
    epoch: int
    attempt: int

    def __str__(self) -> str:
        """Return it as one word for a header or a column."""
        return f"{self.job_id}/{self.epoch}/{self.attempt}"


class JobFacts(Struct, frozen=True, kw_only=True):
    """The job of a handler, as it was submitted."""

    id: str
    task: str
    queue: str
    tenant: str
    created_at: int
    """Microseconds since 1970, by the store's clock."""
    failures: int = 0
    max_attempts: int = 1
    labels: dict[str, str] = {}
    env: dict[str, str] = {}
    context_ptr: str | None = None
    """A pointer that the submitter gave, such as a URI, as it was given."""
    adapter_id: str | None = None
    """The adapter that the submitter asked for."""
    correlation_id: str | None = None
    trace_id: str | None = None
    parent_id: str | None = None
    workflow_id: str | None = None
    compensates: str | None = None
    """The job that this one undoes."""
    lineage: str = ""
    """The internal id of the first job in its line of retries and redrives; see `effect_key`."""
    resumes: str | None = None
    """The job that this one continues from."""

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of the submitter."""
        return self.env.get(TRACEPARENT)


class _Facts(Struct, frozen=True, kw_only=True):
    """What crosses to a child process."""

    job: JobFacts
    attempt: int
    epoch: int
    time_left: float | None = None
    cancelled: str | None = None


_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Facts)
Source: TypeAlias = Claimed | JobFacts


class Context:
    """The attempt that a handler runs."""

    __slots__ = (
        "_cancelled",
        "_durable",
        "_link",
        "_reports",
        "_source",
        "attempt",
        "ends_at",
        "epoch",
        "redact",
    )

    def __init__(
        self,
        source: Source,
        link: ContextLink,
        *,
        attempt: int,
        epoch: int = 1,
        ends_at: float | None = None,
    ) -> None:
        """Show a claimed job; `ends_at` is when its time is up, by the monotonic clock."""
        self._source = source
        self._link = link
        self.ends_at = ends_at
        self.attempt = attempt
        self.epoch = epoch
        self._cancelled: Cancelled | None = None
        self._durable: Durable | None = None
        self._reports: ProgressReports | None = None
        self.redact = REDACTOR.get()
        """The app's redact function, for threads in which it is not set."""

    @property
    def job(self) -> JobFacts:
        """The job, as it was submitted."""
        # Made when it is first asked for: most handlers never look.
        if isinstance(self._source, Claimed):
            self._source = _build_job_facts(self._source)
        return self._source

    @property
    def cancelled(self) -> Cancelled:
        """Whether the handler was asked to stop, and why."""
        if self._cancelled is None:
            with CANCELLATION_LOCK:
                if self._cancelled is None:
                    self._cancelled = Cancelled()
        return self._cancelled

    @property
    def token(self) -> FencingToken:
        """The token to pass to an external resource, so that it can refuse a fenced attempt."""
        return FencingToken(self.job.id, self.epoch, self.attempt)

    def effect_key(self, step: str | None = None) -> str:
        """Return the idempotency key for the effect of a step.

        The key is the same in every attempt, retry and redrive. Without a name, it is the key of
        the running step. With the name of a step, it is the key of the next use of the name, or,
        inside that step, of the present use.
        """
        return f"{self.job.lineage}/{self.durable.effect_name(step)}"

    @property
    def time_left(self) -> float | None:
        """Seconds until the timeout or the deadline, whichever comes first; None without either."""
        return None if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())

    @property
    def log(self) -> JobLogger:
        """A logger that is bound to the job; `holdfast logs` shows its lines."""
        job = self.job
        fields = {
            "job_id": job.id,
            "task": job.task,
            "attempt": self.attempt,
            "trace_id": job.trace_id,
            "correlation_id": job.correlation_id,
        }
        logger = logging.getLogger(f"holdfast.task.{job.task}")
        return JobLogger(logger, fields, self.keep_line, self.redact)

    def keep_line(self, level: int, line: str) -> None:
        """Have a line kept in the job's log."""
        self._link.log(level, line)

    def progress(self, value: Any) -> None:
        """Report the progress of the job as any JSON. The worker's next commit writes it.

        A handler that runs again after a retry, a wait or a redrive reports nothing until it has
        passed the recorded steps, because it has already reported that progress.
        """
        body = encode_body(value, "progress")
        if self.attempt == 1 and not self.job.resumes:
            self._link.progress(body)
            return
        if self._reports is None:
            self._reports = ProgressReports(self._link.ask, self._replays, self._link.progress)
        self._reports.report(body)

    def _replays(self) -> bool | None:
        return None if self._durable is None else self._durable.replays

    def heartbeat(self) -> None:
        """Renew the lease now. Usually not needed: the worker renews it."""
        self._link.heartbeat()

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retries: int = 0,
        backoff: Span = "500ms",
        verify: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Call `fn` and record its result, so that later attempts do not call it again.

        A step is identified by `name` and the number of earlier uses of that name. An attempt may
        die between the effect and its record. The next attempt then calls `verify` with the same
        arguments, which returns `Happened(result)`, `NOT_HAPPENED`, or `UNKNOWN`, which a person
        resolves.
        """
        asking = None if verify is None else partial(verify, *args, **kwargs)
        terms = step_terms(retries, backoff, asking)
        call = partial(fn, *args, **kwargs)
        # Counted here and not once it runs: of steps under one name that run side by side, each
        # has the number in which the handler called it.
        use = count_step(self.durable, name)
        return self.durable.drive(step(self.durable, name, use, call, terms))

    async def sleep(self, span: Span) -> None:
        """Suspend the job for a time. It holds no worker, and it continues even after a restart."""
        seconds = span_seconds(span, "sleep")
        until = self._limit_ends_at()
        await self.durable.drive(self.durable.sleep(seconds, _left(until)), until)

    async def wait_for(self, signal: str, *, timeout: Span | None = None) -> Any:
        """Suspend the job until a signal arrives; return its payload, or raise WaitTimeout.

        An `asyncio.timeout` or `asyncio.wait_for` around it has the effect of `timeout`, from when
        the handler first entered it.
        """
        until = self._limit_ends_at()
        limit = _shorter(timeout, _left(until))
        return await self.durable.drive(self.durable.wait_for(signal, limit), until)

    async def wait_any(self, *signals: str, timeout: Span | None = None) -> tuple[str, Any]:
        """Suspend the job until one of several signals arrives; return its name and payload.

        If several have arrived, the oldest is returned. Raises WaitTimeout like `wait_for`.
        """
        until = self._limit_ends_at()
        limit = _shorter(timeout, _left(until))
        steps = self.durable.wait_any(signals, limit)
        return await self.durable.drive(steps, until)  # type: ignore[no-any-return]

    def _limit_ends_at(self) -> float | None:
        """Return when, by the loop's clock, a time limit around a wait ends."""
        if self.durable.is_late():
            return asyncio.get_running_loop().time()
        return limit_ends_at(lambda variables: variables.get(current_context) is self)

    async def spawn(
        self, task: Spawnable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> ChildHandle[R]:
        """Submit a child once: later attempts get the same child.

        It has this job's tenant, correlation id and trace, and its deadline is not later. It is
        cancelled when this job is cancelled or ends without success.
        """
        return await self.durable.drive(self.spawning(task, *args, **kwargs))  # type: ignore[no-any-return]

    @overload
    async def gather(
        self, *children: ChildHandle[R], return_errors: Literal[False] = ...
    ) -> list[R]: ...
    @overload
    async def gather(
        self, *children: ChildHandle[R], return_errors: bool
    ) -> list[R | HoldfastError]: ...
    async def gather(self, *children: ChildHandle[Any], return_errors: bool = False) -> list[Any]:
        """Suspend the job until these children have ended; return their results in this order.

        If one ended without a result, JobFailed, JobCancelled, … is raised. With `return_errors`,
        the list has the error in place of the result.
        """
        steps = gather(self.durable, children, return_errors=return_errors)
        return await self.durable.drive(steps)  # type: ignore[no-any-return]

    def spawning(self, task: Spawnable[P, R], *args: P.args, **kwargs: P.kwargs) -> DurableCall:
        """Prepare to spawn: bad arguments raise here."""
        traceparent = current_traceparent() or self.job.traceparent
        asked = build_child_request(task.prepare(*args, **kwargs), traceparent)
        return spawn(self.durable, task, asked)

    @property
    def sync(self) -> SyncCalls:
        """The durable calls for a handler that is a plain function; they block its thread."""
        return SyncCalls(self)

    @property
    def durable(self) -> Durable:
        """What this attempt has done, and what earlier ones have."""
        if self._durable is None:
            self._durable = Durable(self._link.ask, self.goes_on_elsewhere, self.is_killed)
        return self._durable

    @durable.setter
    def durable(self, durable: Durable) -> None:
        self._durable = durable

    def goes_on_elsewhere(self) -> bool:
        """Return whether this attempt is being killed and another will follow it."""
        return self.cancelled.killed and self.cancelled.reason not in ("cancel", "deadline")

    def is_killed(self) -> bool:
        """Return whether this attempt is being killed."""
        return self.cancelled.killed

    def ask(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """Pass a request of an isolated handler to the worker."""
        self._link.ask(request, answer)

    async def conclude(self, handler: Awaitable[T]) -> T:
        """Await the handler, and then the steps that it left under way; see `finish`."""
        try:
            value = await handler
        finally:
            if self._durable is not None:
                await self._durable.wait_for_steps_under_way(killed=self.cancelled.killed)
        self.finish()
        return value

    def finish(self) -> None:
        """Check, at the end, that the handler did what its earlier attempts have recorded."""
        if self._durable is not None:
            self._durable.finish()
        if self._reports is not None:
            self._reports.finish()

    def facts(self) -> bytes:
        """Encode the context for a child process."""
        return _encoder.encode(
            _Facts(
                job=self.job,
                attempt=self.attempt,
                epoch=self.epoch,
                time_left=self.time_left,
                cancelled=self.cancelled.reason,
            )
        )

    @classmethod
    def restore(cls, facts: bytes, link: ContextLink) -> Context:
        """Decode in a child process what `facts` returned."""
        read = _decoder.decode(facts)
        ends_at = None if read.time_left is None else time.monotonic() + read.time_left
        context = cls(read.job, link, attempt=read.attempt, epoch=read.epoch, ends_at=ends_at)
        if read.cancelled is not None:
            context.cancelled.set(read.cancelled)
        return context


class SyncCalls:
    """Steps and waits for handlers that are plain functions."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retries: int = 0,
        backoff: Span = "500ms",
        verify: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call `fn` and record its result; see `Context.step`."""
        durable = self._context.durable
        asking = None if verify is None else partial(verify, *args, **kwargs)
        terms = step_terms(retries, backoff, asking)
        use = count_step(durable, name)
        return durable.drive_sync(step(durable, name, use, partial(fn, *args, **kwargs), terms))

    def sleep(self, span: Span) -> None:
        """Suspend the job for a time; see `Context.sleep`."""
        durable = self._context.durable
        durable.drive_sync(durable.sleep(span_seconds(span, "sleep")))

    def wait_for(self, signal: str, *, timeout: Span | None = None) -> Any:
        """Suspend the job until a signal arrives; see `Context.wait_for`."""
        durable = self._context.durable
        return durable.drive_sync(durable.wait_for(signal, _shorter(timeout, None)))

    def wait_any(self, *signals: str, timeout: Span | None = None) -> tuple[str, Any]:
        """Suspend the job until one of several signals arrives; see `Context.wait_any`."""
        durable = self._context.durable
        return durable.drive_sync(durable.wait_any(signals, _shorter(timeout, None)))  # type: ignore[no-any-return]

    def spawn(self, task: Spawnable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> ChildHandle[R]:
        """Submit a child once; see `Context.spawn`."""
        context = self._context
        return context.durable.drive_sync(context.spawning(task, *args, **kwargs))  # type: ignore[no-any-return]

    @overload
    def gather(self, *children: ChildHandle[R], return_errors: Literal[False] = ...) -> list[R]: ...
    @overload
    def gather(self, *children: ChildHandle[R], return_errors: bool) -> list[R | HoldfastError]: ...
    def gather(self, *children: ChildHandle[Any], return_errors: bool = False) -> list[Any]:
        """Suspend the job until these children have ended; see `Context.gather`."""
        durable = self._context.durable
        return durable.drive_sync(gather(durable, children, return_errors=return_errors))  # type: ignore[no-any-return]


def _shorter(timeout: Span | None, around: float | None) -> float | None:
    limits = (None if timeout is None else span_seconds(timeout, "timeout"), around)
    return min((limit for limit in limits if limit is not None), default=None)


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - asyncio.get_running_loop().time())


def _build_job_facts(claimed: Claimed) -> JobFacts:
    job, made = claimed.job, claimed.created
    parent_id = None if job.parent_id is None else str(job.parent_id)
    return JobFacts(
        id=job.public_id,
        task=job.task,
        queue=job.queue,
        tenant=job.tenant,
        created_at=job.created_at,
        failures=job.failures,
        max_attempts=job.policy.max_attempts,
        labels=made.labels,
        env=made.env,
        context_ptr=made.context_ptr,
        adapter_id=made.adapter_id,
        correlation_id=claimed.correlation_id,
        trace_id=made.trace_id,
        parent_id=parent_id,
        workflow_id=job.workflow_id,
        compensates=parent_id if is_compensation(job) else None,
        lineage=str(first_job(job, made)),
        resumes=None if made.resumes is None else str(made.resumes),
    )
