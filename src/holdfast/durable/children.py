"""Children of a handler: spawned once and remembered, gathered when they have ended.

A child is there exactly if its spawn is recorded: both are one commit. What came of it is read from
its own history each time it is gathered, and never changes once it has ended.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from msgspec.structs import replace

from holdfast.durable.driving import Effect
from holdfast.durable.messages import Gather, Gathered, Spawn, Spawned, Unsettled
from holdfast.durable.replay import Durable, answered
from holdfast.errors import BadData, about
from holdfast.flow.outcomes import Outcome
from holdfast.identity import mint_id
from holdfast.lifecycle.family import groups, wait_name
from holdfast.lifecycle.job import ELSEWHERE
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.policy import Policy
from holdfast.lifecycle.reserved import check_not_reserved
from holdfast.lifecycle.states import Priority
from holdfast.lifecycle.submit import TRACEPARENT, Submission
from holdfast.telemetry.tracing import trace_id_of

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

GATHERED = 100
"""How many children are asked about at once."""
OWN_KEYS = ("job_id", "request_id", "client_job_id", "dedupe_key", "tenant")
"""What a child cannot be given: it is known by its parent and how often that has spawned it."""


class Terms(Protocol):
    """What a task says of the jobs that run it."""

    name: str
    version: str | None
    queue: str
    priority: Priority
    needs: frozenset[str]
    policy: Policy


class Prepared(Protocol):
    """A call of a task, checked and written down."""

    @property
    def task(self) -> Terms:
        """Which task."""

    @property
    def body(self) -> bytes:
        """The arguments."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """What else was said of it."""

    @property
    def stated(self) -> tuple[str, ...] | None:
        """The fields of the policy that were given; None where the task's own are known."""

    @property
    def parent(self) -> Any:
        """Whose child it was said to be."""


class Spawnable(Protocol[P, R_co]):
    """A task."""

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> Prepared:
        """Check a call and write it down."""

    def unpack_result(self, body: bytes | None) -> R_co:
        """Read a result."""


class ChildHandle(Generic[R_co]):
    """A job that a handler has spawned; see `ctx.gather`."""

    __slots__ = ("_task", "id", "number")

    def __init__(self, id: str, number: int, task: Spawnable[Any, R_co]) -> None:
        """Name it, and how its result is read."""
        self.id = id
        self.number = number
        """The how manieth child of its parent it is, from 0; its `step_index`."""
        self._task = task

    def __repr__(self) -> str:
        """Name it."""
        return f"<ChildHandle {self.number} {self.id}>"

    def read(self, outcome: Outcome) -> R_co:
        """Give its result; a child that ended without one raises JobFailed, JobCancelled, …."""
        if (error := outcome.error()) is not None:
            raise error
        return self._task.unpack_result(outcome.body)


def child_request(call: Prepared, traceparent: str | None) -> Spawn:
    """Write down what a child is asked for; its parent's worker adds whose child it is.

    The worker also adds the terms of a task that is registered elsewhere, if it knows them.
    """
    child = _submission(call, traceparent)
    return Spawn(0, child, given=None if call.stated is None else sorted(call.fields))


def _submission(call: Prepared, traceparent: str | None) -> Submission:
    if call.parent is not None or (given := [name for name in OWN_KEYS if name in call.fields]):
        what = "parent" if call.parent is not None else given[0]
        raise BadData(f"a child cannot be given a {what}: it is known by its parent and its number")
    task = call.task
    with about("task"):
        check_not_reserved(task.name, "task")
    terms: dict[str, Any] = {
        "task_version": task.version,
        "queue": task.queue,
        "priority": task.priority,
        "needs": task.needs,
        "policy": task.policy,
        **call.fields,
    }
    handed = terms.get("env", {}).get(TRACEPARENT, traceparent)
    if handed is not None:
        terms |= {
            "env": {**terms.get("env", {}), TRACEPARENT: handed},
            "trace_id": trace_id_of(handed),
        }
    with about("queue"):
        check_not_reserved(terms["queue"], "queue")
    return Submission(
        id=mint_id(), task=task.name, body=bytes(call.body), stated=call.stated, **terms
    )


def spawn(
    durable: Durable, task: Spawnable[Any, R], asked: Spawn
) -> Generator[Effect, Any, ChildHandle[R]]:
    """Have a child made, once: a recorded one is given again."""
    use, entry = yield from durable.arrive("child", asked.child.task)
    asked = replace(asked, use=use)
    if entry is not None:
        made = decode_body(entry.body)
        id_, number = made["id"], made["number"]
        if entry.carried and not durable.is_given_up(number):
            id_ = yield from _spawn_again(durable, replace(_numbered(asked, number), resumes=id_))
        return ChildHandle(id_, number, task)
    number = durable.next_child()
    answered((yield _numbered(asked, number)), Spawned)
    return ChildHandle(str(asked.child.id), number, task)


def _numbered(asked: Spawn, number: int) -> Spawn:
    return replace(asked, child=replace(asked.child, step_index=number))


def _spawn_again(durable: Durable, asked: Spawn) -> Generator[Effect, Any, str]:
    """Have a child, in place of one that the job before this one had spawned.

    One that succeeded is kept. Any other ended with that job, or was why it failed: it is resumed.
    """
    reply = yield asked
    if isinstance(reply, Unsettled):
        yield from durable.recheck(ELSEWHERE)
    return str(answered(reply, Spawned).id)


def gather(
    durable: Durable, children: Sequence[ChildHandle[Any]], *, return_errors: bool
) -> Generator[Effect, Any, list[Any]]:
    """Wait until all these have ended; give their results in this order."""
    for child in children:
        if not isinstance(child, ChildHandle):
            raise TypeError(f"gather takes what ctx.spawn returned, not {type(child).__name__}")
    if not children:
        return []
    outcomes: dict[int, Outcome] = {}
    ids = {child.number: child.id for child in children}
    for numbers in groups(ids):
        found = yield from _outcomes(durable, wait_name(numbers), [ids[n] for n in numbers])
        outcomes |= zip(numbers, found, strict=True)
    results: list[Any] = []
    failed = {number: error for number, one in outcomes.items() if (error := one.error())}
    if failed:
        durable.gave_up(failed, next(iter(failed.values())))
    for child in children:
        outcome = outcomes[child.number]
        error = outcome.error()
        if error is not None and not return_errors:
            raise error
        results.append(child.read(outcome) if error is None else error)
    return results


def _outcomes(durable: Durable, name: str, ids: list[str]) -> Generator[Effect, Any, list[Outcome]]:
    while True:
        # Waits of earlier attempts come first: the children that they were for have ended.
        while durable.is_recorded("wait", name):
            yield from durable.wait(name, None)
        reply = yield from _ended(durable, ids)
        if reply.outcomes is not None:
            return reply.outcomes
        if reply.elsewhere:
            yield from durable.recheck(ELSEWHERE)
        # It comes back where what it waits for was sent from outside: then look again.
        yield from durable.wait(name, None)


def _ended(durable: Durable, ids: list[str]) -> Generator[Effect, Any, Gathered]:
    """Read what became of children, if all of them have ended."""
    durable.check_not_over()
    found: list[Outcome] = []
    while len(found) < len(ids):
        asked = Gather(ids[len(found) : len(found) + GATHERED])
        reply: Gathered = answered((yield asked), Gathered)
        if reply.outcomes is None:
            return reply
        found += reply.outcomes
    return Gathered(found)
