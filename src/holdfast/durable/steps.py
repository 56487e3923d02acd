"""Steps: done once and remembered, by name and how often it was used before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import pydantic
from msgspec import Struct

from holdfast.durable.codec import codec_of
from holdfast.durable.driving import Call, Effect, Heed, Pause, Steps
from holdfast.durable.failures import remembered
from holdfast.durable.messages import Begin, Entry, Record
from holdfast.durable.replay import Durable, check_step_name, running_step
from holdfast.durable.verdicts import NOT_HAPPENED, UNKNOWN, Happened, NotHappened, Unknown, Verdict
from holdfast.errors import BadData, UnfitResult
from holdfast.lifecycle.job import RESOLVE
from holdfast.lifecycle.payload import check_number, encode_body
from holdfast.spans import Span, span_seconds

LONGEST_PAUSE_SECONDS = 86_400.0


class Terms(Struct, frozen=True):
    """How a step is run: how often again within one attempt, and who says whether it happened."""

    retries: int = 0
    backoff_seconds: float = 0.5
    verify: Callable[[], Any] | None = None

    def pauses(self) -> Iterator[float]:
        """Tell how long to wait after each try but the last."""
        pause = self.backoff_seconds
        for _ in range(self.retries):
            yield min(pause, LONGEST_PAUSE_SECONDS)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)


def step_terms(retries: int, backoff: Span, verify: Callable[[], Any] | None) -> Terms:
    """Check a step's terms."""
    check_number(retries, "a step's retries", low=0, high=1000)
    return Terms(retries, span_seconds(backoff, "backoff"), verify)


def count_step(durable: Durable, name: str) -> int:
    """Count a use of a step's name."""
    return durable.count("step", check_step_name(name))


def step(durable: Durable, name: str, use: int, call: partial[Any], terms: Terms) -> Steps:
    """Do something once: a recorded result is returned, else the function is called."""
    try:
        return (yield from _recalled_or_done(_Doing(durable, name, use, call, terms)))
    except asyncio.CancelledError:
        durable.interrupted(name, use)
        raise


def _recalled_or_done(doing: _Doing) -> Steps:
    entry = yield from doing.durable.recall("step", doing.name, doing.use)
    if entry is not None and not entry.begun:
        return doing.recorded(entry)
    if entry is not None:
        yield Heed()
    try:
        return (yield from doing.do(0 if entry is None else entry.begun))
    except Exception as error:
        doing.durable.failed(doing.name, doing.use, error)
        raise


class _Raised(Struct, frozen=True):
    """What one try of a step raised."""

    error: Exception


class _Doing:
    """One step that is to be done."""

    def __init__(
        self, durable: Durable, name: str, use: int, call: partial[Any], terms: Terms
    ) -> None:
        self.durable = durable
        self.name = name
        self.use = use
        self._call = call
        self._verify = terms.verify
        self._terms = terms
        self._codec = codec_of(call.func)
        self._answer = RESOLVE + name + (f"#{use}" if use > 1 else "")
        """The signal by which a person says whether it happened."""

    def recorded(self, entry: Entry) -> Any:
        """Give what an earlier attempt came to."""
        if entry.failed:
            raise remembered(entry.body)
        return self._codec.unpack(entry.body)

    def do(self, begun: int) -> Steps:
        """Try until it is done; where it may have happened before, ask first, each time."""
        for _ in range(begun - 1):
            # Said of an earlier beginning: another followed, so it was told not to have happened.
            yield from self.durable.wait(self._answer, None)
        unknown, first = begun > 0, begun == 0
        pauses = self._terms.pauses()
        while True:
            if unknown:
                verdict = yield from self._verdict()
                if isinstance(verdict, Happened):
                    return (yield from self.durable.inside(self._record(verdict.result)))
            done = yield from self.durable.inside(self._try(first=first))
            if not isinstance(done, _Raised):
                return done
            if (pause := next(pauses, None)) is None:
                raise done.error
            unknown, first = self._verify is not None, False
            yield Pause(pause)

    def _try(self, *, first: bool) -> Steps:
        if first and self._verify is not None:
            yield from self._begin()
        try:
            with running_step(self.name, self.use):
                value = yield Call(self._call, self.name)
        except Exception as error:  # noqa: BLE001  whatever it was, it may be tried again
            return _Raised(error)
        return (yield from self._record(value))

    def _begin(self) -> Generator[Effect, Any, None]:
        yield from self.durable.write(Begin(self.name, self.use))

    def _verdict(self) -> Generator[Effect, Any, Verdict]:
        """Ask whether a step that was begun had its effect: its verifier, else a person."""
        # A person's word stands, whatever the verifier would say by now.
        if not self.durable.is_recorded("wait", self._answer):
            verdict = UNKNOWN if self._verify is None else (yield from self._ask(self._verify))
            if isinstance(verdict, Happened | NotHappened):
                return verdict
            if not isinstance(verdict, Unknown):
                raise TypeError(
                    f"the verifier of step {self.name!r} returned {verdict!r}; "
                    "say Happened(result), NOT_HAPPENED or UNKNOWN"
                )
        said = yield from self.durable.wait(self._answer, None)
        if isinstance(said, dict) and said.get("happened"):
            return Happened(self._read(said.get("result")))
        # Begun anew: what was said of the last beginning is not said of this one.
        yield from self.durable.inside(self._begin())
        return NOT_HAPPENED

    def _ask(self, verify: Callable[[], Any]) -> Steps:
        with running_step(self.name, self.use):
            return (yield Call(verify))

    def _read(self, said: Any) -> Any:
        """Read a result that a person gave, as plain JSON."""
        try:
            return self._codec.unpack(encode_body(said, "the result"))
        except pydantic.ValidationError as error:
            what = str(error).partition("\n")[0]
            raise UnfitResult(
                f"what was said of step {self.name!r} is no result: {what}"
            ) from error

    def _record(self, value: Any) -> Steps:
        try:
            body = self._codec.pack(value)
        except BadData as error:
            what = f"the result of step {self.name!r} cannot be kept: {error}"
            raise UnfitResult(what) from error
        yield from self.durable.write(Record(self.name, self.use, bytes(body)))
        # Read back, so that this attempt sees what a later one would.
        return self._codec.unpack(body)
