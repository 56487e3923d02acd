"""Durable calls of a handler: what an attempt did is remembered, and not done again by a later one.

The handler runs from the top at each attempt; its steps and waits are counted, and those that are
recorded are answered from the record.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from holdfast.durable.driving import Driver, Effect, Enter, Heed, Pause, Steps
from holdfast.durable.failures import told
from holdfast.durable.gate import Gate, Ticket
from holdfast.durable.messages import (
    Ask,
    Await,
    Begin,
    Entry,
    Parked,
    Recall,
    Recalled,
    Record,
    Refused,
    Reply,
    Signalled,
    Written,
)
from holdfast.errors import (
    BadData,
    HoldfastError,
    PermanentError,
    StepMismatch,
    WaitTimeout,
)
from holdfast.lifecycle.family import groups, named_children, wait_name
from holdfast.lifecycle.job import RESERVED, SLEEP
from holdfast.lifecycle.payload import check_text, decode_body
from holdfast.lifecycle.signals import ANY, any_of
from holdfast.lifecycle.times import HORIZON, LONGEST_SPAN, seconds

NAME_LIMIT = 200
ANY_LIMIT = 900
"""Characters of all names that one wait may be for."""
TURNS = 3
"""How often a step that is new looks whether others, begun at the same time, are being replayed."""

_NUMBERED = re.compile(r"#\d+\Z")
_around: ContextVar[Ticket | None] = ContextVar("holdfast_step", default=None)
"""The step that the caller runs inside of, if it does."""
_running: ContextVar[tuple[str, int] | None] = ContextVar("holdfast_running_step", default=None)
"""The name and the use of that step, while its function or its verifier is called."""


@contextmanager
def running_step(name: str, use: int) -> Iterator[None]:
    """Let the function of a step know which one it is."""
    before = _running.get()
    _running.set((name, use))
    try:
        yield
    finally:
        _running.set(before)


class Suspended(BaseException):
    """Unwinds a handler whose job is parked. Let it pass: the handler will run again from the top.

    Not an Exception, so that `except Exception` does not catch it.
    """


class Durable(Driver):
    """The durable calls of one attempt."""

    def __init__(
        self, ask: Ask, goes_on_elsewhere: Callable[[], bool], is_killed: Callable[[], bool]
    ) -> None:
        """Remember by asking the worker, which may kill this attempt."""
        super().__init__(ask, is_killed)
        self._goes_on_elsewhere = goes_on_elsewhere
        self._recalled = False
        self._unvisited: dict[tuple[str, str, int], Entry] = {}
        """What is recorded, and this attempt has not come by yet."""
        self._uses: Counter[tuple[str, str]] = Counter()
        self._gate = Gate()
        self._over = False
        """The job is parked, or its handler has ended: nothing more is done."""
        self._failures: list[Record] = []
        """Steps that failed, and whose errors the handler may go past."""
        self._children = 0
        """How many children there are, of earlier attempts too."""
        self._given_up: set[int] = set()
        """Children whose errors an earlier attempt went past."""

    def wait_for(self, signal: str, seconds: float | None) -> Steps:
        """Take the oldest signal of a name; park until there is one."""
        _check_signal(signal)
        return (yield from self.wait(signal, seconds))

    def wait_any(self, signals: Sequence[str], seconds: float | None) -> Steps:
        """Take the oldest signal of several names, and return its name too."""
        if not signals:
            raise BadData("wait_any takes the names of signals")
        for signal in signals:
            _check_signal(signal)
        name = any_of(signals)
        if len(name) > ANY_LIMIT:
            raise BadData(f"these names of signals have over {ANY_LIMIT:,} characters in all")
        return (yield from self._wait(name, seconds))

    def sleep(self, seconds: float, limit: float | None = None) -> Steps:
        """Park until a time has passed; WaitTimeout where a shorter limit is around it."""
        is_cut = limit is not None and limit < seconds
        try:
            yield from self.wait(SLEEP, limit if is_cut else seconds)
        except WaitTimeout:
            if is_cut:
                raise WaitTimeout("the time around this sleep is up") from None

    @property
    def replays(self) -> bool | None:
        """Whether the handler has not come as far as recorded; None before its first call."""
        return bool(self._unvisited) if self._recalled else None

    def finish(self) -> None:
        """Check, at the handler's end, that it came by everything that is recorded."""
        if self._unvisited:
            raise _never_came(self._unvisited)

    def wait(self, signal: str, seconds: float | None) -> Steps:
        """Wait for a signal of any name, also of Holdfast's own."""
        return (yield from self._wait(signal, seconds))[1]

    def _wait(self, signal: str, seconds: float | None) -> Steps:
        """Wait; returns the name of the signal that came, and what it brought."""
        _check_span(seconds)
        use, entry = yield from self.arrive("wait", signal)
        if entry is None:
            # Alone: a job that is parked takes no record of a step that is under way.
            return (yield from self.inside(self._await(Await(signal, use, seconds)), alone=True))
        if entry.timed_out:
            raise WaitTimeout(f"no signal {signal.removeprefix(ANY)!r} came in time")
        return entry.signal, decode_body(entry.body)

    def recheck(self, name: str) -> Steps:
        """Park the job for a while: the next attempt looks again."""
        request = Await(name, self._uses["wait", name] + 1)
        return (yield from self.inside(self._await(request), alone=True))

    def _await(self, request: Await) -> Steps:
        reply = yield request
        if isinstance(reply, Parked):
            self._over = True
            raise Suspended
        if not isinstance(reply, Signalled):
            yield Heed()
        came: Signalled = answered(reply, Signalled)
        return came.name, decode_body(came.body)

    def inside(self, work: Steps, *, alone: bool = False) -> Steps:
        """Do something within the attempt's gate: beside others, or alone."""
        ticket = self._gate.ticket(alone=alone)
        around = _around.get()
        try:
            if not ticket.enter_at_once():
                yield Enter(ticket)
            self.check_not_over()
            _around.set(ticket)
            return (yield from work)
        finally:
            _around.set(around)
            ticket.leave()

    async def rest(self, *, killed: bool = False) -> None:
        """Let what a handler has left under way come to its end: an attempt ends only after that.

        Else the next one would do again what is being done. Killed, that is killed too.
        """
        self._over = True
        ticket = self._gate.ticket(alone=True)
        if ticket.enter_at_once():
            return
        there, kill = self.asked(Enter(ticket)), killed
        while not there.done():
            if kill:
                for task in self.driving:
                    task.cancel()
            try:
                await asyncio.wait([there])
            except asyncio.CancelledError:
                kill = True
        ticket.leave()
        if kill and not killed:
            raise asyncio.CancelledError

    def arrive(self, kind: str, name: str) -> Generator[Effect, Any, tuple[int, Entry | None]]:
        """Count a call, and find what is recorded of it."""
        use = self.count(kind, name)
        return use, (yield from self.recall(kind, name, use))

    def count(self, kind: str, name: str) -> int:
        """Count a call."""
        self.check_not_over()
        self._check_not_nested(kind, name)
        self._uses[kind, name] += 1
        return self._uses[kind, name]

    def effect_name(self, name: str | None) -> str:
        """Name the effect of a step, with the number of its use where that is not the first."""
        running = _running.get()
        if name is None and running is None:
            raise BadData("effect_key takes the name of a step where it is called outside of one")
        if running is not None and name in (None, running[0]):
            name, use = running
        else:
            use = self._uses["step", name or ""] + 1
        return f"{name}#{use}" if use > 1 else f"{name}"

    def recall(self, kind: str, name: str, use: int) -> Generator[Effect, Any, Entry | None]:
        """Find what is recorded of a call; None where it is new, and may come now."""
        if not self._recalled:
            reply = answered((yield Recall()), Recalled)
            self._remember(reply.entries)
        entry = self._unvisited.pop((kind, name, use), None)
        if entry is None:
            yield Heed()
            yield from self._check_order(kind, name)
            yield from self._remember_failures()
        return entry

    def check_not_over(self) -> None:
        """Unwind whatever still runs of a handler that has ended, or whose job is parked.

        And of one that is being killed: what it records on its way out (a `finally`), the next
        attempt would not come by.
        """
        if self._goes_on_elsewhere():
            raise asyncio.CancelledError
        if self._over:
            raise Suspended

    def _check_not_nested(self, kind: str, name: str) -> None:
        around = _around.get()
        if around is not None and around.gate is self._gate and around.inside:
            raise PermanentError(
                f"{kind} {name!r} is used inside of a step: what a step does is remembered as one; "
                "call it from the handler itself",
                code="nested_step",
            )

    def failed(self, name: str, use: int, error: Exception) -> None:
        """Hear that a step failed; remembered only where its handler goes on to something else."""
        self._failures.append(Record(name, use, bytes(told(error)), failed=True))

    def interrupted(self, name: str, use: int) -> None:
        """Hear that a step was cancelled: if not by its worker, its handler gave it up."""
        if not self._goes_on_elsewhere():
            self.failed(name, use, TimeoutError(f"step {name!r} was given up by its handler"))

    def _remember_failures(self) -> Generator[Effect, Any, None]:
        """Write down which steps failed that the handler has gone past: a later attempt, which
        finds what came after them, has to go the same way.
        """
        if not self._failures:
            return
        for _ in range(TURNS):
            # A handler that ends by such an error, while others go on beside it, has tries left.
            yield Pause(0.0)
        while self._failures:
            # Taken off first: a step beside this one must not write it too.
            failure = self._failures.pop(0)
            try:
                yield from self.inside(self.write(failure))
            except HoldfastError:
                self._failures.insert(0, failure)
                raise

    def is_recorded(self, kind: str, name: str) -> bool:
        """Whether an earlier attempt made the call that would come next under this name."""
        return (kind, name, self._uses[kind, name] + 1) in self._unvisited

    def is_given_up(self, number: int) -> bool:
        """Whether an earlier attempt went past the error of a child: it stays as it ended."""
        return number in self._given_up

    def gave_up(self, numbers: Iterable[int], error: Exception) -> None:
        """Remember, where the handler goes on, that it went past the errors of these children.

        A redrive runs children again that did not succeed; not those whose failure has led to
        what is recorded after them.
        """
        for group in groups(numbers):
            name = wait_name(group)
            use = self.count("step", name)
            if self._unvisited.pop(("step", name, use), None) is None:
                self.failed(name, use, error)

    def next_child(self) -> int:
        """Number another child."""
        self._children += 1
        return self._children - 1

    def _remember(self, entries: list[Entry]) -> None:
        if not self._recalled:
            self._recalled = True
            numbers = [decode_body(one.body)["number"] for one in entries if one.kind == "child"]
            self._children = max(numbers, default=-1) + 1
            for one in entries:
                if one.kind == "step" and one.failed:
                    self._given_up.update(named_children(one.name))
            self._unvisited = {(one.kind, one.name, one.use): one for one in entries}

    def _check_order(self, kind: str, name: str) -> Generator[Effect, Any, None]:
        """Refuse what is new while something recorded has not come by: the code has changed."""
        for _ in range(TURNS):
            if not self._unvisited:
                return
            # It may be that the recorded ones run beside this one and are only about to come.
            yield Pause(0.0)
        if self._unvisited:
            raise _out_of_order(kind, name, self._unvisited)

    def write(self, request: Begin | Record) -> Generator[Effect, Any, None]:
        """Have something remembered of a step."""
        answered((yield request), Written)


def check_step_name(name: str) -> str:
    """Refuse what no step may be named; also for workers over HTTP."""
    check_text(name, "a step's name", limit=NAME_LIMIT)
    if name.startswith(RESERVED):
        raise BadData(f"names of steps that begin with {RESERVED!r} are Holdfast's own")
    if _NUMBERED.search(name):
        # The key of its effect would be that of another step's second use.
        raise BadData(
            f"a step cannot be named {name!r}: a name that ends with # and a number stands for a "
            "later use of another step; use another separator"
        )
    return name


def _check_signal(name: str) -> None:
    check_text(name, "a signal's name", limit=NAME_LIMIT)
    if name.startswith(RESERVED):
        raise BadData(f"signal names that begin with {RESERVED!r} are Holdfast's own")


def _check_span(wanted: float | None) -> None:
    """Refuse here what the ledger cannot keep: no later attempt could wait for it either."""
    if wanted is not None and seconds(wanted) >= HORIZON:
        raise PermanentError(
            f"a sleep, or the timeout of a wait, must be under {LONGEST_SPAN}, "
            f"not {wanted:,.0f} seconds; wait for less, several times",
            code="wait_too_long",
        )


def answered(reply: Reply, wanted: type[Any]) -> Any:
    """Insist on an answer of a kind; a refusal is raised."""
    if isinstance(reply, Refused):
        kind = PermanentError if reply.permanent else HoldfastError
        raise kind(reply.message, code=reply.code)
    if not isinstance(reply, wanted):
        raise HoldfastError(f"the worker answered {type(reply).__name__}")
    return reply


def _out_of_order(
    kind: str, name: str, unvisited: dict[tuple[str, str, int], Entry]
) -> StepMismatch:
    first = next(iter(unvisited.values()))
    return StepMismatch(
        f"{kind} {name!r} is new, but an earlier attempt did {first.kind} {first.name!r} "
        f"(use {first.use}) and this one has not: it was renamed, removed or moved; "
        "nothing was run"
    )


def _never_came(unvisited: dict[tuple[str, str, int], Entry]) -> StepMismatch:
    first = next(iter(unvisited.values()))
    return StepMismatch(
        f"the handler ended without {first.kind} {first.name!r} (use {first.use}), which an "
        "earlier attempt did: it was renamed or removed"
    )
