"""What goes wrong in a test, on purpose and in a repeatable way: errors, delays and crashes.

A plan is asked at each point of an attempt: before a task's handler or a step runs, during it (its
effect is there, its record is not), and after it was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from random import Random
from typing import Self, TypeAlias

from msgspec import Struct

from holdfast.errors import TransientError
from holdfast.spans import Span, span_seconds

Raised: TypeAlias = BaseException | type[BaseException]


class Moment(StrEnum):
    """Where in a step, or in a handler, something may happen."""

    BEFORE = "before"
    """It has not begun."""
    DURING = "during"
    """It did what it does, and nobody has written that down yet."""
    AFTER = "after"
    """It is recorded: a step's result, or the outcome of a task's job."""


class Fail(Struct, frozen=True):
    """Raise instead of running."""

    error: Raised


class Delay(Struct, frozen=True):
    """Let time pass first, by the test's clock."""

    seconds: float


class Crash(Struct, frozen=True):
    """Let the worker die without a word."""


Act: TypeAlias = Fail | Delay | Crash


class Rule(Struct):
    """One line of a plan."""

    act: Act
    name: str | None
    moment: Moment | None
    left: int
    rate: float
    fired: int = 0

    def matches(self, name: str, moment: Moment, *, is_step: bool) -> bool:
        """Whether this is a point of the rule's."""
        # A rule for all names means steps: a task that always died at its start would never end.
        wanted = is_step if self.name is None else self.name == name
        return wanted and self.left > 0 and self.moment in (None, moment)

    def describe(self) -> str:
        """Tell it as it was planned."""
        where = "any step" if self.name is None else repr(self.name)
        return f"{type(self.act).__name__.lower()} {self.moment or 'somewhere in'} {where}"


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
        self._rules: list[Rule] = []

    def __repr__(self) -> str:
        """Tell the seed, by which it can be repeated, and the plan."""
        plan = ", ".join(rule.describe() for rule in self._rules) or "nothing"
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
        return self._plan(Fail(planned), name, Moment(moment), times, rate)

    def delay(self, name: str, span: Span, *, times: int = 1, rate: float = 1.0) -> Self:
        """Let a step or a task take longer, by the test's clock: its timeout may come."""
        return self._plan(Delay(span_seconds(span)), name, Moment.BEFORE, times, rate)

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
        return self._plan(Crash(), name, where, times, rate)

    def _plan(
        self, act: Act, name: str | None, moment: Moment | None, times: int, rate: float
    ) -> Self:
        self._rules.append(Rule(act=act, name=name, moment=moment, left=times, rate=rate))
        return self

    def at(self, name: str, moment: Moment, *, is_step: bool) -> Iterator[Act]:
        """Say what happens at a point, in the order of the plan."""
        self.reached.add(name)
        for rule in self._rules:
            if rule.matches(name, moment, is_step=is_step) and self._chance.random() < rule.rate:
                rule.left -= 1
                rule.fired += 1
                self.log.append(f"{type(rule.act).__name__.lower()} {moment} {name!r}")
                yield rule.act

    def unmet(self) -> list[str]:
        """Tell what was to happen for certain and never did: most likely a misspelt name."""
        return [rule.describe() for rule in self._rules if rule.rate >= 1 and not rule.fired]
