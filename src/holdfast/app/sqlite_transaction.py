"""A transaction on the store's own connection: what a caller writes together with its jobs.

For SQLite, where the writer's connection is the only one that writes. Statements and submits are
gathered while the block runs, and run as one request at its end, so that a block that awaits
something keeps nobody waiting.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from holdfast.errors import BadConnection, BadData, BadTransaction
from holdfast.flow.submit import submit_error
from holdfast.lifecycle.record import NewJob
from holdfast.lifecycle.terms import TaskTerms
from holdfast.ports.models import SubmitOutcome, SubmitRefused
from holdfast.ports.store import Store
from holdfast.stores.outcomes import Enlisted
from holdfast.tasks.handles import PendingHandle

T = TypeVar("T")


@runtime_checkable
class Hosted(Protocol):
    """What `tx.run(work)` hands to the work, on the writer's thread."""

    def execute(self, sql: str, parameters: Any = (), /) -> list[tuple[Any, ...]]:
        """Run the caller's statements, and read all that they return."""

    def submit(self, jobs: Sequence[NewJob], /) -> list[SubmitOutcome]:
        """Submit decided jobs."""

    def task_terms(self, tenant: str, tasks: Sequence[str], /) -> list[TaskTerms | None]:
        """Read the terms that workers published of tasks, in the order of the tasks."""


@runtime_checkable
class Hosting(Protocol):
    """A store that lets callers write on its own connection."""

    async def transact(self, work: Callable[[Hosted], T]) -> T:
        """Do work in one transaction, on the writer's thread; return once it is durable."""


class TransactionOwner(Protocol):
    """What a transaction needs from its app."""

    async def store(self) -> Store:
        """Return the open store of the running loop."""

    def run_sync(self, work: Coroutine[Any, Any, T], instead: str) -> T:
        """Run a coroutine for a thread without an event loop."""


class WorkResult(Generic[T]):
    """What a piece of work in a transaction returned; set once the block has ended."""

    def __init__(self) -> None:
        self._values: list[T] = []

    def put(self, value: T) -> None:
        """Set the value; where the transaction had to be run again, the last counts."""
        self._values = [value]

    @property
    def value(self) -> T:
        """The value."""
        if not self._values:
            raise BadTransaction("the transaction runs at the end of its block, and has not yet")
        return self._values[0]


class Transaction:
    """`async with app.transaction() as tx:`, or `with` in a thread without a loop.

    Where the block raises, nothing of it is run. Where its end raises, nothing of it is kept.
    """

    def __init__(self, home: TransactionOwner) -> None:
        self.home = home
        self._steps: list[Callable[[Hosted], object]] = []
        self._settled: list[Callable[[], None]] = []
        self._over = False

    def execute(self, sql: str, parameters: Any = ()) -> None:
        """Run a statement, in its place, when the block has ended."""
        self._add(lambda guest: guest.execute(sql, parameters))

    def run(self, work: Callable[[Hosted], T]) -> WorkResult[T]:
        """Run a function there: it may read what it writes, and submit what it has read.

        On the writer's thread, so it must be quick. It may be run again, and must have no effects
        but on the database.
        """
        result: WorkResult[T] = WorkResult()
        self._add(lambda guest: result.put(_plain(work(guest))))
        return result

    def enlist(self, jobs: Sequence[NewJob], handles: Sequence[PendingHandle[Any]]) -> None:
        """Submit decided jobs there; one that is refused undoes the whole."""
        made: dict[int, Enlisted] = {}

        def step(guest: Hosted) -> None:
            for number, outcome in enumerate(reduce_outcomes(guest.submit(jobs))):
                if isinstance(outcome, SubmitRefused):
                    raise submit_error(outcome)
                made[number] = outcome

        def settle() -> None:
            for number, handle in enumerate(handles):
                handle.settle(made[number])
                handle.committed = True

        self._add(step)
        self._settled.append(settle)

    def _add(self, step: Callable[[Hosted], object]) -> None:
        if self._over:
            raise BadTransaction("this transaction is over; start another")
        self._steps.append(step)

    async def __aenter__(self) -> Self:
        _require_host(await self.home.store())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Run what was gathered, all or nothing; nothing where the block raised."""
        self._over = True
        if kind is None and self._steps:
            await _require_host(await self.home.store()).transact(self._run)
            for settle in self._settled:
                settle()

    def __enter__(self) -> Self:
        """Start, in a thread without a loop."""
        return self.home.run_sync(self.__aenter__(), "async with app.transaction()")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Run what was gathered, all or nothing; nothing where the block raised."""
        self.home.run_sync(self.__aexit__(kind), "async with app.transaction()")

    def _run(self, guest: Hosted) -> None:
        for step in self._steps:
            step(guest)


def reduce_outcomes(outcomes: Sequence[SubmitOutcome]) -> list[Enlisted | SubmitRefused]:
    """Reduce outcomes on the store's own connection to what a caller's transaction returns."""
    return [
        outcome
        if isinstance(outcome, SubmitRefused)
        else Enlisted(id=outcome.job.id, job_id=outcome.job.public_id, created=outcome.created)
        for outcome in outcomes
    ]


def read_hosted_terms(
    host: Hosted, named: Iterable[tuple[str, str]]
) -> Callable[[str, str], TaskTerms | None]:
    """Read the terms of tasks, given by tenant and name, in a transaction under way."""
    tasks: dict[str, list[str]] = {}
    for tenant, task in named:
        tasks.setdefault(tenant, []).append(task)
    found = {
        (tenant, task): terms
        for tenant, asked in tasks.items()
        for task, terms in zip(asked, host.task_terms(tenant, asked), strict=True)
    }
    return lambda tenant, task: found.get((tenant, task))


def _require_host(store: Store) -> Hosting:
    if isinstance(store, Hosting):
        return store
    raise BadConnection(
        "app.transaction() is for SQLite; here submit in a transaction of your own connection: "
        "await task.submit_in(connection, …)"
    )


def _plain(value: T) -> T:
    if inspect.iscoroutine(value):
        value.close()
        raise BadData("a transaction runs plain functions, not coroutines")
    return value
