"""The run: scenario by scenario and round by round, contestants in turn; failures are reported."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from bench.cells import Cell, Finding, NotProven
from bench.contestants import Card, Contestant
from bench.figures import Measured, Measurement
from bench.places import Engine
from bench.protocol import ProgramError, Unsupported
from bench.scenarios import SCENARIOS, Field, Scale, in_turn, rounds_of


class Results(Struct, kw_only=True):
    """All that a run leaves behind; the report is made from this alone."""

    machine: str
    python: str
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
    ) -> None:
        """Take all that is needed; `keep` is called whenever something new was found."""
        self.results = results
        self._engines = engines
        self._contestants = contestants
        self._scale = scale
        self._report = report
        self._keep = keep
        self._out: set[tuple[str, str, str]] = set()
        """Scenario, variant and contestant of what failed, which is not tried again."""

    def scenario(self, name: str, rounds: int, step: Callable[[str, int], None]) -> None:
        """Measure one scenario in all its rounds; `step` hears of each cell and the total."""
        measured = Measured(self.results.measurements)
        field = Field(contestants=self._contestants, scale=self._scale, measured=measured)
        cells = list(SCENARIOS[name](field))
        times = rounds_of(name, rounds)
        total = sum(min(times, cell.most_rounds or times) for cell in cells)
        for number in range(times):
            left = [cell for cell in cells if number < (cell.most_rounds or times)]
            for cell in in_turn(left, number):
                step(f"{name}: {cell.variant}, {cell.contestant.name}", total)
                self._cell(cell, number)

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
