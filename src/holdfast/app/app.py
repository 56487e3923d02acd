"""The app: what a user's code starts with. Tasks, submits, and operations on jobs."""

from __future__ import annotations

import inspect
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, overload
from uuid import UUID

from msgspec.structs import replace
from typing_extensions import Unpack

from holdfast.admission.topics import NO_TOPICS, Topics, read_topics
from holdfast.app.caller_transaction import Enlisting
from holdfast.app.job_methods import JobMethods, read_filters
from holdfast.app.sync import LoopSessions
from holdfast.config import read_file
from holdfast.durations import Span, span_seconds
from holdfast.errors import BadData, BadTask, HoldfastError, ReservedName, StoreError
from holdfast.flow.options import TaskOptions, list_adapter_needs
from holdfast.flow.submit import NOTHING, Inherited, JobBuilder, PublishedTerms, submit_error
from holdfast.lifecycle.alike import job_id_of
from holdfast.lifecycle.payload import check_number, check_text, decode_body
from holdfast.lifecycle.record import Actor, Job, JobId, NewJob
from holdfast.lifecycle.reserved import check_not_reserved
from holdfast.lifecycle.retry import is_compensation
from holdfast.lifecycle.states import Kind, Role, State
from holdfast.lifecycle.terms import TaskTerms
from holdfast.operations.batches import AlikeSubmit
from holdfast.operations.local import LocalOperations
from holdfast.operations.requests import GetJob
from holdfast.operations.sequences import list_all
from holdfast.operations.session import StoreSession
from holdfast.ports.host import HostPlan
from holdfast.ports.models import SubmitOutcome, SubmitRefused
from holdfast.ports.store import Store
from holdfast.runners.command.options import Commands
from holdfast.services.external_kernel import HttpKernel
from holdfast.services.policy_watch import PolicyWatch, watch_policy
from holdfast.services.reconciler import Reconciler
from holdfast.tasks.context import Context, current_context
from holdfast.tasks.handles import JobHandle, PendingHandle, check_all_accepted
from holdfast.tasks.tasks import (
    AlikeCalls,
    Call,
    P,
    R,
    Registration,
    Task,
    TaskSet,
    WithContext,
    find_alike,
    make_foreign_task,
    make_task,
)
from holdfast.telemetry import Meters
from holdfast.telemetry.redaction import Redact
from holdfast.telemetry.tracing import submit_span, trace_id_of
from holdfast.wiring import make_runners, make_store, plan_blobs, plan_host, read_address
from holdfast.worker.failures import Hook
from holdfast.worker.worker import Worker

log = logging.getLogger(__name__)

T = TypeVar("T")
OnFailure = TypeVar("OnFailure", bound=Hook)
Redactor = TypeVar("Redactor", bound=Redact)
NO_TERMS_SECONDS = 60.0
"""How long to wait before the terms of tasks are read again from a store that did not open."""


class Rehearsal(Protocol):
    """A test that stands in for workers."""

    async def submitted(self, jobs: Sequence[JobHandle[Any]]) -> None:
        """Run jobs that were submitted at once, where the test wants that."""

    async def awaited(self, id: JobId) -> None:
        """Do what is needed for a job to end that a caller waits for."""


class Holdfast(JobMethods, Enlisting):
    """Tasks and jobs over one store.

    It opens by itself when it is first used, on the running event loop, and closes with that
    loop; `async with app:` opens and closes it at points of your choice.
    """

    _variable = "app"
    _sessions: LoopSessions[StoreSession]

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
        command_dir: str | Path | None = None,
        blobs: str | None = None,
        policy: str | Path | None = None,
        topics: Topics | Mapping[str, Any] | str | Path | None = None,
    ) -> None:
        """Keep the settings; nothing is opened yet.

        `name` is the actor that the ledger records for submits and cancels. `propagate` returns the
        W3C traceparent of the caller. `unbounded_leases` allows tests leases that no worker could
        keep renewed. `store` makes a store of your own instead of one for `url`. `command_dir` has
        the files of commands on this host while they run. `blobs` is where logs, artifacts and
        uploads are kept: a directory, or `s3://bucket/prefix`. `policy` is a file of rules that is
        applied when the app opens, and again whenever it changes. `topics` has the pool of each
        topic, as a mapping or in the table `[topics]` of a settings file.
        """
        address = read_address(url)
        self.url = url
        self.tasks = TaskSet()
        self.tenant = check_text(tenant, "tenant", limit=200)
        self.control = Actor(Role.CONTROL, check_text(name, "name", limit=200))
        self.builder = JobBuilder(actor=Actor(Role.GATEWAY, name), tenant=tenant)
        self._propagate = propagate
        self.written_ahead: set[int] = set()
        self._bounded = not unbounded_leases
        self._deadline = deadline_seconds
        self.make_store = store or (lambda: make_store(address, deadline_seconds=deadline_seconds))
        self.rehearsal: Rehearsal | None = None
        self.failure_hooks: list[Hook] = []
        self.redactors: list[Redact] = []
        self.meters = Meters()
        """What this process counts of its submits and workers."""
        self.command_dir = None if command_dir is None else Path(command_dir)
        """Where the files of commands are on this host; None: `box_files.default_directory()`."""
        self.blobs = blobs
        """Where logs, artifacts and uploads are kept; None: below the directory of commands."""
        self.policy = None if policy is None else Path(policy)
        """The file of rules that is watched and applied; None: what is applied stays."""
        self.topics = _read_topics(topics)
        """The pools of jobs that are submitted by topic."""
        self._no_terms_until = 0.0
        self._sessions = LoopSessions(
            lambda: StoreSession(
                self.make_store(),
                open_blobs=plan_blobs(self.blobs, self.command_dir),
                around=None if self.policy is None else self._watch_policy,
            )
        )

    def _watch_policy(self, store: Store) -> AbstractAsyncContextManager[None]:
        assert self.policy is not None
        return watch_policy(store, self.policy, self.control, meters=self.meters)

    @property
    def schema(self) -> str:
        """The schema on PostgreSQL that holds its jobs."""
        return read_address(self.url).schema

    def __repr__(self) -> str:
        """Return where it keeps its jobs, without a password."""
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
        """Return the task of a name; one that is not registered here takes named arguments."""
        return self.tasks.get(name) or make_foreign_task(name, self)

    # -- submitting

    async def submit(self, task: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Submit a job by the name of its task; one registered elsewhere takes named arguments."""
        return await self.named(task).submit(*args, **kwargs)

    def submit_sync(self, task: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Submit a job by the name of its task, in a thread without an event loop."""
        return self.named(task).submit_sync(*args, **kwargs)

    async def submit_many(self, calls: Sequence[Call]) -> list[JobHandle[Any]]:
        """Submit calls of any tasks together: `[resize.prepare("a.png"), send.prepare("x")]`.

        Return handles in their order. An invalid call is refused before anything is written; if
        only some are refused because of their keys, PartlySubmitted has the outcome of each.
        """
        if not calls:
            return []
        session = await self._session()
        alike = find_alike(calls)
        with submit_span(calls[0].task.name, calls[0].task.queue) as active:
            answers = None if alike is None else await self._submit_alike(session, alike, active)
            if answers is None:
                answers = await self._submit_each(session, calls, active)
        handles = check_all_accepted(answers)
        if self.rehearsal is not None:
            await self.rehearsal.submitted(handles)
        return handles

    async def _submit_each(
        self, session: StoreSession, calls: Sequence[Call], active: str | None
    ) -> list[Any]:
        """Submit calls of any kind; return a handle or an error for each."""
        parents = [
            None if call.parent is None else await self.parent_id(call.parent) for call in calls
        ]
        terms = await self.published(calls) if self.builder.list_tasks_by_name(calls) else None
        jobs = self.builder.decide_all(calls, parents, self.inherited(active), terms)
        outcomes = await session.batched.submit(jobs)
        return [
            self._make_handle_or_error(call.task, job.record.id, outcome)
            for call, job, outcome in zip(calls, jobs, outcomes, strict=True)
        ]

    async def _submit_alike(
        self, session: StoreSession, calls: AlikeCalls, active: str | None
    ) -> list[Any] | None:
        """Submit calls that differ in their arguments alone; None if each has to be decided."""
        call = calls.call
        terms = await self.published([call]) if call.task.elsewhere else None
        jobs = self.builder.decide_alike(call, calls.bodies, self.inherited(active), terms)
        if jobs is None:
            return None
        answers: list[Any] = []
        for part in await session.batched.submit_alike(jobs):
            if part.accepted is not None:
                self.meters.submitted(call.task.name, part.accepted.queue, len(part.jobs))
            answers += self._make_handles_alike(call.task, part)
        return answers

    def _make_handles_alike(self, task: Task[Any, Any], part: AlikeSubmit) -> list[Any]:
        if part.accepted is None:
            return [
                self._make_handle_or_error(task, job_id_of(id_), outcome)
                for id_, outcome in zip(part.jobs.ids, part.outcomes, strict=True)
            ]
        # A handle keeps nothing of the others, and no arguments.
        make, read = partial(_make_record, part.accepted), task.unpack_result
        return [JobHandle(partial(make, id_), self, read, created=True) for id_ in part.jobs.ids]

    def inherited(self, active: str | None) -> Inherited:
        """Return what a job takes over that is submitted here: correlation and trace (B23).

        The trace is the hook's, else the active span's, else the running job's.
        """
        context = current_context.get(None)
        traceparent = self._call_propagate_hook() or active
        if context is None:
            return NOTHING if traceparent is None else Inherited(None, traceparent)
        job = context.job
        return Inherited(job.correlation_id, traceparent or job.traceparent)

    async def _operations_for(self, tenant: str | None) -> LocalOperations:
        return self._operations(await self._session(), tenant or self.tenant)

    async def _on_submitted(self, job: JobHandle[Any]) -> None:
        if job.created:
            self.meters.submitted(job.record.task, job.record.queue)
        if self.rehearsal is not None:
            await self.rehearsal.submitted([job])

    def _call_propagate_hook(self) -> str | None:
        if self._propagate is None:
            return None
        try:
            traceparent = self._propagate()
        except Exception:
            # A job is not lost for its trace.
            log.exception("the propagate hook failed")
            return None
        return traceparent if trace_id_of(traceparent) else None

    async def published(self, calls: Sequence[Call]) -> PublishedTerms:
        """Return the published terms of tasks that calls know by name alone.

        If the store cannot be opened, none are known: a submit on a caller's connection does
        without, and the worker that claims the job corrects its terms.
        """
        if time.monotonic() < self._no_terms_until:
            return _nothing_published
        try:
            terms = (await self._session()).terms
        except StoreError as error:
            self._no_terms_until = time.monotonic() + NO_TERMS_SECONDS
            log.warning("the terms of tasks could not be read: %s", error)
            return _nothing_published
        await terms.learn(self.builder.list_tasks_by_name(calls))
        return terms.get

    def judge_sync(self, jobs: list[NewJob]) -> list[NewJob]:
        """Judge jobs by the policy, if the store does not do so when they are written.

        On the loop's own thread, which cannot be blocked for it, they stay as they are: where a
        policy is applied, the database refuses them.
        """
        if not self.is_judging or self._sessions.bridge.runs_here():
            return jobs
        return self._sessions.bridge.run_blocking(self._judge(jobs, again=True))

    def published_sync(self, calls: Sequence[Call]) -> PublishedTerms:
        """Return the published terms of tasks that calls know by name alone, in any thread."""
        if self._sessions.bridge.runs_here():
            return _nothing_published
        return self._sessions.bridge.run_blocking(self.published(calls))

    def _make_handle_or_error(
        self, task: Task[Any, Any], id: JobId, outcome: SubmitOutcome
    ) -> JobHandle[Any] | HoldfastError:
        if isinstance(outcome, SubmitRefused):
            return submit_error(outcome)
        # By its id, not by the answer: a job that was sent twice finds itself.
        created = outcome.job.id is id or outcome.job.id == id
        if created:
            self.meters.submitted(outcome.job.task, outcome.job.queue)
        return JobHandle(outcome.job, self, task.unpack_result, created=created)

    async def parent_id(self, parent: Any) -> JobId | None:
        """Return the internal id of a parent: given as a handle, an id or a context."""
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
        """Return a job by its id; raise NoSuchJob if there is none."""
        operations = await self._operations_for(tenant)
        return self._handle(await operations.do(GetJob(job=str(job_id))))

    def get_sync(self, job_id: str | UUID, *, tenant: str | None = None) -> JobHandle[Any]:
        """Return a job by its id, in a thread without an event loop."""
        return self.run_sync(self.get(job_id, tenant=tenant), "app.get(…)")

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
        request = read_filters(
            tenant=tenant or self.tenant,
            state=state,
            queue=queue,
            task=task,
            parent=await self.parent_id(parent),
            workflow_id=workflow_id,
            correlation_id=correlation_id,
            error_code=error_code,
            labels=labels,
        )
        async for record in list_all(await self.operations(), request, limit):
            yield self._handle(record)

    def jobs_sync(self, **filters: Any) -> list[JobHandle[Any]]:
        """List jobs, newest first, in a thread without an event loop; filters as in `jobs`."""

        async def listed() -> list[JobHandle[Any]]:
            return [job async for job in self.jobs(**filters)]

        return self.run_sync(listed(), "app.jobs(…)")

    def _handle(self, record: Job) -> JobHandle[Any]:
        # A compensation has the name of the task that it undoes, and returns nothing. A task may
        # have the name of a type of command.
        is_call = record.kind is Kind.FUNCTION and not is_compensation(record)
        task = self.tasks.get(record.task) if is_call else None
        return JobHandle(record, self, decode_body if task is None else task.unpack_result)

    async def _which(self, job: str | UUID | JobHandle[Any]) -> JobId:
        return (job if isinstance(job, JobHandle) else await self.get(job)).record.id

    # -- running

    def worker(
        self,
        *,
        queues: Sequence[str] = ("default",),
        concurrency: int = 20,
        capabilities: Iterable[str] = (),
        adapters: Iterable[str] = (),
        grace: Span = "30s",
        poll: Span = "500ms",
        tick: Span = "1s",
        reconcile: bool = True,
        meters: Meters | None = None,
        exits: bool = False,
        commands: Commands | str | None = None,
    ) -> Worker:
        """Make a worker of this app's tasks: `async with app.worker():`, or `await ….run()`.

        `adapters` are the ids of adapters that it has: jobs that name another go to other workers.
        `grace` is the time that running jobs get when it stops. It looks for work every `poll` even
        without a wakeup, and every `tick` for cancels, lost leases and timers. `exits`: the process
        ends with it, and so does what cannot be killed otherwise. `commands` has it also run
        commands in boxes: `"auto"`, the name of a runner, or all settings as `Commands`.
        """
        if isinstance(commands, str):
            commands = Commands(runner=commands)
        meters, tick_seconds = meters or self.meters, span_seconds(tick, "tick")

        async def sweep(store: Store, name: str) -> None:
            await Reconciler(
                store, name, tick_seconds=tick_seconds, meters=meters, kernel=HttpKernel()
            ).run()

        async def watch(store: Store, name: str) -> None:
            if self.policy is not None:
                await PolicyWatch(
                    store, self.policy, Actor(Role.CONTROL, name), meters=meters
                ).run()

        beside = [] if not reconcile else [sweep] if self.policy is None else [sweep, watch]
        check_number(concurrency, "concurrency", high=10_000)
        return Worker(
            self.make_store(),
            make_runners(self.tasks, lambda: self.reference, concurrency=concurrency),
            keeper_store=self.make_store(),
            queues=_check_queues(queues),
            concurrency=concurrency,
            capabilities=frozenset(capabilities) | list_adapter_needs(adapters),
            grace_seconds=span_seconds(grace, "grace"),
            poll_seconds=span_seconds(poll, "poll"),
            tick_seconds=tick_seconds,
            beside=beside,
            meters=meters,
            exits=exits,
            on_failure=self.failure_hooks,
            redact=self.redact_text if self.redactors else None,
            host=None if commands is None else self._plan_host(commands),
            leaves_boxes=commands is None or commands.on_shutdown == "leave",
        )

    def _plan_host(self, commands: Commands) -> HostPlan:
        directory = self.command_dir if commands.directory is None else Path(commands.directory)
        open_blobs = plan_blobs(self.blobs, directory, for_worker=True)
        return plan_host(commands, directory, open_blobs)

    def on_failure(self, hook: OnFailure) -> OnFailure:
        """Register a function that is called for each failed or lost attempt: `@app.on_failure`.

        For error reporters. Workers that are made afterwards call it with a `Failure`, in a thread
        of their own: if it raises, that is logged; if it hangs, no job waits for it.
        """
        if inspect.iscoroutinefunction(hook):
            raise BadTask("app.on_failure takes a plain function; it is called in a thread")
        self.failure_hooks.append(hook)
        return hook

    def redact(self, fn: Redactor) -> Redactor:
        """Register a function that removes secrets from texts: `@app.redact`.

        Workers that are made afterwards apply it to error messages, tracebacks and log lines of
        jobs before they are stored or logged. If it raises, the text is withheld. It must be quick,
        and must not change what it has redacted before.
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
        """Use another store than the one it was made with; before anything is opened."""
        if self._sessions.in_use():
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

    async def __aexit__(self, *_: object) -> None:
        """Close it, when the last block that opened it has ended."""
        session = self._sessions.current()
        if session is not None:
            session.users -= 1
            if session.users <= 0:
                await self.close()

    async def store(self) -> Store:
        """Return the open store of the running event loop."""
        return (await self._session()).store

    async def operations(self) -> LocalOperations:
        """Return the operations on jobs of any tenant, in this app's name."""
        return self._operations(await self._session(), None)

    def _operations(self, session: StoreSession, tenant: str | None) -> LocalOperations:
        return LocalOperations(
            session,
            name=self.control.name,
            tenant=tenant,
            tasks=self.tasks,
            topics=self.topics,
            awaited=None if self.rehearsal is None else self.rehearsal.awaited,
            names_tenant=True,
        )

    async def _session(self) -> StoreSession:
        """Return this loop's open session: a connection belongs to the loop that made it."""
        session = self._sessions.get()
        if not session.is_open:
            try:
                await session.open()
            except Exception:
                # The next caller tries again what could not be opened.
                self._sessions.forget(session)
                raise
        return session


def _make_record(accepted: Job, id: bytes) -> Job:
    """Return the record of one of many alike jobs that were accepted together."""
    return replace(accepted, id=job_id_of(id))


def _nothing_published(_tenant: str, _task: str) -> TaskTerms | None:
    return None


def _read_topics(given: Topics | Mapping[str, Any] | str | Path | None) -> Topics:
    match given:
        case None:
            return NO_TOPICS
        case Topics():
            return given
        case str() | Path():
            return read_file(Path(given)).topics
        case _:
            return read_topics(given, "topics")


def _check_queues(queues: Sequence[str]) -> list[str]:
    """Refuse queues that no worker could serve: none, or a name given as a list of letters."""
    if isinstance(queues, str) or not queues:
        raise BadData(f"queues must be a list of at least one queue, not {queues!r}")
    return [check_not_reserved(check_text(queue, "queue", limit=200), "queue") for queue in queues]
