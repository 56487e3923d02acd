"""What is measured, under which conditions, and with whom: each scenario lists its cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from bench import blobs, boxes, bus, cells, http, policy
from bench.cells import Cell
from bench.contestants import HOLDFAST, HOLDFAST_SQLITE, Contestant
from bench.figures import Measured
from bench.peers import Pace

CALLERS = 100
KILOBYTE = 1024


class Scale(Struct, frozen=True, kw_only=True):
    """How much of everything."""

    jobs: int = 100_000
    """Of a drain; the larger one has twice as many."""
    middling_jobs: int = 20_000
    slow_jobs: int = 2_000
    """What slower peers get instead."""
    singles: int = 1_000
    samples: int = 60
    payloads: tuple[tuple[int, int], ...] = ((KILOBYTE, 10_000), (100 * KILOBYTE, 500))
    """Bytes, and how many jobs of that size."""
    sleepers: int = 10_000
    steps: int = 1_000
    signals: int = 1_000
    growth: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    history: int = 1_250_000
    """Finished jobs before the last drain of the growth: four events each."""
    larger: bool = True
    """Whether drains of twice the jobs and by two processes are measured, too."""
    analysed: bool = True
    """Whether drains are measured after ANALYZE, too."""
    half_load: bool = True
    """Whether latencies are measured at half load, too."""
    peers_everywhere: bool = True
    """Whether peers take part in singles and payloads, too."""
    http: http.Scale = http.Scale()
    commands: boxes.Scale = boxes.Scale()
    blobs: blobs.Scale = blobs.Scale()
    policy: policy.Scale = policy.Scale()
    bus: bus.Scale = bus.Scale()


QUICK = Scale(
    jobs=3_000,
    middling_jobs=1_000,
    slow_jobs=100,
    singles=200,
    samples=10,
    payloads=((100 * KILOBYTE, 50),),
    sleepers=2_000,
    steps=100,
    signals=100,
    growth=(3_000,),
    history=6_000,
    larger=False,
    analysed=False,
    half_load=False,
    peers_everywhere=False,
    http=http.QUICK,
    commands=boxes.QUICK,
    blobs=blobs.QUICK,
    policy=policy.QUICK,
    bus=bus.QUICK,
)


class Field(Struct, frozen=True, kw_only=True):
    """Who takes part, how much there is to do, and what is known so far."""

    contestants: Sequence[Contestant]
    scale: Scale
    measured: Measured

    def named(self, *names: str) -> list[Contestant]:
        """Find some by name."""
        return [one for one in self.contestants if one.name in names]

    def workers(self) -> list[Contestant]:
        """Find Holdfast on both engines, as it is and at other revisions."""
        return [one for one in self.contestants if one.family in (HOLDFAST, HOLDFAST_SQLITE)]

    def everywhere(self) -> list[Contestant]:
        """Give the fast with a worker, each once, for what not every scale measures of peers."""
        found = [one for one in self.contestants if one.ours or self.scale.peers_everywhere]
        return [one for one in found if one.first and one.pace is Pace.FAST and not one.is_store]

    def jobs(self, one: Contestant, usual: int) -> int:
        """Return how many jobs it gets."""
        most = {Pace.SLOW: self.scale.slow_jobs, Pace.MIDDLING: self.scale.middling_jobs}
        return min(usual, most.get(one.pace, usual))


def submits(field: Field) -> Iterator[Cell]:
    """List bulk submits, for when no drain measures them."""
    for one in field.contestants:
        if one.first:
            jobs = field.jobs(one, field.scale.jobs)
            yield _cell("submit", f"{field.scale.jobs:,} jobs", one, jobs, cells.submit)


def drains(field: Field) -> Iterator[Cell]:
    """List drains: analysed and right after the burst, of twice as many jobs, by two processes."""
    for condition in _conditions(field.scale):
        for one in field.contestants:
            if _spared(one, condition):
                continue
            yield _cell(
                "drain",
                drain_variant(
                    condition.jobs,
                    one.engine,
                    analysed=condition.analysed,
                    processes=condition.processes,
                ),
                one,
                field.jobs(one, condition.jobs),
                cells.drain,
                analysed=condition.analysed,
                processes=condition.processes,
            )


class Condition(Struct, frozen=True, kw_only=True):
    """Under which a drain is measured."""

    jobs: int
    analysed: bool = False
    processes: int = 1
    twice: bool = False
    """Whether these are twice the usual jobs."""

    @property
    def plain(self) -> bool:
        """Whether it is the one that everybody is measured under."""
        return not (self.analysed or self.twice or self.processes > 1)


def _conditions(scale: Scale) -> Iterator[Condition]:
    if scale.analysed:
        yield Condition(jobs=scale.jobs, analysed=True)
    yield Condition(jobs=scale.jobs)
    if scale.larger:
        for analysed in (True, False):
            yield Condition(jobs=2 * scale.jobs, analysed=analysed, twice=True)
        yield Condition(jobs=scale.jobs, processes=2)


def _spared(one: Contestant, condition: Condition) -> bool:
    """Whether a contestant is not measured under a condition, which would show nothing new.

    SQLite is not analysed, and how it grows is a scenario of its own; the store is one process; of
    the few jobs that the slow get there are not twice as many, nor anything to analyse.
    """
    return (
        (one.engine == "sqlite" and (condition.analysed or condition.twice))
        or (one.is_store and (condition.twice or condition.processes > 1))
        or (one.pace is Pace.MIDDLING and condition.twice)
        or (one.pace is Pace.SLOW and not condition.plain)
    )


def drain_variant(jobs: int, engine: str, *, analysed: bool, processes: int) -> str:
    """Name the conditions of a drain."""
    state = "SQLite" if engine == "sqlite" else "analysed" if analysed else "burst"
    return f"{jobs:,} {state}" + (f", {processes} processes" if processes > 1 else "")


def singles(field: Field) -> Iterator[Cell]:
    """List single submits, one by one and from many callers."""
    for callers in (1, CALLERS):
        name = "one by one" if callers == 1 else f"{callers} callers"
        for one in field.everywhere():
            jobs = field.scale.singles * (1 if callers == 1 else 5)
            yield _cell("single", name, one, jobs, cells.single, callers=callers)


def latencies(field: Field) -> Iterator[Cell]:
    """List latencies: all idle, Holdfast also at half load."""
    samples = field.scale.samples
    for one in _with_workers(field):
        yield _cell("latency", "idle", one, 1, cells.latency, samples=samples)
    for one in field.workers() if field.scale.half_load else ():
        rate = half_load(field.measured, one.name)
        if rate:
            yield _cell("latency", "half load", one, 1, cells.latency, samples=samples, rate=rate)


def half_load(measured: Measured, contestant: str) -> float | None:
    """Take half of the rate at which submits and drains together would fill the machine."""
    seconds = 0.0
    for scenario in ("submit", "drain"):
        rates = [
            found.median
            for variant in measured.variants(scenario)
            if "processes" not in variant
            and (found := measured.figure(scenario, variant, contestant, "rate")) is not None
        ]
        if not rates:
            return None
        seconds += 1 / min(rates)
    return 0.5 / seconds


def payloads(field: Field) -> Iterator[Cell]:
    """List drains of larger jobs."""
    for size, jobs in field.scale.payloads:
        for one in field.everywhere():
            name = f"{size // KILOBYTE:,} KB, {_engine(one)}"
            yield _cell("payload", name, one, jobs, cells.drain, analysed=True, bytes=size)


def sleepers(field: Field) -> Iterator[Cell]:
    """List handlers of ten milliseconds, a hundred at a time."""
    yield from _of_holdfast(field, "sleepers", "10 ms, concurrency 100", field.scale.sleepers)


def steps(field: Field) -> Iterator[Cell]:
    """List jobs of ten steps each."""
    yield from _of_holdfast(field, "steps", "10 steps a job", field.scale.steps)


def _of_holdfast(field: Field, name: str, variant: str, jobs: int) -> Iterator[Cell]:
    for one in field.workers():
        yield _cell(name, variant, one, jobs, cells.drain, analysed=True, task=name)


def signals(field: Field) -> Iterator[Cell]:
    """List signals to jobs that wait."""
    for one in field.workers():
        jobs = field.scale.signals
        yield _cell("signals", f"{CALLERS} callers", one, jobs, cells.signals, callers=CALLERS)


def growth(field: Field) -> Iterator[Cell]:
    """List drains of ever more jobs, the last with history before it."""
    sizes = field.scale.growth
    for size in sizes:
        for one in field.workers():
            history = field.scale.history if size == sizes[-1] else 0
            yield _cell(
                "growth",
                f"{size:,} jobs",
                one,
                size,
                cells.growth,
                history=history,
            )


def over_http(field: Field) -> Iterator[Cell]:
    """List what a server serves: submits, listeners, lists."""
    yield from http.cells(field.workers(), field.scale.http)


def commands(field: Field) -> Iterator[Cell]:
    """List commands in boxes against bare lines, and the recovery of containers."""
    yield from boxes.cells(field.named(HOLDFAST, HOLDFAST_SQLITE), field.scale.commands)


def kept_blobs(field: Field) -> Iterator[Cell]:
    """List blobs, which no store takes part in."""
    yield from blobs.cells(field.named(HOLDFAST_SQLITE), field.scale.blobs)


def judged(field: Field) -> Iterator[Cell]:
    """List submits that a policy judges, beside submits without one."""
    yield from policy.cells(field.named(HOLDFAST, HOLDFAST_SQLITE), field.scale.policy)


def over_a_bus(field: Field) -> Iterator[Cell]:
    """List jobs over a bridge, beside a loop that relays their packets."""
    yield from bus.cells(field.named(HOLDFAST, HOLDFAST_SQLITE), field.scale.bus)


def _with_workers(field: Field) -> Iterator[Contestant]:
    for one in field.contestants:
        if one.first and not one.is_store:
            yield one


def _engine(one: Contestant) -> str:
    return "SQLite" if one.engine == "sqlite" else "PostgreSQL"


def _cell(
    scenario: str, variant: str, one: Contestant, jobs: int, measure: Any, **more: Any
) -> Cell:
    return Cell(
        scenario=scenario, variant=variant, contestant=one, jobs=jobs, measure=measure, **more
    )


SCENARIOS: dict[str, Callable[[Field], Iterator[Cell]]] = {
    "submit": submits,
    "drain": drains,
    "single": singles,
    "latency": latencies,
    "payload": payloads,
    "sleepers": sleepers,
    "steps": steps,
    "signals": signals,
    "growth": growth,
    "http": over_http,
    "commands": commands,
    "blobs": kept_blobs,
    "policy": judged,
    "bus": over_a_bus,
}


def selected(only: Sequence[str]) -> list[str]:
    """Order what was asked for; a drain measures the submit before it, too."""
    names = [name for name in SCENARIOS if not only or name in only]
    return [name for name in names if name != "submit" or "drain" not in names]


def in_turn(cells: Sequence[Cell], number: int) -> list[Cell]:
    """Order the cells of one round: condition by condition, a different contestant first each time.

    The second one finds a warmer machine.
    """
    ordered: list[Cell] = []
    for variant in dict.fromkeys(_condition(cell) for cell in cells):
        group = [cell for cell in cells if _condition(cell) == variant]
        shift = number % len(group)
        ordered += group[shift:] + group[:shift]
    return ordered


def _condition(cell: Cell) -> str:
    # SQLite, which is not analysed, belongs beside the burst.
    return cell.variant.replace("SQLite", "burst") if cell.scenario == "drain" else cell.variant
