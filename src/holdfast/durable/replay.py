"""Durable calls of a handler: what an attempt did is remembered, and not done again by a later one.

The handler runs from the top at each attempt; its steps and waits are counted, and those that are
recorded are answered from the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.durable.codec import Codec, codec_of
from holdfast.durable.driving import Call, Driver, Effect, Pause, Steps
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
    StepMismatch,
    UnfitResult,
    WaitTimeout,
)
from holdfast.lifecycle.job import RESERVED, RESOLVE
from holdfast.lifecycle.payload import check_number, check_text, decode_body
from holdfast.spans import Span, span_seconds

SLEEP = RESERVED + "sleep"
"""What a sleeping job waits for: nobody can send it."""
NAME_LIMIT = 200
TURNS = 3
"""How often a step that is new looks whether others, begun at the same time, are being replayed."""


class Suspended(BaseException):
    """Unwinds a handler whose job is parked. Let it pass: the handler will run again from the top.

    Not an Exception, so that `except Exception` does not catch it.
    """


class Happened(Struct, frozen=True):
    """A verifier's word: the step had its effect, and this was its result."""

    result: Any = None


class NotHappened(Struct, frozen=True):
    """A verifier's word: the step had no effect, it may be run."""


class Unknown(Struct, frozen=True):
    """A verifier's word: a person has to say (`holdfast resolve`)."""


NOT_HAPPENED, UNKNOWN = NotHappened(), Unknown()
Verdict: TypeAlias = Happened | NotHappened | Unknown


class StepTerms(Struct, frozen=True):
    """How a step is run: how often again within one attempt, and who says whether it happened."""

    retries: int = 0
    backoff_seconds: float = 0.5
    verify: Callable[..., Any] | None = None


def step_terms(retries: int, backoff: Span, verify: Callable[..., Any] | None) -> StepTerms:
    """Check a step's terms."""
    check_number(retries, "a step's retries", low=0, high=1000)
    return StepTerms(retries, span_seconds(backoff, "backoff"), verify)


class Durable(Driver):
    """The durable calls of one attempt."""

    def __init__(self, ask: Ask) -> None:
        """Remember by asking the worker."""
        super().__init__(ask)
        self._recalled = False
        self._unvisited: dict[tuple[str, str, int], Entry] = {}
        """What is recorded, and this attempt has not come by yet."""
        self._uses: Counter[tuple[str, str]] = Counter()
        self._parked = False
        self._children = 0
        """How many children there are, of earlier attempts too."""

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        terms: StepTerms,
    ) -> Steps:
        """Do something once: a recorded result is returned, else the function is called."""
        check_text(name, "a step's name", limit=NAME_LIMIT)
        use, entry = yield from self.arrive("step", name)
        codec = codec_of(fn)
        if entry is not None and not entry.begun_only:
            return codec.unpack(entry.body)
        verify = terms.verify
        if entry is None and verify is not None:
            yield from self._write(Begin(name, use))
        elif entry is not None:
            verdict = yield from self._verdict(
                name, partial(verify, *args, **kwargs) if verify else None
            )
            if isinstance(verdict, Happened):
                return (yield from self._record(name, use, codec, verdict.result))
        value = yield from self._call(name, partial(fn, *args, **kwargs), terms)
        return (yield from self._record(name, use, codec, value))

    def wait_for(self, signal: str, seconds: float | None) -> Steps:
        """Take the oldest signal of a name; park until there is one."""
        check_text(signal, "a signal's name", limit=NAME_LIMIT)
        if signal.startswith(RESERVED):
            raise BadData(f"signal names that begin with {RESERVED!r} are Holdfast's own")
        return (yield from self.wait(signal, seconds))

    def sleep(self, seconds: float) -> Steps:
        """Park until a time has passed."""
        try:
            yield from self.wait(SLEEP, seconds)
        except WaitTimeout:
            return

    def finish(self) -> None:
        """Check, at the handler's end, that it came by everything that is recorded."""
        if self._unvisited:
            raise _never_came(self._unvisited)

    def wait(self, signal: str, seconds: float | None) -> Steps:
        """Wait for a signal of any name, also of Holdfast's own."""
        use, entry = yield from self.arrive("wait", signal)
        if entry is None:
            reply = yield Await(signal, use, seconds)
            if isinstance(reply, Parked):
                self._parked = True
                raise Suspended
            return decode_body(answered(reply, Signalled).body)
        if entry.timed_out:
            raise WaitTimeout(f"no signal {signal!r} came in time")
        return decode_body(entry.body)

    def arrive(self, kind: str, name: str) -> Generator[Effect, Any, tuple[int, Entry | None]]:
        """Count a call, and find what is recorded of it."""
        self.check_not_parked()
        if not self._recalled:
            reply = answered((yield Recall()), Recalled)
            self._remember(reply.entries)
        self._uses[kind, name] += 1
        use = self._uses[kind, name]
        entry = self._unvisited.pop((kind, name, use), None)
        if entry is None:
            yield from self._check_order(kind, name)
        return use, entry

    def check_not_parked(self) -> None:
        """Unwind whatever still runs of a handler whose job is parked."""
        if self._parked:
            raise Suspended

    def is_recorded(self, kind: str, name: str) -> bool:
        """Whether an earlier attempt made the call that would come next under this name."""
        return (kind, name, self._uses[kind, name] + 1) in self._unvisited

    def next_child(self) -> int:
        """Number another child."""
        self._children += 1
        return self._children - 1

    def _remember(self, entries: list[Entry]) -> None:
        if not self._recalled:
            self._recalled = True
            numbers = [decode_body(one.body)["number"] for one in entries if one.kind == "child"]
            self._children = max(numbers, default=-1) + 1
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

    def _call(
        self, name: str, call: Callable[[], Any], terms: StepTerms
    ) -> Generator[Effect, Any, Any]:
        pause = terms.backoff_seconds
        for _ in range(terms.retries):
            try:
                return (yield Call(call, name))
            except Exception:  # noqa: BLE001  whatever it was, it is tried again
                yield Pause(pause)
                pause *= 2
        return (yield Call(call, name))

    def _verdict(
        self, name: str, verify: Callable[[], Any] | None
    ) -> Generator[Effect, Any, Verdict]:
        """Ask whether a step that was begun had its effect: its verifier, else a person."""
        verdict = (yield Call(verify)) if verify is not None else UNKNOWN
        if isinstance(verdict, Happened | NotHappened):
            return verdict
        if not isinstance(verdict, Unknown):
            raise TypeError(
                f"the verifier of step {name!r} returned {verdict!r}; "
                "say Happened(result), NOT_HAPPENED or UNKNOWN"
            )
        said = yield from self.wait(RESOLVE + name, None)
        if isinstance(said, dict) and said.get("happened"):
            return Happened(said.get("result"))
        return NOT_HAPPENED

    def _record(self, name: str, use: int, codec: Codec, value: Any) -> Steps:
        try:
            body = codec.pack(value)
        except BadData as error:
            raise UnfitResult(f"the result of step {name!r} cannot be kept: {error}") from error
        yield from self._write(Record(name, use, bytes(body)))
        # Read back, so that this attempt sees what a later one would.
        return codec.unpack(body)

    def _write(self, request: Begin | Record) -> Generator[Effect, Any, None]:
        answered((yield request), Written)


def answered(reply: Reply, wanted: type[Any]) -> Any:
    """Insist on an answer of a kind; a refusal is raised."""
    if isinstance(reply, Refused):
        raise HoldfastError(reply.message, code=reply.code)
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
