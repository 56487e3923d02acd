"""`make bench`: Holdfast and its peers on one private PostgreSQL in one run, rounds interleaved.

It prints medians, ranges, ratios and the targets, met or missed. Ctrl-C leaves what was measured.
"""

from __future__ import annotations

import argparse
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import contestants, report
from bench.cells import NotProven
from bench.contestants import DIRECTORY, Contestant
from bench.figures import Measurement
from bench.peers import PEERS
from bench.places import Engine, PostgresEngine, SqliteEngine
from bench.protocol import ROOT, ProgramError
from bench.run import Results, Run, machine
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
        "--contenders", default="", help="the start of their names, separated by commas"
    )
    parser.add_argument("--rounds", type=int, help="5, or 1 when quick")
    parser.add_argument("--jobs", type=int, help="of a drain, instead of the usual")
    parser.add_argument("--quick", action="store_true", help="small: a few minutes")
    parser.add_argument(
        "--brief", action="store_true", help="drains of one size alone, by one process alone"
    )
    parser.add_argument(
        "--add", action="store_true", help="keep what an earlier run has of other scenarios"
    )
    parser.add_argument("--from", dest="source", type=Path, help="report on a JSON file instead")
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
    if given.source is not None:
        results = msgspec.json.decode(given.source.read_bytes(), type=Results)
    else:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        found = gather(given)
        if given.list:
            return list_all(found[0])
        results = measure(given, *found)
        keep(results)
    report.show(results, console)
    if given.source is None:
        console.print(f"written to {results_file(results.quick).relative_to(ROOT)}")
    if given.write_docs and results.quick:
        errors.print("a quick run does not go into the docs: its figures show nothing")
        return 2
    if given.write_docs:
        write_docs(results, given.source or RESULTS)
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
    return contestants.chosen([*contestants.own(), *installed], asked), missing


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
    """Measure everything; what stops it early is in the results."""
    results = Results(
        machine=machine(),
        python=platform.python_version(),
        rounds=given.rounds,
        quick=given.quick,
        missing=missing,
        measurements=_earlier_asked(given),
    )
    try:
        with ExitStack() as stack:
            engines: dict[str, Engine] = {
                "postgresql": stack.enter_context(PostgresEngine()),
                "sqlite": stack.enter_context(SqliteEngine()),
            }
            results.engines = {name: engine.version() for name, engine in engines.items()}
            taking_part = introduced(found, results)
            run = Run(
                results, engines, taking_part, scale_of(given), report=_print_line, keep=keep
            )  # fmt: skip
            for name in selected(_words(given.only)):
                with progress_bar(name) as step:
                    run.scenario(name, given.rounds, step)
    except NotProven as error:
        results.broken = str(error)
    except KeyboardInterrupt:
        results.interrupted = True
    return results


def results_file(quick: bool) -> Path:
    """Return where a run writes its results."""
    return QUICK_RESULTS if quick else RESULTS


def _earlier_asked(given: argparse.Namespace) -> list[Measurement]:
    again = selected(_words(given.only))
    return earlier(results_file(given.quick), again) if given.add else []


def earlier(file: Path, again: Sequence[str]) -> list[Measurement]:
    """Read what an earlier run found in scenarios that are not measured again."""
    if not file.exists():
        return []
    results = msgspec.json.decode(file.read_bytes(), type=Results)
    # A drain measures the submits before it, too.
    replaced = {*again, "submit"} if "drain" in again else set(again)
    return [one for one in results.measurements if one.scenario not in replaced]


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


def write_docs(results: Results, source: Path) -> None:
    """Draw the picture, and put it with the tables into the page; an old one is not shown.

    Every figure of every round lies beside the page.
    """
    report.write_docs(PAGE, results, with_picture=drawn(source))
    FIGURES.write_bytes(encoded(results))
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
