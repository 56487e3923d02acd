"""Children of a handler: spawned once and recorded, gathered when they have ended.

A child exists exactly if its spawn is recorded: both are one commit. Its outcome is read from its
own history each time it is gathered, and does not change once it has ended.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from msgspec.structs import replace

from holdfast.flow.submit import TaskCall, build_child
from holdfast.lifecycle.family import groups, wait_name
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import ELSEWHERE
from holdfast.queries.outcomes import Outcome
from holdfast.tasks.durable.driver import Action
from holdfast.tasks.durable.protocol import (
    ChildSpawned,
    GatherChildren,
    Gathered,
    SpawnChild,
    Unsettled,
)
from holdfast.tasks.durable.replay import Durable, check_reply

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

GATHERED = 100
"""How many children one request may name."""


class Spawnable(Protocol[P, R_co]):
    """A task."""

    def prepare(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall:
        """Check a call and encode it."""

    def unpack_result(self, body: bytes | None) -> R_co:
        """Decode a result."""


class ChildHandle(Generic[R_co]):
    """A job that a handler has spawned; see `ctx.gather`."""

    __slots__ = ("_task", "id", "number")

    def __init__(self, id: str, number: int, task: Spawnable[Any, R_co]) -> None:
        self.id = id
        self.number = number
        """Its number among the children of its parent, from 0; its `step_index`."""
        self._task = task

    def __repr__(self) -> str:
        return f"<ChildHandle {self.number} {self.id}>"

    def read(self, outcome: Outcome) -> R_co:
        """Return its result; raise JobFailed, JobCancelled, … if it ended without one."""
        if (error := outcome.error()) is not None:
            raise error
        return self._task.unpack_result(outcome.body)


def build_child_request(call: TaskCall, traceparent: str | None) -> SpawnChild:
    """Return the request for a child; its parent's worker adds whose child it is.

    The worker also adds the terms of a task that is registered elsewhere, if it knows them.
    """
    child = build_child(call, traceparent)
    return SpawnChild(0, child, given=None if call.stated is None else sorted(call.fields))


def spawn(
    durable: Durable, task: Spawnable[Any, R], asked: SpawnChild
) -> Generator[Action, Any, ChildHandle[R]]:
    """Spawn a child once: a recorded one is returned again."""
    use, entry = yield from durable.count_and_recall("child", asked.child.task)
    asked = replace(asked, use=use)
    if entry is not None:
        made = decode_body(entry.body)
        id_, number = made["id"], made["number"]
        if entry.carried and not durable.is_given_up(number):
            id_ = yield from _spawn_again(durable, replace(_numbered(asked, number), resumes=id_))
        return ChildHandle(id_, number, task)
    number = durable.next_child()
    check_reply((yield _numbered(asked, number)), ChildSpawned)
    return ChildHandle(str(asked.child.id), number, task)


def _numbered(asked: SpawnChild, number: int) -> SpawnChild:
    return replace(asked, child=replace(asked.child, step_index=number))


def _spawn_again(durable: Durable, asked: SpawnChild) -> Generator[Action, Any, str]:
    """Spawn a child in place of one that the job before this one had spawned.

    One that succeeded is kept. Any other ended with that job, or was why it failed: it is resumed.
    """
    reply = yield asked
    if isinstance(reply, Unsettled):
        yield from durable.wait_for_recheck(ELSEWHERE)
    return str(check_reply(reply, ChildSpawned).id)


def gather(
    durable: Durable, children: Sequence[ChildHandle[Any]], *, return_errors: bool
) -> Generator[Action, Any, list[Any]]:
    """Wait until all these have ended; return their results in this order."""
    for child in children:
        if not isinstance(child, ChildHandle):
            raise TypeError(f"gather takes what ctx.spawn returned, not {type(child).__name__}")
    if not children:
        return []
    outcomes: dict[int, Outcome] = {}
    ids = {child.number: child.id for child in children}
    for numbers in groups(ids):
        found = yield from _wait_for_outcomes(
            durable, wait_name(numbers), [ids[n] for n in numbers]
        )
        outcomes |= zip(numbers, found, strict=True)
    results: list[Any] = []
    failed = {number: error for number, one in outcomes.items() if (error := one.error())}
    if failed:
        durable.record_given_up(failed, next(iter(failed.values())))
    for child in children:
        outcome = outcomes[child.number]
        error = outcome.error()
        if error is not None and not return_errors:
            raise error
        results.append(child.read(outcome) if error is None else error)
    return results


def _wait_for_outcomes(
    durable: Durable, name: str, ids: list[str]
) -> Generator[Action, Any, list[Outcome]]:
    while True:
        # Waits of earlier attempts come first: the children that they were for have ended.
        while durable.is_recorded("wait", name):
            yield from durable.wait(name, None)
        reply = yield from _read_outcomes_if_ended(durable, ids)
        if reply.outcomes is not None:
            return reply.outcomes
        if reply.elsewhere:
            yield from durable.wait_for_recheck(ELSEWHERE)
        # It returns where what it waits for was sent from outside: then look again.
        yield from durable.wait(name, None)


def _read_outcomes_if_ended(durable: Durable, ids: list[str]) -> Generator[Action, Any, Gathered]:
    """Return the outcomes of children, if all of them have ended."""
    durable.check_not_over()
    found: list[Outcome] = []
    while len(found) < len(ids):
        asked = GatherChildren(ids[len(found) : len(found) + GATHERED])
        reply: Gathered = check_reply((yield asked), Gathered)
        if reply.outcomes is None:
            return reply
        found += reply.outcomes
    return Gathered(found)
