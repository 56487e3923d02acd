"""`make bench-store`: the stores against the floor, round by round in one run, and as they grow.

The floor is the same rows by hand-written statements, with the same indexes and durability. Only
ratios of one run count: absolute figures are the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.engines import PostgresEngine, SqliteEngine
from bench.growth import CONDITIONS, Growth, measure_growth
from bench.guards import ROUNDS, Cost, measure_guards
from bench.measure import Sample, Summary, differences, run_one, summed_up

RESULTS = Path(__file__).parent / "results" / "store.json"
ENGINES: dict[str, type[Any]] = {"postgres": PostgresEngine, "sqlite": SqliteEngine}
JOBS = {1: 1_000, 10: 5_000, 100: 20_000, 500: 30_000}
"""How many jobs a round takes, by size of batch: a few seconds each."""
TARGET = 0.7
console = Console()


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.store", description=__doc__)
    parser.add_argument("--engine", choices=[*ENGINES, "both"], default="both")
    parser.add_argument("--batches", default="1,10,100,500", help="sizes of batch, by comma")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, help="jobs per round instead of the usual")
    parser.add_argument("--quick", action="store_true", help="3 short rounds, under two minutes")
    parser.add_argument("--growth", action="store_true", help="only how cost grows with the table")
    parser.add_argument("--guards", action="store_true", help="only what each guard costs")
    parser.add_argument("--no-growth", action="store_true", help="only the rounds")
    parser.add_argument("--growth-jobs", type=int, default=1_000_000)
    given = parser.parse_args(words)
    if given.quick:
        given.rounds, given.growth_jobs = 3, 20_000
    return given


def jobs_per_round(given: argparse.Namespace, batch: int) -> int:
    """As many as make a round long enough to measure, and short enough for many."""
    usual = JOBS.get(batch, 10_000) // (4 if given.quick else 1)
    return given.jobs or usual


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Any]:
    """Show how far the run is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield lambda text: bar.update(task, advance=1, description=text)


async def rounds(given: argparse.Namespace, engine: Any) -> list[dict[str, Any]]:
    """Measure floor and store in turn, as often as asked, at each size of batch."""
    sizes = [int(size) for size in given.batches.split(",")]
    rows = []
    with progress_bar(engine.name, len(sizes) * given.rounds * 2) as step:
        for batch in sizes:
            samples: dict[tuple[str, str], list[Sample]] = {}
            columns: dict[str, dict[str, tuple[int, int]]] = {}
            for number in range(given.rounds):
                # Taking turns at being first: the second one finds a warmer machine.
                for kind in ("floor", "store") if number % 2 else ("store", "floor"):
                    jobs = jobs_per_round(given, batch)
                    found, columns[kind] = await run_one(engine, kind, batch, jobs)
                    for what, sample in found.items():
                        samples.setdefault((kind, what), []).append(sample)
                    step(f"{engine.name}, batch {batch}")
            if unlike := differences(columns["floor"], columns["store"]):
                raise AssertionError(f"the floor writes other rows: {unlike}")
            rows += [_row(engine.name, batch, what, samples) for what in ("submit", "cycle")]
    return rows


def _row(
    engine: str, batch: int, what: str, samples: dict[tuple[str, str], list[Sample]]
) -> dict[str, Any]:
    floor, store = (summed_up(samples[kind, what]) for kind in ("floor", "store"))
    return {
        "engine": engine,
        "batch": batch,
        "what": what,
        "floor": msgspec.structs.asdict(floor),
        "store": msgspec.structs.asdict(store),
        "ratio": store.rate / floor.rate,
    }


def print_rounds(rows: Sequence[dict[str, Any]]) -> None:
    """Print the ratios."""
    table = Table(title="store against floor, medians (lowest to highest)")
    for heading in ("engine", "batch", "what", "floor/s", "store/s", "ratio", "client µs/job",
                    "server µs/job"):  # fmt: skip
        table.add_column(heading, justify="right")
    for row in rows:
        floor, store = (Summary(**row[kind]) for kind in ("floor", "store"))
        table.add_row(
            row["engine"],
            str(row["batch"]),
            row["what"],
            _rate(floor),
            _rate(store),
            f"{row['ratio']:.2f}" + ("" if row["ratio"] >= TARGET or row["batch"] < 100 else " !"),
            f"{floor.client_micros:.1f} / {store.client_micros:.1f}",
            f"{floor.server_micros:.1f} / {store.server_micros:.1f}",
        )
    console.print(table)


def _rate(summary: Summary) -> str:
    return f"{summary.rate:,.0f} ({summary.lowest:,.0f}–{summary.highest:,.0f})"


async def growth(given: argparse.Namespace, engine: Any) -> list[Growth]:
    """Measure each condition against the small table, one right after the other."""
    conditions = [one for one in CONDITIONS if engine.name in one.engines]
    found = []
    with progress_bar(f"{engine.name}, growth", len(conditions)) as step:
        for condition in conditions:
            found.append(await measure_growth(engine, condition, given.growth_jobs))
            step(f"{engine.name}, {condition.name}")
    return found


def print_growth(found: Sequence[Growth]) -> None:
    """Print what each condition costs."""
    table = Table(title="cycles at batch 100, in turn with a table of 1,000 jobs, medians")
    for heading in ("engine", "condition", "jobs", "small/s", "there/s", "ratio", "CPU µs/job",
                    "ratio"):  # fmt: skip
        table.add_column(heading, justify="right")
    for one in found:
        table.add_row(
            one.engine,
            one.condition,
            f"{one.jobs:,}",
            f"{one.small:,.0f}",
            f"{one.there:,.0f}",
            f"{one.there / one.small:.2f}",
            f"{one.small_micros:.1f} / {one.there_micros:.1f}",
            f"{one.small_micros / one.there_micros:.2f}",
        )
    console.print(table)


async def guards(given: argparse.Namespace, engine: Any) -> list[Cost]:
    """Measure the store without each guard in turn."""
    with progress_bar(f"{engine.name}, guards", 1) as step:
        found = await measure_guards(engine, rounds=10 if given.quick else ROUNDS)
        step(f"{engine.name}, guards")
    return found


def print_guards(found: Sequence[Cost]) -> None:
    """Print what each guard costs, against the store as it is."""
    table = Table(title="CPU µs per job at batch 500, client and server, lower quartiles")
    for heading in ("engine", "variant", "submit", "saves", "cycle", "saves"):
        table.add_column(heading, justify="right")
    for one in found:
        whole = next(cost for cost in found if cost.engine == one.engine)
        table.add_row(
            one.engine,
            one.variant,
            f"{one.submit:.1f}",
            f"{whole.submit - one.submit:+.1f}",
            f"{one.cycle:.1f}",
            f"{whole.cycle - one.cycle:+.1f}",
        )
    console.print(table)


def main() -> int:
    """Run what was asked for, print it, and write it down."""
    given = arguments()
    names = list(ENGINES) if given.engine == "both" else [given.engine]
    result: dict[str, Any] = {"machine": platform.platform(), "python": platform.python_version()}
    with ExitStack() as stack:
        engines: list[Any] = [stack.enter_context(ENGINES[name]()) for name in names]
        result["engines"] = [engine.version() for engine in engines]
        if given.guards:
            costs = [one for engine in engines for one in asyncio.run(guards(given, engine))]
            print_guards(costs)
            result["guards"] = [msgspec.structs.asdict(one) for one in costs]
        elif not given.growth:
            result["rounds"] = [row for one in engines for row in asyncio.run(rounds(given, one))]
            print_rounds(result["rounds"])
        if given.growth or not (given.quick or given.no_growth or given.guards):
            grown = [one for engine in engines for one in asyncio.run(growth(given, engine))]
            print_growth(grown)
            result["growth"] = [msgspec.structs.asdict(one) for one in grown]
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    console.print(f"written to {RESULTS.relative_to(Path.cwd())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
