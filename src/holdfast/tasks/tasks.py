"""Tasks: functions with the terms they run under. The registry that app and worker share."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, TypeAlias, TypeVar, Unpack, overload

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import BadData, BadTask, NoSuchTask, ValidationError
from holdfast.flow.options import (
    JobOptions,
    ReadTaskOptions,
    TaskOptions,
    check_fields,
    read_job_options,
    read_task_options,
    stated_terms,
)
from holdfast.flow.submit import numbered
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.payload import Body
from holdfast.lifecycle.states import Priority
from holdfast.lifecycle.terms import TaskTerms
from holdfast.tasks.compensation import Undoing
from holdfast.tasks.context import Context
from holdfast.tasks.handles import JobHandle, PendingHandle
from holdfast.tasks.signature import EMPTY, Bound, Shape, Signature, UnknownSignature

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class WithContext(Protocol[P, R_co]):
    """A function whose first parameter is the context, called `ctx`, and is not an argument.

    By name: else a checker would match any first parameter whose type may be anything.
    """

    def __call__(self, ctx: Context, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run."""


class Mode(StrEnum):
    """Where a handler runs: on the worker's loop, in a thread, or in a process of its own."""

    ASYNC = "async"
    THREAD = "thread"
    PROCESS = "process"


class Call(Struct, frozen=True, kw_only=True):
    """One call of a task, checked and written down, not yet submitted."""

    task: Task[Any, Any]
    body: Body
    fields: Mapping[str, Any] = {}
    """Fields of `lifecycle.submit.Submission` that override the task's."""
    options: Mapping[str, Any] = {}
    """The same as they were given to `options(…)`, for a client that sends the call."""
    parent: Any = None

    @property
    def stated(self) -> tuple[str, ...] | None:
        """The fields of the policy that the caller gave; None where it knows the task's own."""
        return stated_terms(self.options) if self.task.elsewhere else None


ALIKE_LEAST = 50
"""Fewer calls are submitted like others: in one batch with what other callers submit meanwhile."""


class AlikeCalls(Sequence[Call]):
    """Calls of one task that differ in their arguments alone; each is made when it is asked for."""

    def __init__(self, call: Call, bodies: Sequence[Body]) -> None:
        """Keep one of them, and the arguments of all."""
        self.call = call
        self.bodies = bodies

    def __len__(self) -> int:
        return len(self.bodies)

    @overload
    def __getitem__(self, index: int) -> Call: ...
    @overload
    def __getitem__(self, index: slice) -> AlikeCalls: ...
    def __getitem__(self, index: int | slice) -> Call | AlikeCalls:
        if isinstance(index, slice):
            return AlikeCalls(self.call, self.bodies[index])
        return replace(self.call, body=self.bodies[index])

    def __iter__(self) -> Iterator[Call]:
        return (replace(self.call, body=body) for body in self.bodies)


def find_alike(calls: Sequence[Call]) -> AlikeCalls | None:
    """Return calls that differ in their arguments alone as what they share; None if they do not."""
    if len(calls) < ALIKE_LEAST:
        return None
    if isinstance(calls, AlikeCalls):
        return calls
    first = calls[0]
    task, fields = first.task, first.fields
    if first.parent is None and all(
        call.task is task and call.fields is fields and call.parent is None for call in calls
    ):
        return AlikeCalls(first, [call.body for call in calls])
    return None


Arguments: TypeAlias = Call | tuple[Any, ...] | Mapping[str, Any]
"""One of many calls: positional arguments, named ones, or `task.prepare(…)`."""


class Submitter(Protocol):
    """What a task needs of the app it belongs to."""

    async def submit_many(self, calls: Sequence[Call]) -> list[JobHandle[Any]]:
        """Submit calls together; return their handles in this order."""

    async def submit_many_in(
        self, connection: Any, calls: Sequence[Call]
    ) -> list[PendingHandle[Any]]:
        """Submit calls inside a transaction of the caller's."""

    def submit_many_in_sync(
        self, connection: Any, calls: Sequence[Call]
    ) -> list[PendingHandle[Any]]:
        """Submit calls inside a transaction of a connection that blocks."""

    def run_sync(self, work: Coroutine[Any, Any, T], instead: str) -> T:
        """Run a coroutine for a thread without an event loop."""


class Task(Generic[P, R]):
    """A function that can be submitted, and run by a worker."""

    def __init__(
        self,
        name: str,
        fn: Callable[..., Any],
        shape: Shape,
        terms: ReadTaskOptions,
        *,
        takes_context: bool = False,
        submitter: Submitter | None = None,
        undoing: Undoing | None = None,
    ) -> None:
        """Keep what was decided at registration; see `make_task`."""
        self.name = name
        self.fn = fn
        self.mode = _choose_mode(fn, terms)
        self.version: str | None = terms.version
        self.queue: str = terms.queue
        self.priority: Priority = terms.priority
        self.needs: frozenset[str] = terms.needs
        self.policy: Policy = terms.policy
        self.cancel_grace_seconds: float = terms.cancel_grace_seconds
        self.takes_context = takes_context
        self.undoing = undoing
        """What undoes it, if anything does."""
        self.bind: Callable[[bytes | None], Bound] = shape.unpack
        """Decode and validate the arguments that a job was submitted with."""
        self.pack_result: Callable[[Any], Body] = shape.pack_result
        """Encode what the function returned as JSON; raise BadData if that is impossible."""
        self._shape = shape
        self._submitter = submitter
        self._fields: dict[str, Any] = {}
        self._options: dict[str, Any] = {}
        self._parent: Any = None

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise TypeError: a task is submitted, not called."""
        raise TypeError(
            f"task {self.name!r} is not called but submitted: {self.name}.submit(…), or "
            f"{self.name}.submit_sync(…) without an event loop, or ctx.spawn({self.name}, …) in a "
            f"handler; {self.name}.fn(…) calls the plain function here and now"
        )

    @property
    def elsewhere(self) -> bool:
        """Whether its function and its terms are registered in another process."""
        return isinstance(self._shape, UnknownSignature)

    @property
    def published(self) -> TaskTerms:
        """The terms that workers publish for those who submit it by name."""
        return TaskTerms(
            task=self.name,
            policy=self.policy,
            queue=self.queue,
            priority=self.priority,
            needs=self.needs,
        )

    @property
    def start_folds(self) -> bool:
        """Whether a short run's start may be written together with its end."""
        return self.policy.idempotent

    def call(self, ctx: Context, body: bytes | None) -> Any:
        """Call the function; return a coroutine if it is `async def`, else its value.

        For a job that undoes another, call the compensations and return a coroutine.
        """
        if ctx.job.compensates is not None:
            return self.require_undoing().run(ctx, body)
        args, kwargs = self._shape.unpack(body)
        if self.takes_context:
            return self.fn(ctx, *args, **kwargs)
        return self.fn(*args, **kwargs)

    def require_undoing(self) -> Undoing:
        """Return what undoes it; raise NoSuchTask if this version of the code has nothing."""
        if self.undoing is None:
            raise NoSuchTask(f"task {self.name!r} has no compensation here")
        return self.undoing

    @property
    def compensated_steps(self) -> frozenset[str]:
        """The steps that it can undo; see `require_undoing`."""
        return self.require_undoing().steps

    def grace_seconds(self, reason: str) -> float:
        """Return how long a handler that was asked to stop may take before it is killed."""
        return self.cancel_grace_seconds if reason == "cancel" else 0.0

    def unpack_result(self, body: bytes | None) -> R:
        """Read a result."""
        result: R = self._shape.unpack_result(body)
        return result

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Check a call and encode it, to be submitted together with others."""
        return self._call(self._shape.pack(args, kwargs))

    def options(self, **options: Unpack[JobOptions]) -> Task[P, R]:
        """Return the task with other terms for the jobs that are submitted through it."""
        task = copy.copy(self)
        task._fields = {**self._fields, **read_job_options(options, self._terms_policy)}
        task._options = {**self._options, **options}
        check_fields(task._fields)
        task._parent = options.get("parent", self._parent)
        return task

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Submit one job; returns once it is durable."""
        handles = await self._home().submit_many([self.prepare(*args, **kwargs)])
        return handles[0]

    async def submit_many(self, calls: Sequence[Arguments]) -> list[JobHandle[R]]:
        """Submit many jobs together; an invalid one raises before anything is written.

        Each is a tuple of positional arguments, a mapping of named ones, or `task.prepare(…)`.
        """
        return await self._home().submit_many(self._prepared(calls))

    async def submit_in(
        self, connection: Any, /, *args: P.args, **kwargs: P.kwargs
    ) -> PendingHandle[R]:
        """Submit one job inside your own transaction: the job exists if and only if that commits.

        `connection` is one of asyncpg or psycopg 3, a connection or session of SQLAlchemy, or
        on SQLite what `app.transaction()` gave.
        """
        calls = [self.prepare(*args, **kwargs)]
        return (await self._home().submit_many_in(connection, calls))[0]

    def submit_in_sync(
        self, connection: Any, /, *args: P.args, **kwargs: P.kwargs
    ) -> PendingHandle[R]:
        """Submit one job inside your own transaction, on a connection that blocks."""
        return self._home().submit_many_in_sync(connection, [self.prepare(*args, **kwargs)])[0]

    def submit_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Submit one job, in a thread without an event loop."""
        work = self.submit(*args, **kwargs)
        return self._home().run_sync(work, f"{self.name}.submit(…)")

    def submit_many_sync(self, calls: Sequence[Arguments]) -> list[JobHandle[R]]:
        """Submit many jobs, in a thread without an event loop."""
        return self._home().run_sync(self.submit_many(calls), f"{self.name}.submit_many(…)")

    @property
    def _terms_policy(self) -> Policy:
        policy: Policy = self._fields.get("policy", self.policy)
        return policy

    def _prepared(self, calls: Sequence[Arguments]) -> Sequence[Call]:
        """Check calls and encode them; without a `Call` among them, they differ in nothing else."""
        # Read twice: nothing would be left of an iterator.
        calls = list(calls)
        if Call in set(map(type, calls)):
            return [self._prepare_numbered(number, call) for number, call in enumerate(calls)]
        pack, bodies = self._shape.pack, list[Body]()
        try:
            for call in calls:
                bodies.append(pack(call, {}) if type(call) is tuple else self._pack(call))
        except BadData as error:
            raise numbered(len(bodies), error) from error
        return AlikeCalls(self._call(EMPTY), bodies)

    def _prepare_numbered(self, number: int, call: Arguments) -> Call:
        try:
            return call if isinstance(call, Call) else self._call(self._pack(call))
        except BadData as error:
            raise numbered(number, error) from error

    def _pack(self, call: Arguments) -> Body:
        match call:
            case tuple():
                return self._shape.pack(call, {})
            case Mapping():
                return self._shape.pack((), call)
            case _:
                raise ValidationError(
                    f"give a tuple, a mapping or {self.name}.prepare(…), not {type(call).__name__}"
                )

    def _call(self, body: Body) -> Call:
        return Call(
            task=self, body=body, fields=self._fields, options=self._options, parent=self._parent
        )

    def _home(self) -> Submitter:
        if self._submitter is None:
            raise BadTask(f"task {self.name!r} belongs to no app; register it with @app.task")
        return self._submitter


def _choose_mode(fn: Callable[..., Any], terms: ReadTaskOptions) -> Mode:
    if terms.process:
        return Mode.PROCESS
    called = fn if inspect.isroutine(fn) else getattr(fn, "__call__", fn)  # noqa: B004
    is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(called)
    return Mode.ASYNC if is_async else Mode.THREAD


def make_task(
    fn: Callable[..., Any],
    options: TaskOptions,
    *,
    bounded: bool = True,
    submitter: Submitter | None = None,
) -> Task[Any, Any]:
    """Make a task of a function and its options; raise BadTask if they are invalid."""
    name: Any = options.get("name") or getattr(fn, "__name__", "")
    _check_function(fn, name)
    terms = read_task_options(name, options, bounded=bounded)
    shape = Signature(name, fn, Context)
    return Task(
        name,
        fn,
        shape,
        terms,
        takes_context=shape.takes_context,
        submitter=submitter,
        undoing=_build_undoing(shape, name, options),
    )


def _build_undoing(shape: Signature, name: str, options: TaskOptions) -> Undoing | None:
    whole, steps = options.get("compensate"), options.get("compensate_steps", {})
    if not isinstance(steps, Mapping):
        raise BadTask(f"task {name!r}: compensate_steps must map names of steps to functions")
    return Undoing(shape, name, whole, steps) if whole is not None or steps else None


def _check_function(fn: Any, name: str) -> None:
    if not callable(fn) or isinstance(fn, Task):
        raise BadTask(f"a task is a function, not {fn!r}")
    if not name or name == "<lambda>":
        raise BadTask(f"{fn!r} has no name of its own: give one, @app.task(name=…)")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise BadTask(f"task {name!r} yields; a task returns its result")


Register: TypeAlias = Callable[[Callable[..., Any], TaskOptions], Task[Any, Any]]


class Registration:
    """`@app.task(…)` with its options, waiting for the function."""

    def __init__(self, register: Register, options: TaskOptions) -> None:
        self._register = register
        self._options = options

    @overload
    def __call__(self, fn: WithContext[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: WithContext[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, fn: Any, /) -> Any:
        return self._register(fn, self._options)


def make_foreign_task(name: str, submitter: Submitter) -> Task[..., Any]:
    """Make a task whose function is registered in another process: it can only be submitted."""

    def elsewhere(**_: Any) -> Any:
        raise NoSuchTask(f"no task {name!r} is registered here")

    return Task(
        name, elsewhere, UnknownSignature(name), read_task_options(name, {}), submitter=submitter
    )


class TaskSet(dict[str, Task[Any, Any]]):
    """The tasks of an app by name. A name means one function permanently."""

    def add(self, task: Task[Any, Any]) -> None:
        """Register a task; raise BadTask if the name is taken.

        The name is not qualified by a module instead: what a job names must not depend on what was
        imported first.
        """
        known = self.get(task.name)
        if known is not None:
            raise BadTask(
                f"there is a task {task.name!r} already, {_where(known.fn)}; "
                f"give {_where(task.fn)} a name of its own: @app.task(name=…)"
            )
        self[task.name] = task


def _where(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', repr(fn))}"
