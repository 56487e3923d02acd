"""Steps: done once and recorded, by name and how often the name was used before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import pydantic
from msgspec import Struct

from holdfast.durations import Span, span_seconds
from holdfast.errors import BadData, UnfitResult
from holdfast.lifecycle.payload import check_number, encode_body
from holdfast.lifecycle.record import RESOLVE
from holdfast.tasks.durable.driver import Action, CallFunction, DurableCall, Pause, RaiseCancel
from holdfast.tasks.durable.protocol import Entry, RecordStep, StartStep
from holdfast.tasks.durable.replay import Durable, check_step_name, running_step
from holdfast.tasks.durable.step_codec import codec_of
from holdfast.tasks.durable.step_errors import recorded_error
from holdfast.tasks.durable.verdicts import (
    NOT_HAPPENED,
    UNKNOWN,
    Happened,
    NotHappened,
    NotKnown,
    Verdict,
)

LONGEST_PAUSE_SECONDS = 86_400.0


class StepTerms(Struct, frozen=True):
    """How a step is retried within one attempt, and what verifies that it had its effect."""

    retries: int = 0
    backoff_seconds: float = 0.5
    verify: Callable[[], Any] | None = None

    def pauses(self) -> Iterator[float]:
        """Return how long to wait after each try but the last."""
        pause = self.backoff_seconds
        for _ in range(self.retries):
            yield min(pause, LONGEST_PAUSE_SECONDS)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def step_terms(retries: int, backoff: Span, verify: Callable[[], Any] | None) -> StepTerms:
    """Check a step's terms."""
    check_number(retries, "a step's retries", low=0, high=1000)
    return StepTerms(retries, span_seconds(backoff, "backoff"), verify)


def count_step(durable: Durable, name: str) -> int:
    """Count a use of a step's name."""
    return durable.count("step", check_step_name(name))


def step(
    durable: Durable, name: str, use: int, call: partial[Any], terms: StepTerms
) -> DurableCall:
    """Return the recorded result of a step; else call its function and record that."""
    try:
        return (yield from _recall_or_do(_Step(durable, name, use, call, terms)))
    except asyncio.CancelledError:
        durable.note_interrupted(name, use)
        raise


def _recall_or_do(doing: _Step) -> DurableCall:
    entry = yield from doing.durable.recall("step", doing.name, doing.use)
    if entry is not None and not entry.starts:
        return doing.return_recorded(entry)
    if entry is not None:
        yield RaiseCancel()
    try:
        return (yield from doing.try_until_done(0 if entry is None else entry.starts))
    except Exception as error:
        doing.durable.failed(doing.name, doing.use, error)
        raise


class _Raised(Struct, frozen=True):
    """What one try of a step raised."""

    error: Exception


class _Step:
    """One step to be done."""

    def __init__(
        self, durable: Durable, name: str, use: int, call: partial[Any], terms: StepTerms
    ) -> None:
        self.durable = durable
        self.name = name
        self.use = use
        self._call = call
        self._verify = terms.verify
        self._terms = terms
        self._codec = codec_of(call.func)
        self._answer = RESOLVE + name + (f"#{use}" if use > 1 else "")
        """The signal by which a person reports whether it happened."""

    def return_recorded(self, entry: Entry) -> Any:
        """Return the result of an earlier attempt, or raise its error."""
        if entry.failed:
            raise recorded_error(entry.body)
        return self._codec.unpack(entry.body)

    def try_until_done(self, starts: int) -> DurableCall:
        """Try until it is done; where it may have happened before, verify that first, each time."""
        for _ in range(starts - 1):
            # These answers are about earlier starts, which had no effect: another start followed.
            yield from self.durable.wait(self._answer, None)
        unknown, first = starts > 0, starts == 0
        pauses = self._terms.pauses()
        while True:
            if unknown:
                verdict = yield from self._find_verdict()
                if isinstance(verdict, Happened):
                    return (
                        yield from self.durable.run_in_gate(self._record_result(verdict.result))
                    )
            done = yield from self.durable.run_in_gate(self._try_and_record(first=first))
            if not isinstance(done, _Raised):
                return done
            if (pause := next(pauses, None)) is None:
                raise done.error
            unknown, first = self._verify is not None, False
            yield Pause(pause)

    def _try_and_record(self, *, first: bool) -> DurableCall:
        if first and self._verify is not None:
            yield from self._record_start()
        try:
            with running_step(self.name, self.use):
                value = yield CallFunction(self._call, self.name)
        except Exception as error:  # noqa: BLE001  whatever it was, it may be tried again
            return _Raised(error)
        return (yield from self._record_result(value))

    def _record_start(self) -> Generator[Action, Any, None]:
        yield from self.durable.write(StartStep(self.name, self.use))

    def _find_verdict(self) -> Generator[Action, Any, Verdict]:
        """Find out whether a started step had its effect: by its verifier, else by a person."""
        # A person's answer is final, whatever the verifier would return by now.
        if not self.durable.is_recorded("wait", self._answer):
            verdict = (
                UNKNOWN if self._verify is None else (yield from self._ask_verifier(self._verify))
            )
            if isinstance(verdict, Happened | NotHappened):
                return verdict
            if not isinstance(verdict, NotKnown):
                raise TypeError(
                    f"the verifier of step {self.name!r} returned {verdict!r}; "
                    "return Happened(result), NOT_HAPPENED or UNKNOWN"
                )
        answer = yield from self.durable.wait(self._answer, None)
        if isinstance(answer, dict) and answer.get("happened"):
            return Happened(self._read_given_result(answer.get("result")))
        # Another start: an answer about the last one is not about this one.
        yield from self.durable.run_in_gate(self._record_start())
        return NOT_HAPPENED

    def _ask_verifier(self, verify: Callable[[], Any]) -> DurableCall:
        with running_step(self.name, self.use):
            return (yield CallFunction(verify))

    def _read_given_result(self, result: Any) -> Any:
        """Decode a result that a person gave, as plain JSON."""
        try:
            return self._codec.unpack(encode_body(result, "the result"))
        except pydantic.ValidationError as error:
            what = str(error).partition("\n")[0]
            raise UnfitResult(
                f"the result that was given for step {self.name!r} is invalid: {what}"
            ) from error

    def _record_result(self, value: Any) -> DurableCall:
        try:
            body = self._codec.pack(value)
        except BadData as error:
            what = f"the result of step {self.name!r} cannot be kept: {error}"
            raise UnfitResult(what) from error
        yield from self.durable.write(RecordStep(self.name, self.use, bytes(body)))
        # Read back, so that this attempt sees what a later one would.
        return self._codec.unpack(body)
