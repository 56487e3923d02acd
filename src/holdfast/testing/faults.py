"""What goes wrong in a test, on purpose and in a repeatable way: errors, delays and crashes.

A plan is asked at each point of an attempt: before a task's handler or a step runs, during it (its
effect is there, its record is not), and after it was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from random import Random
from typing import ClassVar, Self, TypeAlias

from msgspec import Struct

from holdfast.durations import Span, span_seconds
from holdfast.errors import TransientError

Raised: TypeAlias = BaseException | type[BaseException]


class Moment(StrEnum):
    """Where in a step, or in a handler, something may happen."""

    BEFORE = "before"
    """It has not started."""
    DURING = "during"
    """It had its effect, and that is not recorded yet."""
    AFTER = "after"
    """It is recorded: a step's result, or the outcome of a task's job."""


class InjectedError(Struct, frozen=True):
    """Raise instead of running."""

    verb: ClassVar[str] = "fail"
    error: Raised


class InjectedDelay(Struct, frozen=True):
    """Let time pass first, by the test's clock."""

    verb: ClassVar[str] = "delay"
    seconds: float


class InjectedCrash(Struct, frozen=True):
    """Let the worker die without a word."""

    verb: ClassVar[str] = "crash"


Act: TypeAlias = InjectedError | InjectedDelay | InjectedCrash


class PlannedFault(Struct):
    """One line of a plan."""

    act: Act
    name: str | None
    moment: Moment | None
    left: int
    rate: float
    fired: int = 0

    def matches(self, name: str, moment: Moment, *, is_step: bool) -> bool:
        """Return whether the fault is planned for this point."""
        # A fault for all names means steps: a task that always died at its start would never end.
        wanted = is_step if self.name is None else self.name == name
        return wanted and self.left > 0 and self.moment in (None, moment)

    def describe(self) -> str:
        """Describe it as it was planned."""
        where = "any step" if self.name is None else repr(self.name)
        return f"{self.act.verb} {self.moment or 'somewhere in'} {where}"


class Faults:
    """A plan of faults. The same seed and the same code meet the same faults.

    A name is that of a step or of a task. `rate` is the chance at each point that fits, `times`
    how often it happens at most.
    """

    def __init__(self, seed: int = 0) -> None:
        """Plan nothing yet."""
        self.seed = seed
        self.log: list[str] = []
        """What has happened, in order."""
        self.reached: set[str] = set()
        """The names of steps and tasks that came by."""
        self._chance = Random(seed)
        self._plan: list[PlannedFault] = []

    def __repr__(self) -> str:
        """Show the seed, by which it can be repeated, and the plan."""
        plan = ", ".join(planned.describe() for planned in self._plan) or "nothing"
        return f"<Faults seed={self.seed}: {plan}>"

    def fail(
        self,
        name: str,
        *,
        times: int = 1,
        error: Raised | None = None,
        moment: Moment | str = Moment.BEFORE,
        rate: float = 1.0,
    ) -> Self:
        """Let a step or a task raise instead of running: a TransientError, or yours.

        `moment="during"` lets it run first, as when the answer is lost on the way.
        """
        planned = error or TransientError(f"a planned fault in {name!r}")
        return self._add(InjectedError(planned), name, Moment(moment), times, rate)

    def delay(self, name: str, span: Span, *, times: int = 1, rate: float = 1.0) -> Self:
        """Let a step or a task take longer, by the test's clock: its timeout may come."""
        return self._add(InjectedDelay(span_seconds(span)), name, Moment.BEFORE, times, rate)

    def crash(
        self,
        name: str | None = None,
        *,
        moment: Moment | str | None = None,
        times: int = 1,
        rate: float = 1.0,
    ) -> Self:
        """Let the worker die at a step, or without a name at any of them; `rate` draws lots."""
        where = None if moment is None else Moment(moment)
        return self._add(InjectedCrash(), name, where, times, rate)

    def _add(
        self, act: Act, name: str | None, moment: Moment | None, times: int, rate: float
    ) -> Self:
        self._plan.append(PlannedFault(act=act, name=name, moment=moment, left=times, rate=rate))
        return self

    def at(self, name: str, moment: Moment, *, is_step: bool) -> Iterator[Act]:
        """Yield what happens at a point, in the order of the plan."""
        self.reached.add(name)
        for fault in self._plan:
            if fault.matches(name, moment, is_step=is_step) and self._chance.random() < fault.rate:
                fault.left -= 1
                fault.fired += 1
                self.log.append(f"{fault.act.verb} {moment} {name!r}")
                yield fault.act

    def unmet(self) -> list[str]:
        """List faults that were certain and never came: most likely a name is misspelt."""
        return [fault.describe() for fault in self._plan if fault.rate >= 1 and not fault.fired]
