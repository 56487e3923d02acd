"""What was measured, and what several rounds amount to: medians, ranges, ratios."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TypeAlias

from msgspec import Struct


class Measurement(Struct, frozen=True, kw_only=True):
    """One contender in one round."""

    scenario: str
    variant: str
    contender: str
    round: int
    jobs: int
    values: Mapping[str, float]
    """By name: rate (per second), client_micros, server_micros, wal_bytes, …; see `report`."""
    run: str = ""
    """Which run it is of: the time at which that started."""


Rounds: TypeAlias = Mapping[tuple[str, int], float]
"""One value by run and round."""


class Figure(Struct, frozen=True):
    """The same thing measured several times."""

    median: float
    lowest: float
    highest: float
    rounds: int


def figure(values: Sequence[float]) -> Figure:
    """Sum up; one disturbed round moves the range, not the median."""
    return Figure(median(values), min(values), max(values), len(values))


class Ratio(Struct, frozen=True):
    """How much one contender has of another: of the medians, and round by round."""

    value: float
    lowest: float
    highest: float


def ratio(ours: Rounds, theirs: Rounds) -> Ratio | None:
    """Divide; the range comes from the rounds that both took part in, measured next to each other.

    Only what both did in one run is compared: the machine is another one at another time. None
    where there is nothing of the kind.
    """
    runs = {run for run, _ in ours} & {run for run, _ in theirs}
    mine, other = (
        {each: value for each, value in found.items() if each[0] in runs}
        for found in (ours, theirs)
    )
    if not runs or not median(other.values()):
        return None
    value = median(mine.values()) / median(other.values())
    pairs = [mine[each] / other[each] for each in mine if other.get(each)]
    return Ratio(value, min(pairs, default=value), max(pairs, default=value))


def percentile(values: Sequence[float], share: float) -> float:
    """Take the value that this share of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


class Measured:
    """All that one run, or several, have measured so far."""

    def __init__(self, measurements: Sequence[Measurement] = ()) -> None:
        """Take what there is."""
        self.all = list(measurements)

    def values(
        self, scenario: str, variant: str, contender: str, name: str
    ) -> dict[tuple[str, int], float]:
        """Give one value by run and round."""
        return {
            (one.run, one.round): one.values[name]
            for one in self.all
            if (one.scenario, one.variant, one.contender) == (scenario, variant, contender)
            and name in one.values
        }

    def figure(self, scenario: str, variant: str, contender: str, name: str) -> Figure | None:
        """Sum one value up; None where it was not measured."""
        values = self.values(scenario, variant, contender, name)
        return figure(list(values.values())) if values else None

    def variants(self, scenario: str) -> list[str]:
        """Name what a scenario was measured under, in order."""
        return list(dict.fromkeys(one.variant for one in self.all if one.scenario == scenario))

    def contenders(self, scenario: str, variant: str) -> list[str]:
        """Name who was measured there."""
        found = (
            one.contender for one in self.all if (one.scenario, one.variant) == (scenario, variant)
        )
        return list(dict.fromkeys(found))

    def jobs(self, scenario: str, variant: str, contender: str) -> int:
        """Return how many jobs it was given there."""
        return next(
            one.jobs
            for one in self.all
            if (one.scenario, one.variant, one.contender) == (scenario, variant, contender)
        )
