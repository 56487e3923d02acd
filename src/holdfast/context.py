"""What a handler sees of its job: the first parameter of a task, `ctx`.

The same class in the worker's process and in an isolated child; only its link to the worker
differs. Everything here may be used from any thread and never waits for the database.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar
from functools import partial
from typing import Any, Literal, ParamSpec, Protocol, TypeAlias, TypeVar, overload

import msgspec
from msgspec import Struct

from holdfast.durable.children import ChildHandle, Spawnable, child_request, gather, spawn
from holdfast.durable.driving import Steps
from holdfast.durable.messages import Reply, Request
from holdfast.durable.progress import Reports
from holdfast.durable.replay import Durable
from holdfast.durable.steps import count_step, step, step_terms
from holdfast.durable.timeouts import limit_ends_at
from holdfast.errors import HoldfastError
from holdfast.flow.redaction import current_redactor
from holdfast.joblog import JobLogger
from holdfast.lifecycle.linked import first_job
from holdfast.lifecycle.payload import Body, encode_body
from holdfast.lifecycle.retry import is_compensation
from holdfast.ports import Claimed
from holdfast.spans import Span, span_seconds
from holdfast.telemetry.tracing import current_traceparent

P = ParamSpec("P")
R = TypeVar("R")
TRACEPARENT = "traceparent"
"""The key under which a job's `env` carries the W3C trace context of its submitter."""

current_context: ContextVar[Context] = ContextVar("holdfast_context")
"""The context of the handler that runs here, if one does."""


class Link(Protocol):
    """How a context reaches its worker. Callable from any thread; never blocks."""

    def progress(self, body: Body) -> None:
        """Record how far the job is."""

    def heartbeat(self) -> None:
        """Renew the lease in the handler's own name."""

    def log(self, level: int, line: str) -> None:
        """Keep a line of the job's log."""

    def ask(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """Have something remembered or recalled; `answer` is called in any thread."""


class Token(Struct, frozen=True):
    """Names one attempt for good. A resource that keeps the greatest it saw can refuse older ones.

    Compare `(epoch, attempt)` of one job: what a fenced attempt writes carries a smaller pair.
    """

    job_id: str
    epoch: int
    attempt: int

    def __str__(self) -> str:
        """Write it as one word for a header or a column."""
        return f"{self.job_id}/{self.epoch}/{self.attempt}"


class JobFacts(Struct, frozen=True, kw_only=True):
    """What a handler may want to know of its job."""

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
    correlation_id: str | None = None
    trace_id: str | None = None
    parent_id: str | None = None
    workflow_id: str | None = None
    compensates: str | None = None
    """The job that this one undoes."""
    lineage: str = ""
    """The first job of its line of retries and redrives, by its internal id; see `effect_key`."""
    resumes: str | None = None
    """The job that this one continues from."""

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context of the submitter."""
        return self.env.get(TRACEPARENT)


class Cancelled:
    """Whether the handler was asked to end: as a flag, awaitable, or to be waited for in a thread.

    `reason` is `cancel`, `timeout`, `deadline`, `shutdown` or `lease_lost`.
    """

    __slots__ = ("_event", "_waiters", "killed", "reason")

    def __init__(self) -> None:
        """Begin unasked."""
        self.reason: str | None = None
        self.killed = False
        """Whether it was no longer asked but made to end."""
        self._event: threading.Event | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def __bool__(self) -> bool:
        """Whether it was asked for."""
        return self.reason is not None

    def __await__(self) -> Generator[Any, None, str]:
        """Wait until it is asked for; tells the reason."""
        if self.reason is None:
            yield from self._waiter().__await__()
        return self.reason or ""

    def __repr__(self) -> str:
        """Show whether it was asked for, and why."""
        return f"<Cancelled: {self.reason}>" if self.reason else "<Cancelled: no>"

    def wait(self, timeout: float | None = None) -> bool:
        """Wait in a thread until it is asked for, or the time is up; tells whether it was."""
        with _LOCK:
            if self._event is None:
                self._event = threading.Event()
            event = self._event
            if self.reason is not None:
                event.set()
        return event.wait(timeout)

    def set(self, reason: str) -> None:
        """Ask; the first reason stands. From any thread."""
        with _LOCK:
            if self.reason is not None:
                return
            self.reason = reason
            waiters, self._waiters = self._waiters, []
            if self._event is not None:
                self._event.set()
        for waiter in waiters:
            waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    def _waiter(self) -> asyncio.Future[None]:
        waiter = asyncio.get_running_loop().create_future()
        with _LOCK:
            if self.reason is not None:
                waiter.set_result(None)
            else:
                self._waiters.append(waiter)
        return waiter


# One for all: it is held for a few instructions, and a lock per job would cost every job.
_LOCK = threading.Lock()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


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
    """A handler's view of the attempt it runs."""

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
        link: Link,
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
        self._reports: Reports | None = None
        self.redact = current_redactor()
        """The app's redact function, for threads in which nobody has set it."""

    @property
    def job(self) -> JobFacts:
        """The job, as it was submitted."""
        # Made when it is first asked for: most handlers never look.
        if isinstance(self._source, Claimed):
            self._source = _job_facts(self._source)
        return self._source

    @property
    def cancelled(self) -> Cancelled:
        """Whether the handler was asked to end, and why."""
        if self._cancelled is None:
            with _LOCK:
                if self._cancelled is None:
                    self._cancelled = Cancelled()
        return self._cancelled

    @property
    def token(self) -> Token:
        """What to hand to a resource outside, so that it can refuse an attempt that was fenced."""
        return Token(self.job.id, self.epoch, self.attempt)

    def effect_key(self, step: str | None = None) -> str:
        """Return the key by which others recognise the effect of a step: an idempotency key.

        The same in every attempt, retry and redrive. Without a name it is the key of the step that
        is running; given the name of a step it is that of the next use of the name, or, inside of
        that step, of the present one.
        """
        return f"{self.job.lineage}/{self.durable.effect_name(step)}"

    @property
    def time_left(self) -> float | None:
        """Seconds until the timeout or the deadline, whichever is first; None without either."""
        return None if self.ends_at is None else max(0.0, self.ends_at - time.monotonic())

    @property
    def log(self) -> JobLogger:
        """A logger that is bound to the job; `holdfast logs` shows what was said by it."""
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
        """Record how far the job is: any JSON. It is written with the worker's next commit.

        A handler that goes on after a retry, a wait or a redrive reports nothing until it is past
        what is recorded: what it says on the way was said before.
        """
        body = encode_body(value, "progress")
        if self.attempt == 1 and not self.job.resumes:
            self._link.progress(body)
            return
        if self._reports is None:
            self._reports = Reports(self._link.ask, self._replays, self._link.progress)
        self._reports.report(body)

    def _replays(self) -> bool | None:
        return None if self._durable is None else self._durable.replays

    def heartbeat(self) -> None:
        """Renew the lease now. Not needed while the worker lives: its keeper does it."""
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
        """Do something once, whatever happens to this attempt: its result is remembered.

        A later attempt gets the result and does not call `fn` again. Named by `name` and how often
        it was used before. Where an attempt may die between the effect and its record, `verify`
        (called with the same arguments) says whether it happened: `Happened(result)`,
        `NOT_HAPPENED`, or `UNKNOWN`, which a person resolves.
        """
        asking = None if verify is None else partial(verify, *args, **kwargs)
        terms = step_terms(retries, backoff, asking)
        call = partial(fn, *args, **kwargs)
        # Counted here and not once it runs: of steps under one name that run side by side, each
        # has the number in which the handler called it.
        use = count_step(self.durable, name)
        return self.durable.drive(step(self.durable, name, use, call, terms))

    async def sleep(self, span: Span) -> None:
        """Park the job: its slot is free, and it goes on after the time, even after a restart."""
        seconds = span_seconds(span, "sleep")
        until = self._limit_ends_at()
        await self.durable.drive(self.durable.sleep(seconds, _left(until)), until)

    async def wait_for(self, signal: str, *, timeout: Span | None = None) -> Any:
        """Park the job until a signal comes; returns what was sent, or raises WaitTimeout.

        An `asyncio.timeout` or `asyncio.wait_for` around it counts like `timeout`, from when the
        handler came to it.
        """
        until = self._limit_ends_at()
        limit = _shorter(timeout, _left(until))
        return await self.durable.drive(self.durable.wait_for(signal, limit), until)

    async def wait_any(self, *signals: str, timeout: Span | None = None) -> tuple[str, Any]:
        """Park the job until one of several signals comes; returns its name and what was sent.

        Of those that are there already, the oldest. Raises WaitTimeout as `wait_for` does.
        """
        until = self._limit_ends_at()
        limit = _shorter(timeout, _left(until))
        steps = self.durable.wait_any(signals, limit)
        return await self.durable.drive(steps, until)  # type: ignore[no-any-return]

    def _limit_ends_at(self) -> float | None:
        """Say when, by the loop's clock, a time limit around a wait ends."""
        if self.durable.is_late():
            return asyncio.get_running_loop().time()
        return limit_ends_at(lambda variables: variables.get(current_context) is self)

    async def spawn(
        self, task: Spawnable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> ChildHandle[R]:
        """Submit a child, once, whatever happens to this attempt: a later one gets the same.

        It has this job's tenant, correlation and trace, and no later deadline. It is cancelled when
        this job is, or ends without success.
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
        """Park the job until these children have ended; returns their results in this order.

        If one ended without a result, JobFailed, JobCancelled, … is raised; `return_errors` puts it
        in the result's place instead.
        """
        steps = gather(self.durable, children, return_errors=return_errors)
        return await self.durable.drive(steps)  # type: ignore[no-any-return]

    def spawning(self, task: Spawnable[P, R], *args: P.args, **kwargs: P.kwargs) -> Steps:
        """Prepare to spawn: bad arguments raise here."""
        traceparent = current_traceparent() or self.job.traceparent
        asked = child_request(task.prepare(*args, **kwargs), traceparent)
        return spawn(self.durable, task, asked)

    @property
    def sync(self) -> SyncCalls:
        """The durable calls for a handler that is no coroutine: they block its thread."""
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
        """Whether this attempt is being killed, and another will follow it."""
        return self.cancelled.killed and self.cancelled.reason not in ("cancel", "deadline")

    def is_killed(self) -> bool:
        """Whether this attempt is being killed."""
        return self.cancelled.killed

    def ask(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """Hand a request of an isolated handler on."""
        self._link.ask(request, answer)

    @property
    def is_durable(self) -> bool:
        """Whether the handler has made a durable call."""
        return self._durable is not None

    async def rest(self, *, killed: bool = False) -> None:
        """Wait, after the handler, until no step goes on that it left under way."""
        await self.durable.rest(killed=killed)

    def finish(self) -> None:
        """Check, at the end, that the handler did what its earlier attempts have recorded."""
        if self._durable is not None:
            self._durable.finish()
        if self._reports is not None:
            self._reports.finish()

    def facts(self) -> bytes:
        """Write all of this down for a child process."""
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
    def restore(cls, facts: bytes, link: Link) -> Context:
        """Read in a child process what the worker wrote down."""
        told = _decoder.decode(facts)
        ends_at = None if told.time_left is None else time.monotonic() + told.time_left
        context = cls(told.job, link, attempt=told.attempt, epoch=told.epoch, ends_at=ends_at)
        if told.cancelled is not None:
            context.cancelled.set(told.cancelled)
        return context


class SyncCalls:
    """`ctx.sync`: steps and waits for handlers that run in a thread, or in a process."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        """Act for a context."""
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
        """Do something once; see `Context.step`."""
        durable = self._context.durable
        asking = None if verify is None else partial(verify, *args, **kwargs)
        terms = step_terms(retries, backoff, asking)
        use = count_step(durable, name)
        return durable.drive_sync(step(durable, name, use, partial(fn, *args, **kwargs), terms))

    def sleep(self, span: Span) -> None:
        """Park the job; see `Context.sleep`."""
        durable = self._context.durable
        durable.drive_sync(durable.sleep(span_seconds(span, "sleep")))

    def wait_for(self, signal: str, *, timeout: Span | None = None) -> Any:
        """Park the job until a signal comes; see `Context.wait_for`."""
        durable = self._context.durable
        return durable.drive_sync(durable.wait_for(signal, _shorter(timeout, None)))

    def wait_any(self, *signals: str, timeout: Span | None = None) -> tuple[str, Any]:
        """Park the job until one of several signals comes; see `Context.wait_any`."""
        durable = self._context.durable
        return durable.drive_sync(durable.wait_any(signals, _shorter(timeout, None)))  # type: ignore[no-any-return]

    def spawn(self, task: Spawnable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> ChildHandle[R]:
        """Submit a child, once; see `Context.spawn`."""
        context = self._context
        return context.durable.drive_sync(context.spawning(task, *args, **kwargs))  # type: ignore[no-any-return]

    @overload
    def gather(self, *children: ChildHandle[R], return_errors: Literal[False] = ...) -> list[R]: ...
    @overload
    def gather(self, *children: ChildHandle[R], return_errors: bool) -> list[R | HoldfastError]: ...
    def gather(self, *children: ChildHandle[Any], return_errors: bool = False) -> list[Any]:
        """Park the job until these children have ended; see `Context.gather`."""
        durable = self._context.durable
        return durable.drive_sync(gather(durable, children, return_errors=return_errors))  # type: ignore[no-any-return]


def _shorter(timeout: Span | None, around: float | None) -> float | None:
    limits = (None if timeout is None else span_seconds(timeout, "timeout"), around)
    return min((limit for limit in limits if limit is not None), default=None)


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - asyncio.get_running_loop().time())


def _job_facts(claimed: Claimed) -> JobFacts:
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
        correlation_id=claimed.correlation_id,
        trace_id=made.trace_id,
        parent_id=parent_id,
        workflow_id=job.workflow_id,
        compensates=parent_id if is_compensation(job) else None,
        lineage=str(first_job(job, made)),
        resumes=None if made.resumes is None else str(made.resumes),
    )
