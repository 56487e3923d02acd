"""The run: scenario by scenario and round by round, contestants in turn; failures are reported."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from bench.cells import Cell, Finding, NotProven
from bench.contestants import Card, Contestant
from bench.figures import Measured, Measurement
from bench.places import Engine
from bench.protocol import ProgramError, Unsupported
from bench.scenarios import SCENARIOS, Field, Scale, in_turn


class Results(Struct, kw_only=True):
    """All that a run leaves behind; the report is made from this alone."""

    machine: str
    python: str
    run: str = ""
    """When it started, which is its name; of several put together, that of the last."""
    runs: dict[str, str] = {}
    """By name, of which commit each run is."""
    engines: dict[str, str] = {}
    rounds: int = 0
    quick: bool = False
    cards: list[Card] = []
    measurements: list[Measurement] = []
    missing: dict[str, str] = {}
    """Peers that could not be installed or asked, and why."""
    failures: list[str] = []
    """Measurements that did not come about, and why."""
    unsupported: list[str] = []
    broken: str | None = None
    """What Holdfast itself failed at: then the bench has failed."""
    interrupted: bool = False


def merged(earlier: Results, later: Results) -> Results:
    """Put two runs together: a condition that the later one has is the later one's alone.

    So that whatever is compared under one condition was measured in one run.
    """
    again = {_condition(one) for one in later.measurements}
    tried = tuple(f"{scenario}, {variant}: " for scenario, variant in again)
    broken = [] if earlier.broken is None else [f"a run before: {earlier.broken}"]
    cards = {card.name: card for card in [*earlier.cards, *later.cards]}
    return replace(
        later,
        runs=earlier.runs | later.runs,
        engines=earlier.engines | later.engines,
        rounds=max(earlier.rounds, later.rounds),
        cards=list(cards.values()),
        measurements=[
            *(one for one in earlier.measurements if _condition(one) not in again),
            *later.measurements,
        ],
        missing={
            name: why
            for name, why in (earlier.missing | later.missing).items()
            if name in later.missing or name not in cards
        },
        failures=[
            *(text for text in [*earlier.failures, *broken] if not text.startswith(tried)),
            *later.failures,
        ],
        unsupported=list(dict.fromkeys([*earlier.unsupported, *later.unsupported])),
    )


def _condition(one: Measurement) -> tuple[str, str]:
    return one.scenario, one.variant


def commit_of(directory: Path) -> str:
    """Name the commit of a tree, and whether it has been changed since."""
    words = ["git", "describe", "--always", "--dirty=, with changes", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "of no known commit"
    return f"commit {done.stdout.strip()}"


def machine() -> str:
    """Describe the machine without naming it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = f"{os.cpu_count()} cores{_cpu_model()}"
    return f"{platform.system()} {platform.machine()}, {cores}, {memory:.0f} GB"


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return f" ({line.partition(':')[2].strip()})"
    except OSError:
        pass
    return ""


class Run:
    """Goes through the cells, and keeps what they gave."""

    def __init__(
        self,
        results: Results,
        engines: Mapping[str, Engine],
        contestants: Sequence[Contestant],
        scale: Scale,
        *,
        report: Callable[[str], None],
        keep: Callable[[Results], None],
        earlier: Sequence[Measurement] = (),
        conditions: Sequence[str] = (),
    ) -> None:
        """Take all that is needed; `keep` is called whenever something new was found.

        `earlier` is what other runs have found, which some loads are chosen by. `conditions` are
        parts of their names: only these are measured, if there are any.
        """
        self.results = results
        self._earlier = list(earlier)
        self._wanted = conditions
        self._engines = engines
        self._contestants = contestants
        self._scale = scale
        self._report = report
        self._keep = keep
        self._out: set[tuple[str, str, str]] = set()
        """Scenario, variant and contestant of what failed, which is not tried again."""

    def scenario(self, name: str, rounds: int, step: Callable[[str, int], None]) -> None:
        """Measure one scenario in all its rounds; `step` hears of each cell and the total."""
        measured = Measured([*self._earlier, *self.results.measurements])
        field = Field(contestants=self._contestants, scale=self._scale, measured=measured)
        cells = [cell for cell in SCENARIOS[name](field) if self._is_wanted(cell)]
        total = sum(min(rounds, cell.most_rounds or rounds) for cell in cells)
        for number in range(rounds):
            left = [cell for cell in cells if number < (cell.most_rounds or rounds)]
            for cell in in_turn(left, number):
                step(f"{name}: {cell.variant}, {cell.contestant.name}", total)
                self._cell(cell, number)

    def _is_wanted(self, cell: Cell) -> bool:
        return not self._wanted or any(part in cell.variant for part in self._wanted)

    def _cell(self, cell: Cell, number: int) -> None:
        key = (cell.scenario, cell.variant, cell.contestant.name)
        if key in self._out:
            return
        try:
            with self._engines[cell.contestant.engine].place() as place:
                for finding in cell.measure(cell, place):
                    self._note(cell, finding, number)
        except Unsupported as error:
            self._out.add(key)
            if str(error) not in self.results.unsupported:
                self.results.unsupported.append(str(error))
        except ProgramError as error:
            if cell.contestant.ours:
                raise NotProven(str(error)) from error
            self._out.add(key)
            self.results.failures.append(f"{cell.scenario}, {cell.variant}: {error}")
            self._report(f"[red]failed[/] {cell.scenario}, {cell.variant}: {error}")
        self._keep(self.results)

    def _note(self, cell: Cell, finding: Finding, number: int) -> None:
        measurement = Measurement(
            scenario=finding.scenario or cell.scenario,
            variant=finding.variant or cell.variant,
            contender=cell.contestant.name,
            round=number,
            jobs=finding.jobs or cell.jobs,
            values=finding.values,
            run=self.results.run,
        )
        self.results.measurements.append(measurement)
        self._report(line(measurement))


def line(one: Measurement) -> str:
    """Return one measurement as a line."""
    if {"p50", "p99"} <= one.values.keys():
        found = f"p50 {one.values['p50']:.1f} ms, p99 {one.values['p99']:.1f} ms"
    elif "rate" in one.values:
        found = f"{one.values['rate']:,.0f}/s"
    else:
        found = ", ".join(f"{name} {value:,.2f}" for name, value in one.values.items())
    return f"{one.round + 1} {one.scenario}, {one.variant}: {one.contender} {found}"
