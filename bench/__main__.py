"""`make bench`: Holdfast and its peers on one private PostgreSQL in one run, rounds interleaved.

It prints medians, ranges, ratios and the targets, met or missed. Ctrl-C leaves what was measured.
"""

from __future__ import annotations

import argparse
import functools
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import contestants, report, revisions
from bench.cells import NotProven
from bench.contestants import DIRECTORY, Contestant
from bench.peers import PEERS
from bench.places import Engine, PostgresEngine, SqliteEngine
from bench.protocol import ROOT, ProgramError
from bench.run import Results, Run, commit_of, machine, merged
from bench.scenarios import QUICK, SCENARIOS, Scale, selected

RESULTS = Path(__file__).parent / "results" / "bench.json"
QUICK_RESULTS = RESULTS.with_name("quick.json")
"""Apart: the docs are made from the other, which takes hours to measure."""
PAGE = ROOT / "docs" / "performance.md"
PICTURE, FIGURES = PAGE.with_suffix(".png"), PAGE.with_suffix(".json")
PLOT_PACKAGE = "matplotlib==3.10.7"
# A log has no width of its own, and the tables are wide.
console = Console() if sys.stdout.isatty() else Console(width=180)
errors = Console(stderr=True)


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name scenarios and contestants")
    parser.add_argument("--only", default="", help="scenarios, by comma")
    parser.add_argument(
        "--contenders",
        default="",
        help="the start of their names, separated by commas; "
        "holdfast@REVISION is Holdfast at a commit, tag or branch",
    )
    parser.add_argument("--rounds", type=int, help="5, or 1 when quick")
    parser.add_argument("--jobs", type=int, help="of a drain, instead of the usual")
    parser.add_argument("--quick", action="store_true", help="small: a few minutes")
    parser.add_argument(
        "--brief", action="store_true", help="drains of one size alone, by one process alone"
    )
    parser.add_argument(
        "--condition",
        action="append",
        default=[],
        help="measure only the conditions with this in their name; may be repeated",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="keep what earlier runs have; a condition that is measured again is replaced as a "
        "whole, all of its contestants",
    )
    parser.add_argument(
        "--from",
        dest="sources",
        type=Path,
        nargs="+",
        default=[],
        help="report on JSON files instead; of several, a condition is the last one's that has it",
    )
    parser.add_argument("--write-docs", action="store_true", help="table and plot into docs/")
    given = parser.parse_args(words)
    given.rounds = given.rounds or (1 if given.quick else 5)
    unknown = set(_words(given.only)) - set(SCENARIOS)
    if unknown:
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    return given


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]


def scale_of(given: argparse.Namespace) -> Scale:
    """Return how much of everything is measured."""
    usual = QUICK if given.quick else Scale()
    larger = usual.larger and not given.brief
    return msgspec.structs.replace(usual, jobs=given.jobs or usual.jobs, larger=larger)


def main() -> int:
    """Run, report and keep; 1 if Holdfast failed, 130 after Ctrl-C."""
    given = arguments()
    if given.sources:
        results = functools.reduce(merged, map(read_results, given.sources))
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        found = gather(given)
        if given.list:
            return list_all(found[0])
        results = measure(given, *found)
    report.show(results, console)
    if not given.sources:
        console.print(f"written to {results_file(results.quick).relative_to(ROOT)}")
    if given.write_docs and results.quick:
        errors.print("a quick run does not go into the docs: its figures show nothing")
        return 2
    if given.write_docs:
        write_docs(results)
    if results.broken is not None:
        return 1
    return 130 if results.interrupted else 0


def gather(given: argparse.Namespace) -> tuple[list[Contestant], dict[str, str]]:
    """Find who takes part; only peers that were asked for are installed."""
    asked = _words(given.contenders)
    peers = [
        peer
        for peer in PEERS
        if not asked
        or any(word.startswith(peer.name) or peer.name.startswith(word) for word in asked)
    ]
    if given.list:
        found = [one for peer in peers for one in contestants.in_modes(peer, ())]
        return contestants.chosen([*contestants.own(), *found], asked), {}
    installed, missing = contestants.install(peers, _print_missing)
    older, not_found = revisions.install(asked, _print_missing)
    found = contestants.chosen([*contestants.own(), *older, *installed], asked)
    return found, missing | not_found


def _print_missing(text: str) -> None:
    errors.print(f"MISSING {text}", style="bold red", markup=False)


def list_all(found: Sequence[Contestant]) -> int:
    """Name what there is to choose from."""
    for name, make in SCENARIOS.items():
        text = f"scenario   {name:10} {(make.__doc__ or '').splitlines()[0]}"
        console.print(text, markup=False, soft_wrap=True)
    for one in found:
        text = f"contestant {one.name:28} {one.engine:11} {one.settings}"
        console.print(text, markup=False, soft_wrap=True)
    return 0


def measure(
    given: argparse.Namespace, found: Sequence[Contestant], missing: dict[str, str]
) -> Results:
    """Measure everything, and put it beside what `--add` keeps; what stops it early is in it."""
    started = datetime.now(UTC).isoformat(timespec="seconds")
    results = Results(
        machine=machine(),
        python=platform.python_version(),
        run=started,
        runs={started: commit_of(ROOT)},
        rounds=given.rounds,
        quick=given.quick,
        missing=missing,
    )
    earlier = earlier_results(given)

    def together() -> Results:
        return results if earlier is None else merged(earlier, results)

    try:
        with ExitStack() as stack:
            engines: dict[str, Engine] = {
                "postgresql": stack.enter_context(PostgresEngine()),
                "sqlite": stack.enter_context(SqliteEngine()),
            }
            results.engines = {name: engine.version() for name, engine in engines.items()}
            run = Run(
                results,
                engines,
                introduced(found, results),
                scale_of(given),
                report=_print_line,
                keep=lambda _: keep(together()),
                earlier=earlier.measurements if earlier else (),
                conditions=given.condition,
            )
            for name in selected(_words(given.only)):
                with progress_bar(name) as step:
                    run.scenario(name, given.rounds, step)
    except NotProven as error:
        results.broken = str(error)
    except KeyboardInterrupt:
        results.interrupted = True
    keep(together())
    return together()


def results_file(quick: bool) -> Path:
    """Return where a run writes its results."""
    return QUICK_RESULTS if quick else RESULTS


def earlier_results(given: argparse.Namespace) -> Results | None:
    """Read what this run is to be put beside, if that is asked for and there is any."""
    file = results_file(given.quick)
    return read_results(file) if given.add and file.exists() else None


def read_results(file: Path) -> Results:
    """Read what a run wrote."""
    return msgspec.json.decode(file.read_bytes(), type=Results)


def introduced(found: Sequence[Contestant], results: Results) -> list[Contestant]:
    """Ask each program for its version; a peer that cannot answer does not take part."""
    kept = []
    for one in found:
        try:
            results.cards.append(contestants.card(one))
            kept.append(one)
        except ProgramError as error:
            if one.ours:
                raise NotProven(str(error)) from error
            results.missing[one.name] = str(error)
            _print_missing(str(error))
    return kept


def _print_line(text: str) -> None:
    errors.print(text, highlight=False)


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[str, int], None]]:
    """Show how far a scenario is."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=errors, transient=True) as bar:
        task = bar.add_task(name, total=None)
        completed = iter(range(1_000_000))
        # Called before each cell: what is complete are those before it.
        yield lambda text, total: bar.update(
            task, description=text, total=total, completed=next(completed)
        )


def keep(results: Results) -> None:
    """Write down what there is so far."""
    file = results_file(results.quick)
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(encoded(results))


def encoded(results: Results) -> bytes:
    """Write results as JSON that a person can read, too."""
    return msgspec.json.format(msgspec.json.encode(results), indent=1)


def write_docs(results: Results) -> None:
    """Draw the picture, and put it with the tables into the page; an old one is not shown.

    Every figure of every round lies beside the page.
    """
    FIGURES.write_bytes(encoded(results))
    report.write_docs(PAGE, results, with_picture=drawn(FIGURES))
    for file in (PAGE, FIGURES):
        console.print(f"written to {file.relative_to(ROOT)}")


def drawn(source: Path) -> bool:
    """Draw the chart; return whether that succeeded."""
    try:
        python = plotting_python(DIRECTORY / "plot")
        subprocess.run([python, ROOT / "bench/plot.py", source, PICTURE], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        errors.print(f"no plot: {error}", style="bold red", markup=False)
        return False
    console.print(f"written to {PICTURE.relative_to(ROOT)}")
    return True


def plotting_python(directory: Path) -> Path:
    """Make an environment with what draws, outside the project's."""
    python = directory / "bin" / "python"
    stamp = directory / "installed"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PLOT_PACKAGE], check=True)
        stamp.touch()
    return python


if __name__ == "__main__":
    sys.exit(main())
