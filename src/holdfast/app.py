"""The app: what a user's code begins with. Tasks, submits, and what can be asked of jobs."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload
from uuid import UUID

from typing_extensions import Unpack

from holdfast.asking import Asker, PublishedTerms, Rehearsal, all_accepted
from holdfast.bridge import Bridge
from holdfast.context import Context
from holdfast.enlisting import Enlisting
from holdfast.errors import BadData, BadTask, HoldfastError, ReservedName, StoreError
from holdfast.flow.missing import missing
from holdfast.flow.redaction import Redact
from holdfast.flow.submit import refused_submit
from holdfast.flow.why import Why, why
from holdfast.jobs import JobHandle
from holdfast.lifecycle.job import Actor, Job, JobId, NewJob
from holdfast.lifecycle.payload import check_number, check_text, decode_body
from holdfast.lifecycle.reserved import check_not_reserved
from holdfast.lifecycle.retry import is_compensation
from holdfast.lifecycle.states import KeyKind, Role, State
from holdfast.lifecycle.terms import TaskTerms
from holdfast.local import LocalOperations
from holdfast.operations import found
from holdfast.options import TaskOptions, read_states
from holdfast.pending import PendingHandle
from holdfast.ports import Query, QueueStatus, Store, SubmitOutcome, SubmitRefused
from holdfast.runners.lazily import LazyProcesses
from holdfast.services.failures import Hook
from holdfast.services.session import Session
from holdfast.services.worker import Worker
from holdfast.spans import Span, span_seconds
from holdfast.tasks import (
    Call,
    P,
    R,
    Registration,
    Task,
    TaskSet,
    WithContext,
    foreign_task,
    make_task,
)
from holdfast.telemetry import Meters
from holdfast.telemetry.tracing import submit_span
from holdfast.wiring import make_store, read_address

log = logging.getLogger(__name__)

T = TypeVar("T")
OnFailure = TypeVar("OnFailure", bound=Hook)
Redactor = TypeVar("Redactor", bound=Redact)
NO_TERMS_SECONDS = 60.0
"""How long a store that could not be opened is not asked for the terms of tasks again."""


class Holdfast(Enlisting):
    """Tasks and jobs over one store.

    It opens by itself when it is first used, on whichever event loop that is, and closes with that
    loop; `async with app:` opens and closes it at points of your choice.
    """

    def __init__(
        self,
        url: str = "holdfast.db",
        *,
        name: str = "app",
        tenant: str = "default",
        deadline_seconds: float = 30.0,
        propagate: Callable[[], str | None] | None = None,
        unbounded_leases: bool = False,
        store: Callable[[], Store] | None = None,
    ) -> None:
        """Take the settings; nothing is opened yet.

        `name` is who the ledger says submitted or cancelled. `propagate` tells the W3C traceparent
        of whoever submits. `unbounded_leases` lets tests have leases that no worker could keep
        renewed. `store` makes a store of your own instead of one for `url`.
        """
        address = read_address(url)
        self.url = url
        self.tasks = TaskSet()
        self.tenant = check_text(tenant, "tenant", limit=200)
        self.control = Actor(Role.CONTROL, check_text(name, "name", limit=200))
        self.asker = Asker(actor=Actor(Role.GATEWAY, name), tenant=tenant, propagate=propagate)
        self.written_ahead: set[int] = set()
        self._bounded = not unbounded_leases
        self._deadline = deadline_seconds
        self.make_store = store or (lambda: make_store(address, deadline_seconds=deadline_seconds))
        self.rehearsal: Rehearsal | None = None
        self.failure_hooks: list[Hook] = []
        self.redactors: list[Redact] = []
        self.meters = Meters()
        """What this process counts of its submits and workers."""
        self._sessions: dict[asyncio.AbstractEventLoop, Session] = {}
        self._lock = threading.Lock()
        self._no_terms_until = 0.0
        self._inherited: list[Session] = []
        """What a parent had open when it forked: kept, so that nothing closes its connections."""
        self._bridge = Bridge(after_fork=self._leave_parent)

    @property
    def schema(self) -> str:
        """The schema on PostgreSQL that holds its jobs."""
        return read_address(self.url).schema

    def __repr__(self) -> str:
        """Tell where it keeps its jobs, without a password."""
        return f"<Holdfast {self.url.rpartition('@')[2].partition('?')[0]}>"

    # -- tasks

    @overload
    def task(self, fn: WithContext[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: WithContext[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> Registration: ...
    def task(self, fn: Any = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Register a function as a task: `@app.task`, or `@app.task(retries=5, timeout="5m")`."""
        registration = Registration(self.register, options)
        return registration if fn is None else registration(fn)

    def register(self, fn: Callable[..., Any], options: TaskOptions) -> Task[Any, Any]:
        """Register a function under its options."""
        task = make_task(fn, options, bounded=self._bounded, submitter=self)
        try:
            check_not_reserved(task.name, "the name")
            check_not_reserved(task.queue, "queue")
        except ReservedName as error:
            raise BadTask(f"task {task.name!r}: {error}") from error
        self.tasks.add(task)
        return task

    def named(self, name: str) -> Task[..., Any]:
        """Give the task of a name; one that is not registered here takes named arguments."""
        return self.tasks.get(name) or foreign_task(name, self)

    # -- submitting

    async def submit(self, task: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Submit a job of a task that may be registered somewhere else: then by named arguments."""
        return await self.named(task).submit(*args, **kwargs)

    def submit_sync(self, task: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Submit a job by the name of its task, from a thread without a loop."""
        return self.named(task).submit_sync(*args, **kwargs)

    async def submit_many(self, calls: Sequence[Call]) -> list[JobHandle[Any]]:
        """Submit calls of any tasks together: `[resize.prepare("a.png"), send.prepare("x")]`.

        Answers in their order. One that is bad is named before anything is written; where one is
        refused because of its keys, PartlySubmitted tells what became of each.
        """
        if not calls:
            return []
        session = await self._session()
        parents = [
            None if call.parent is None else await self.parent_id(call.parent) for call in calls
        ]
        with submit_span(calls[0].task.name, calls[0].task.queue) as active:
            terms = await self.published(calls) if self.asker.named_in(calls) else None
            jobs = self.asker.decide_all(calls, parents, self.asker.trace(active), terms)
            outcomes = await session.together.submit(jobs)
        answers = [
            self._answer(call, job, outcome)
            for call, job, outcome in zip(calls, jobs, outcomes, strict=True)
        ]
        handles = all_accepted(answers)
        if self.rehearsal is not None:
            await self.rehearsal.submitted(handles)
        return handles

    async def published(self, calls: Sequence[Call]) -> PublishedTerms:
        """Read the terms of tasks that calls know by name alone.

        Where the store cannot be opened nothing is known: who submits on a connection of its own
        does without, and the worker that claims the job corrects its terms.
        """
        if time.monotonic() < self._no_terms_until:
            return _nothing_published
        try:
            terms = (await self._session()).terms
        except StoreError as error:
            self._no_terms_until = time.monotonic() + NO_TERMS_SECONDS
            log.warning("the terms of tasks could not be read: %s", error)
            return _nothing_published
        await terms.learn(self.asker.named_in(calls))
        return terms.get

    def published_sync(self, calls: Sequence[Call]) -> PublishedTerms:
        """Read the terms of tasks that calls know by name alone, in any thread."""
        if self._bridge.runs_here():
            return _nothing_published
        return self._bridge.run_blocking(self.published(calls))

    def _answer(self, call: Call, job: NewJob, outcome: SubmitOutcome) -> Any:
        if isinstance(outcome, SubmitRefused):
            return refused_submit(outcome)
        # By its id, not by the answer: one that was sent twice finds itself there.
        created = outcome.job.id is job.record.id or outcome.job.id == job.record.id
        if created:
            self.meters.submitted(outcome.job.task, outcome.job.queue)
        return JobHandle(outcome.job, self, call.task.unpack_result, created=created)

    async def parent_id(self, parent: Any) -> JobId | None:
        """Tell the internal id of what was given as a parent: a handle, an id, a context."""
        match parent:
            case None:
                return None
            case JobHandle():
                return parent.record.id
            case PendingHandle():
                return parent.internal_id
            case Context():
                return (await self.get(parent.job.id, tenant=parent.job.tenant)).record.id
            case _:
                return (await self.get(parent)).record.id

    # -- jobs

    async def get(self, job_id: str | UUID, *, tenant: str | None = None) -> JobHandle[Any]:
        """Look a job up by its id; NoSuchJob if there is none."""
        store = await self.store()
        text = check_text(str(job_id), "job_id")
        id_ = await store.look_up(tenant or self.tenant, KeyKind.JOB_ID, text)
        record = None if id_ is None else (await store.get([id_]))[0]
        if record is None:
            raise await missing(store, text, id=id_, tenant=tenant or self.tenant)
        return self._handle(record)

    def get_sync(self, job_id: str | UUID, *, tenant: str | None = None) -> JobHandle[Any]:
        """Look a job up, from a thread without a loop."""
        return self.run_sync(self.get(job_id, tenant=tenant), "app.get(…)")

    async def cancel(
        self, job: str | UUID | JobHandle[Any], *, hard: bool = False, reason: str | None = None
    ) -> JobHandle[Any]:
        """Cancel a job; see `JobHandle.cancel`."""
        handle = await self._found(job)
        await handle.cancel(hard=hard, reason=reason)
        return handle

    async def why(self, job: str | UUID | JobHandle[Any]) -> Why:
        """Tell why a job stands where it stands: a reason with its facts."""
        handle = await self._found(job)
        return await why(await self.store(), handle.record.id)

    async def jobs(
        self,
        *,
        state: State | str | Sequence[State | str] = (),
        queue: str | None = None,
        task: str | None = None,
        parent: Any = None,
        workflow_id: str | None = None,
        correlation_id: str | None = None,
        error_code: str | None = None,
        labels: Mapping[str, str] | None = None,
        tenant: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[JobHandle[Any]]:
        """Go through jobs, newest first: `async for job in app.jobs(state="failed")`."""
        operations = await self.operations()
        query = Query(
            tenant=tenant or self.tenant,
            states=read_states(state),
            queue=queue,
            task=task,
            parent_id=await self.parent_id(parent),
            workflow_id=workflow_id,
            correlation_id=correlation_id,
            error_code=error_code,
            labels=tuple((labels or {}).items()),
        )
        async for record in found(operations, query, limit):
            yield self._handle(record)

    async def pause(self, queue: str, *, reason: str | None = None) -> QueueStatus:
        """Let no job of a queue be claimed."""
        store = await self.store()
        return await store.pause(queue, actor=self.control.label, reason=reason)

    async def resume(self, queue: str, *, reason: str | None = None) -> QueueStatus:
        """Let a queue's jobs be claimed again."""
        store = await self.store()
        return await store.resume(queue, actor=self.control.label, reason=reason)

    def submit_many_sync(self, calls: Sequence[Call]) -> list[JobHandle[Any]]:
        """Submit calls together, from a thread without a loop."""
        return self.run_sync(self.submit_many(calls), "app.submit_many(…)")

    def cancel_sync(
        self, job: str | UUID | JobHandle[Any], *, hard: bool = False, reason: str | None = None
    ) -> JobHandle[Any]:
        """Cancel a job, from a thread without a loop."""
        return self.run_sync(self.cancel(job, hard=hard, reason=reason), "app.cancel(…)")

    def why_sync(self, job: str | UUID | JobHandle[Any]) -> Why:
        """Explain why a job stands where it stands, from a thread without a loop."""
        return self.run_sync(self.why(job), "app.why(…)")

    def jobs_sync(self, **filters: Any) -> list[JobHandle[Any]]:
        """List jobs, newest first, from a thread without a loop; filtered as by `jobs`."""

        async def listed() -> list[JobHandle[Any]]:
            return [job async for job in self.jobs(**filters)]

        return self.run_sync(listed(), "app.jobs(…)")

    def pause_sync(self, queue: str, *, reason: str | None = None) -> QueueStatus:
        """Let no job of a queue be claimed, from a thread without a loop."""
        return self.run_sync(self.pause(queue, reason=reason), "app.pause(…)")

    def resume_sync(self, queue: str, *, reason: str | None = None) -> QueueStatus:
        """Let a queue's jobs be claimed again, from a thread without a loop."""
        return self.run_sync(self.resume(queue, reason=reason), "app.resume(…)")

    def _handle(self, record: Job) -> JobHandle[Any]:
        # What undoes a job bears its task's name, and returns nothing.
        task = None if is_compensation(record) else self.tasks.get(record.task)
        return JobHandle(record, self, decode_body if task is None else task.unpack_result)

    async def _found(self, job: str | UUID | JobHandle[Any]) -> JobHandle[Any]:
        return job if isinstance(job, JobHandle) else await self.get(job)

    # -- running

    def worker(
        self,
        *,
        queues: Sequence[str] = ("default",),
        concurrency: int = 20,
        capabilities: Iterable[str] = (),
        grace: Span = "30s",
        poll: Span = "500ms",
        tick: Span = "1s",
        reconcile: bool = True,
        meters: Meters | None = None,
        exits: bool = False,
    ) -> Worker:
        """Make a worker of this app's tasks: `async with app.worker():`, or `await ….run()`.

        `grace` is what running jobs get when it stops. It looks for work every `poll` even without
        a hint, and every `tick` for cancels, lost leases and timers. `exits`: the process ends
        with it, and so may what cannot be killed otherwise.
        """
        return Worker(
            self.make_store(),
            self.tasks,
            keeper_store=self.make_store(),
            children=LazyProcesses(lambda: self.reference, concurrency),
            queues=_check_queues(queues),
            concurrency=check_number(concurrency, "concurrency", high=10_000),
            capabilities=frozenset(capabilities),
            grace_seconds=span_seconds(grace, "grace"),
            poll_seconds=span_seconds(poll, "poll"),
            tick_seconds=span_seconds(tick, "tick"),
            reconcile=reconcile,
            meters=meters or self.meters,
            exits=exits,
            on_failure=self.failure_hooks,
            redact=self.redact_text if self.redactors else None,
        )

    def on_failure(self, hook: OnFailure) -> OnFailure:
        """Register a function that is called for each failed or lost attempt: `@app.on_failure`.

        For error reporters. Workers that are made afterwards call it with a `Failure`, in a thread
        of their own: one that raises is logged, one that hangs never holds up a job.
        """
        if inspect.iscoroutinefunction(hook):
            raise BadTask("app.on_failure takes a plain function; it is called in a thread")
        self.failure_hooks.append(hook)
        return hook

    def redact(self, fn: Redactor) -> Redactor:
        """Register a function that removes secrets from texts: `@app.redact`.

        Workers that are made afterwards apply it to error messages, tracebacks and log lines of
        jobs before they are stored or logged. Where it raises, the text is withheld. It must be
        quick, and leave alone what it has redacted before.
        """
        self.redactors.append(fn)
        return fn

    def redact_text(self, text: str) -> str:
        """Apply all that `redact` registered."""
        for redact in self.redactors:
            text = redact(text)
        return text

    @property
    def reference(self) -> str:
        """Where other processes find this app: `module:attribute`."""
        for module in {task.fn.__module__ for task in self.tasks.values()}:
            for attribute, value in vars(sys.modules[module]).items():
                if value is self:
                    return f"{module}:{attribute}"
        raise BadTask(
            "a handler in a process of its own needs its app at the top of the module "
            "that defines its task"
        )

    def use(self, url: str, *, store: Callable[[], Store] | None = None) -> None:
        """Work on another store than the one it was made with; before anything is opened."""
        if not all(loop.is_closed() for loop in self._sessions):
            raise HoldfastError(f"the app is open on {self.url}; close it first")
        address = read_address(url)
        self.url = url
        self.written_ahead.clear()
        self.make_store = store or (lambda: make_store(address, deadline_seconds=self._deadline))

    # -- opening and closing

    async def __aenter__(self) -> Self:
        """Open the store on this event loop."""
        (await self._session()).users += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it, when the last block that opened it here has ended."""
        session = self._sessions.get(asyncio.get_running_loop())
        if session is not None:
            session.users -= 1
            if session.users <= 0:
                await self.close()

    async def close(self) -> None:
        """Send what was submitted, and let go of the store; a later use opens it again."""
        with self._lock:
            session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()
        await asyncio.to_thread(self._bridge.close)

    def close_sync(self) -> None:
        """Let go of what the `…_sync` methods opened; a later use opens it again."""
        self._bridge.close()

    async def store(self) -> Store:
        """Give the open store of the running event loop."""
        return (await self._session()).store

    async def operations(self) -> LocalOperations:
        """Give what can be done with jobs of any tenant, in this app's name."""
        return LocalOperations(
            await self._session(),
            name=self.control.name,
            tenant=None,
            tasks=self.tasks,
            awaited=None if self.rehearsal is None else self.rehearsal.awaited,
        )

    def run_sync(self, work: Coroutine[Any, Any, T], instead: str) -> T:
        """Do work for a thread without a loop, on the app's own background loop."""
        return self._bridge.run(work, instead)

    async def _session(self) -> Session:
        """Find this loop's session, opened: a connection belongs to the loop that made it."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop) or self._new_session(loop)
        if not session.is_open:
            try:
                await session.open()
            except Exception:
                # What could not be opened is tried anew by whoever comes next.
                with self._lock:
                    if self._sessions.get(loop) is session:
                        del self._sessions[loop]
                raise
        return session

    def _leave_parent(self) -> None:
        """Start anew in a forked child: the parent's sessions and locks are not its own."""
        self._lock = threading.Lock()
        self._inherited += self._sessions.values()
        self._sessions.clear()

    def _new_session(self, loop: asyncio.AbstractEventLoop) -> Session:
        with self._lock:
            for known in [known for known in self._sessions if known.is_closed()]:
                del self._sessions[known]
            return self._sessions.setdefault(loop, Session(self.make_store()))


def _nothing_published(_tenant: str, _task: str) -> TaskTerms | None:
    return None


def _check_queues(queues: Sequence[str]) -> list[str]:
    """Refuse what would make a worker that never works: no queue, or a name read as letters."""
    if isinstance(queues, str) or not queues:
        raise BadData(f"queues must be a list of at least one queue's name, not {queues!r}")
    return [check_not_reserved(check_text(queue, "queue", limit=200), "queue") for queue in queues]
