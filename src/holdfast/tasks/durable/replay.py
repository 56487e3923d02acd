"""Durable calls of a handler: what an attempt did is recorded, and a later one does not repeat it.

The handler runs from the top at each attempt; its steps and waits are counted, and those that are
recorded return what was recorded.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from holdfast.errors import BadData, HoldfastError, PermanentError, StepMismatch, WaitTimeout
from holdfast.lifecycle.family import groups, named_children, wait_name
from holdfast.lifecycle.payload import check_text, decode_body
from holdfast.lifecycle.record import RESERVED, SLEEP
from holdfast.lifecycle.signals import ANY, any_of
from holdfast.lifecycle.times import HORIZON, LONGEST_SPAN, seconds
from holdfast.tasks.durable.driver import Action, Driver, DurableCall, EnterGate, Pause, RaiseCancel
from holdfast.tasks.durable.gate import Gate, Ticket
from holdfast.tasks.durable.protocol import (
    Ask,
    AwaitSignal,
    Entry,
    NotRecorded,
    Recall,
    Recalled,
    RecordStep,
    Reply,
    Signalled,
    StartStep,
    StepRecorded,
    Suspend,
)
from holdfast.tasks.durable.step_errors import step_error_body

NAME_LIMIT = 200
ANY_LIMIT = 900
"""Characters that all names of one wait may have."""
TURNS = 3
"""How often a new step looks whether others, started at the same time, are being replayed."""

_NUMBERED = re.compile(r"#\d+\Z")
_around: ContextVar[Ticket | None] = ContextVar("holdfast_step", default=None)
"""The step that the caller runs in, if any."""
_running: ContextVar[tuple[str, int] | None] = ContextVar("holdfast_running_step", default=None)
"""The name and the use of that step, while its function or its verifier is called."""


@contextmanager
def running_step(name: str, use: int) -> Iterator[None]:
    """Make a step known to its function, for `effect_key`."""
    before = _running.get()
    _running.set((name, use))
    try:
        yield
    finally:
        _running.set(before)


class Suspended(BaseException):
    """Unwinds a handler whose job is suspended. Do not catch it: the handler will run again.

    Not an Exception, so that `except Exception` does not catch it.
    """


class Durable(Driver):
    """The durable calls of one attempt."""

    def __init__(
        self, ask: Ask, goes_on_elsewhere: Callable[[], bool], is_killed: Callable[[], bool]
    ) -> None:
        super().__init__(ask, is_killed)
        self._goes_on_elsewhere = goes_on_elsewhere
        self._recalled = False
        self._unvisited: dict[tuple[str, str, int], Entry] = {}
        """What is recorded, and this attempt has not called yet."""
        self._uses: Counter[tuple[str, str]] = Counter()
        self._gate = Gate()
        self._over = False
        """The job is suspended, or its handler has ended: nothing more is done."""
        self._failures: list[RecordStep] = []
        """Steps that failed, and after whose errors the handler may continue."""
        self._children = 0
        """How many children there are, of earlier attempts too."""
        self._given_up: set[int] = set()
        """Children after whose errors an earlier attempt continued."""

    def wait_for(self, signal: str, seconds: float | None) -> DurableCall:
        """Consume the oldest signal of a name; suspend the job until there is one."""
        _check_signal(signal)
        return (yield from self.wait(signal, seconds))

    def wait_any(self, signals: Sequence[str], seconds: float | None) -> DurableCall:
        """Consume the oldest signal of several names; return its name, too."""
        if not signals:
            raise BadData("wait_any takes the names of signals")
        for signal in signals:
            _check_signal(signal)
        name = any_of(signals)
        if len(name) > ANY_LIMIT:
            raise BadData(f"these names of signals have over {ANY_LIMIT:,} characters in all")
        return (yield from self._wait_for_signal(name, seconds))

    def sleep(self, seconds: float, limit: float | None = None) -> DurableCall:
        """Suspend the job for a time; raise WaitTimeout if a shorter limit is around the call."""
        is_cut = limit is not None and limit < seconds
        try:
            yield from self.wait(SLEEP, limit if is_cut else seconds)
        except WaitTimeout:
            if is_cut:
                raise WaitTimeout("the time around this sleep is up") from None

    @property
    def replays(self) -> bool | None:
        """Whether recorded calls are still to come; None before the first call."""
        return bool(self._unvisited) if self._recalled else None

    def finish(self) -> None:
        """Check, at the handler's end, that it has called everything that is recorded."""
        if self._unvisited:
            raise _missing_call_error(self._unvisited)

    def wait(self, signal: str, seconds: float | None) -> DurableCall:
        """Wait for a signal of any name, also of Holdfast's own."""
        return (yield from self._wait_for_signal(signal, seconds))[1]

    def _wait_for_signal(self, signal: str, seconds: float | None) -> DurableCall:
        """Wait; return the name of the signal that arrived, and its payload."""
        _check_span(seconds)
        use, entry = yield from self.count_and_recall("wait", signal)
        if entry is None:
            # Alone: a waiting job accepts no record of a step that is under way.
            return (
                yield from self.run_in_gate(
                    self._await_signal(AwaitSignal(signal, use, seconds)), alone=True
                )
            )
        if entry.timed_out:
            raise WaitTimeout(f"no signal {signal.removeprefix(ANY)!r} arrived in time")
        return entry.signal, decode_body(entry.body)

    def wait_for_recheck(self, name: str) -> DurableCall:
        """Suspend the job for a while; the next attempt checks again."""
        request = AwaitSignal(name, self._uses["wait", name] + 1)
        return (yield from self.run_in_gate(self._await_signal(request), alone=True))

    def _await_signal(self, request: AwaitSignal) -> DurableCall:
        reply = yield request
        if isinstance(reply, Suspend):
            self._over = True
            raise Suspended
        if not isinstance(reply, Signalled):
            yield RaiseCancel()
        came: Signalled = check_reply(reply, Signalled)
        return came.name, decode_body(came.body)

    def run_in_gate(self, work: DurableCall, *, alone: bool = False) -> DurableCall:
        """Carry out a call inside the attempt's gate: beside others, or alone."""
        ticket = self._gate.ticket(alone=alone)
        around = _around.get()
        try:
            if not ticket.enter_at_once():
                yield EnterGate(ticket)
            self.check_not_over()
            _around.set(ticket)
            return (yield from work)
        finally:
            _around.set(around)
            ticket.leave()

    async def wait_for_steps_under_way(self, *, killed: bool = False) -> None:
        """Wait for the steps that a handler has left under way: an attempt ends only after them.

        Else the next attempt would do again what is being done. Killed, they are killed too.
        """
        self._over = True
        ticket = self._gate.ticket(alone=True)
        if ticket.enter_at_once():
            return
        entered, kill = self.send_request(EnterGate(ticket)), killed
        while not entered.done():
            if kill:
                for task in self.driving:
                    task.cancel()
            try:
                await asyncio.wait([entered])
            except asyncio.CancelledError:
                kill = True
        ticket.leave()
        if kill and not killed:
            raise asyncio.CancelledError

    def count_and_recall(
        self, kind: str, name: str
    ) -> Generator[Action, Any, tuple[int, Entry | None]]:
        """Count a call, and return what is recorded of it."""
        use = self.count(kind, name)
        return use, (yield from self.recall(kind, name, use))

    def count(self, kind: str, name: str) -> int:
        """Count a call."""
        self.check_not_over()
        self._check_not_nested(kind, name)
        self._uses[kind, name] += 1
        return self._uses[kind, name]

    def effect_name(self, name: str | None) -> str:
        """Return the name of a step's effect, with the number of its use if it is not the first."""
        running = _running.get()
        if name is None and running is None:
            raise BadData("effect_key needs the name of a step when it is called outside a step")
        if running is not None and name in (None, running[0]):
            name, use = running
        else:
            use = self._uses["step", name or ""] + 1
        return f"{name}#{use}" if use > 1 else f"{name}"

    def recall(self, kind: str, name: str, use: int) -> Generator[Action, Any, Entry | None]:
        """Return what is recorded of a call; None where it is new, and may come now."""
        if not self._recalled:
            reply = check_reply((yield Recall()), Recalled)
            self._load_entries(reply.entries)
        entry = self._unvisited.pop((kind, name, use), None)
        if entry is None:
            yield RaiseCancel()
            yield from self._check_order(kind, name)
            yield from self._record_failures()
        return entry

    def check_not_over(self) -> None:
        """Unwind what still runs of a handler that has ended, or whose job is suspended.

        A handler that is being killed is unwound, too: the next attempt would not call what this
        one records on its way out (in a `finally`).
        """
        if self._goes_on_elsewhere():
            raise asyncio.CancelledError
        if self._over:
            raise Suspended

    def _check_not_nested(self, kind: str, name: str) -> None:
        around = _around.get()
        if around is not None and around.gate is self._gate and around.inside:
            raise PermanentError(
                f"{kind} {name!r} is used inside a step, which is recorded as a whole; "
                "call it from the handler itself",
                code="nested_step",
            )

    def failed(self, name: str, use: int, error: Exception) -> None:
        """Note that a step failed; it is recorded only if its handler continues."""
        self._failures.append(RecordStep(name, use, bytes(step_error_body(error)), failed=True))

    def note_interrupted(self, name: str, use: int) -> None:
        """Note that a step was cancelled: if not by its worker, its handler gave it up."""
        if not self._goes_on_elsewhere():
            self.failed(name, use, TimeoutError(f"step {name!r} was given up by its handler"))

    def _record_failures(self) -> Generator[Action, Any, None]:
        """Record the failed steps after which the handler continued: a later attempt, which finds
        what came after them, has to take the same way.
        """
        if not self._failures:
            return
        for _ in range(TURNS):
            # A handler that ends by such an error, while others run beside it, has tries left.
            yield Pause(0.0)
        while self._failures:
            # Removed first: a step beside this one must not record it, too.
            failure = self._failures.pop(0)
            try:
                yield from self.run_in_gate(self.write(failure))
            except HoldfastError:
                self._failures.insert(0, failure)
                raise

    def is_recorded(self, kind: str, name: str) -> bool:
        """Return whether an earlier attempt made the next call of this name."""
        return (kind, name, self._uses[kind, name] + 1) in self._unvisited

    def is_given_up(self, number: int) -> bool:
        """Return whether an earlier attempt continued after this child's error, which is final."""
        return number in self._given_up

    def record_given_up(self, numbers: Iterable[int], error: Exception) -> None:
        """Note that the handler caught the errors of these children; recorded if it continues.

        A redrive runs children again that did not succeed, except those whose failure has led to
        what is recorded after them.
        """
        for group in groups(numbers):
            name = wait_name(group)
            use = self.count("step", name)
            if self._unvisited.pop(("step", name, use), None) is None:
                self.failed(name, use, error)

    def next_child(self) -> int:
        """Return the number of another child."""
        self._children += 1
        return self._children - 1

    def _load_entries(self, entries: list[Entry]) -> None:
        if not self._recalled:
            self._recalled = True
            numbers = [decode_body(one.body)["number"] for one in entries if one.kind == "child"]
            self._children = max(numbers, default=-1) + 1
            for one in entries:
                if one.kind == "step" and one.failed:
                    self._given_up.update(named_children(one.name))
            self._unvisited = {(one.kind, one.name, one.use): one for one in entries}

    def _check_order(self, kind: str, name: str) -> Generator[Action, Any, None]:
        """Refuse a new call while a recorded one was not called: the code has changed."""
        for _ in range(TURNS):
            if not self._unvisited:
                return
            # The recorded ones may run beside this one, and be about to come.
            yield Pause(0.0)
        if self._unvisited:
            raise _out_of_order_error(kind, name, self._unvisited)

    def write(self, request: StartStep | RecordStep) -> Generator[Action, Any, None]:
        """Record something of a step."""
        check_reply((yield request), StepRecorded)


def check_step_name(name: str) -> str:
    """Refuse an invalid name of a step; also for workers over HTTP."""
    check_text(name, "a step's name", limit=NAME_LIMIT)
    if name.startswith(RESERVED):
        raise BadData(f"names of steps that start with {RESERVED!r} are Holdfast's own")
    if _NUMBERED.search(name):
        # The key of its effect would be that of another step's second use.
        raise BadData(
            f"a step cannot be named {name!r}: a name that ends with # and a number is a later use "
            "of another step; use another separator"
        )
    return name


def _check_signal(name: str) -> None:
    check_text(name, "a signal's name", limit=NAME_LIMIT)
    if name.startswith(RESERVED):
        raise BadData(f"signal names that start with {RESERVED!r} are Holdfast's own")


def _check_span(wanted: float | None) -> None:
    """Refuse what the ledger cannot keep: no later attempt could wait for it either."""
    if wanted is not None and seconds(wanted) >= HORIZON:
        raise PermanentError(
            f"a sleep, or the timeout of a wait, must be under {LONGEST_SPAN}, "
            f"not {wanted:,.0f} seconds; wait for less, several times",
            code="wait_too_long",
        )


def check_reply(reply: Reply, wanted: type[Any]) -> Any:
    """Return a reply of the wanted type; raise a refusal."""
    if isinstance(reply, NotRecorded):
        kind = PermanentError if reply.permanent else HoldfastError
        raise kind(reply.message, code=reply.code)
    if not isinstance(reply, wanted):
        raise HoldfastError(f"the worker replied {type(reply).__name__}")
    return reply


def _out_of_order_error(
    kind: str, name: str, unvisited: dict[tuple[str, str, int], Entry]
) -> StepMismatch:
    first = next(iter(unvisited.values()))
    return StepMismatch(
        f"{kind} {name!r} is new, but an earlier attempt did {first.kind} {first.name!r} "
        f"(use {first.use}) and this one has not: it was renamed, removed or moved; "
        "nothing was run"
    )


def _missing_call_error(unvisited: dict[tuple[str, str, int], Entry]) -> StepMismatch:
    first = next(iter(unvisited.values()))
    return StepMismatch(
        f"the handler ended without {first.kind} {first.name!r} (use {first.use}), which an "
        "earlier attempt did: it was renamed or removed"
    )
