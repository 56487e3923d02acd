"""The report: sheets made from the results alone, shown on a terminal or written as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.contestants import HOLDFAST, HOLDFAST_SQLITE
from bench.figures import Figure, Measured, Ratio, ratio
from bench.run import Results
from bench.targets import TARGETS, Verdict, judge

BEGIN, END = "<!-- written by make bench: begin -->", "<!-- written by make bench: end -->"
PICTURE = "![Drains, submits and latencies of all contestants](performance.png)"
IDEAL_SLEEPERS = 10_000
STEPS = 10
MEGABYTE = 1_000_000
STYLES = {
    Verdict.STRETCH: "green",
    Verdict.MET: "green",
    Verdict.MISSED: "bold red",
    Verdict.SHORT: "yellow",
}


class Sheet(Struct, frozen=True, kw_only=True):
    """One table."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def sheets(results: Results) -> Iterator[Sheet]:
    """Make all tables that there is something for, the targets first."""
    measured = Measured(results.measurements)
    sqlite = frozenset(card.name for card in results.cards if card.engine == "sqlite")
    yield targets_sheet(measured)
    for make in (
        rates("drain", "Drain, no-op jobs", drain_columns),
        rates("submit", "Bulk submit", cost_columns),
        rates("single", "Single submits", cost_columns),
        latency_sheet,
        rates("payload", "Larger payloads", drain_columns),
        rates("sleepers", "Handlers that wait for 10 ms, 100 at a time", sleeper_columns),
        rates("steps", "Jobs of 10 steps", step_columns),
        rates("signals", "Signals to jobs that wait", signal_columns),
        rates("growth", "Growth: drains of more jobs, and on history", drain_columns),
        rates("http", "Over HTTP: submits, event streams, pages of lists", http_columns),
        commands_sheet,
        blobs_sheet,
        policy_sheet,
        bus_sheet,
    ):
        sheet = make(measured, sqlite)
        if sheet.rows:
            yield sheet
    yield contestants_sheet(results)
    troubles = troubles_sheet(results)
    if troubles.rows:
        yield troubles


def targets_sheet(measured: Measured) -> Sheet:
    """Show every target, missed ones and unmeasured ones too."""
    judged = [judge(target, measured) for target in TARGETS]
    return Sheet(
        title="Targets",
        headings=("measure", "must", "stretch", "found (its worst condition)", "verdict"),
        rows=[(one.measure, one.must, one.stretch, one.shown, str(one.verdict)) for one in judged],
    )


class Spot(Struct, frozen=True):
    """One contestant under one condition."""

    measured: Measured
    scenario: str
    variant: str
    contestant: str
    sqlite: frozenset[str] = frozenset()
    """Who of all works on SQLite."""

    def figure(self, name: str) -> Figure | None:
        """Sum one value up."""
        return self.measured.figure(self.scenario, self.variant, self.contestant, name)

    def median(self, name: str, show: Callable[[float], str]) -> str:
        """Show a median, or nothing."""
        found = self.figure(name)
        return "" if found is None else show(found.median)

    @property
    def against(self) -> Ratio | None:
        """How much of its rate Holdfast has on its engine; None for Holdfast itself."""
        ours = HOLDFAST_SQLITE if self.contestant in self.sqlite else HOLDFAST
        if self.contestant == ours:
            return None
        get = self.measured.values
        return ratio(
            get(self.scenario, self.variant, ours, "rate"),
            get(self.scenario, self.variant, self.contestant, "rate"),
        )


Columns = tuple[Sequence[str], Callable[[Spot], Sequence[str]]]


Maker = Callable[[Measured, frozenset[str]], Sheet]


def rates(scenario: str, title: str, columns: Callable[[], Columns]) -> Maker:
    """Make a table of rates, condition by condition, the quickest first."""
    headings, cells = columns()

    def make(measured: Measured, sqlite: frozenset[str]) -> Sheet:
        rows = [
            (*_head(spot), *cells(spot))
            for variant in measured.variants(scenario)
            for spot in _spots(measured, scenario, variant, sqlite)
        ]
        first = ("condition", "contestant", "jobs", "rounds", "per second (lowest–highest)")
        return Sheet(title=title, headings=(*first, "Holdfast is", *headings), rows=rows)

    return make


def _spots(measured: Measured, scenario: str, variant: str, sqlite: frozenset[str]) -> list[Spot]:
    names = measured.contenders(scenario, variant)
    spots = [Spot(measured, scenario, variant, name, sqlite) for name in names]
    return sorted(spots, key=lambda spot: -_rate_of(spot))


def _list_spots(measured: Measured, scenario: str) -> list[Spot]:
    """Return every condition of a scenario with each of its contestants."""
    return [
        Spot(measured, scenario, variant, name)
        for variant in measured.variants(scenario)
        for name in measured.contenders(scenario, variant)
    ]


def _rate_of(spot: Spot) -> float:
    found = spot.figure("rate")
    return 0.0 if found is None else found.median


def _head(spot: Spot) -> tuple[str, ...]:
    found = spot.against
    return (
        spot.variant,
        spot.contestant,
        f"{spot.measured.jobs(spot.scenario, spot.variant, spot.contestant):,}",
        rounds(spot.figure("rate")),
        ranged(spot.figure("rate"), "{:,.0f}"),
        "" if found is None else times(found),
    )


def rounds(found: Figure | None) -> str:
    """Show of how many rounds a row is: growth has fewer, and who failed is not asked again."""
    return "" if found is None else str(found.rounds)


def ranged(found: Figure | None, form: str) -> str:
    """Show a median and its range."""
    if found is None:
        return ""
    low, high = form.format(found.lowest), form.format(found.highest)
    return f"{form.format(found.median)} ({low}–{high})"


def times(found: Ratio) -> str:
    """Show a ratio and its range."""
    return f"{found.value:.2f}× ({found.lowest:.2f}–{found.highest:.2f})"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _one(value: float) -> str:
    return f"{value:,.1f}"


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _megabytes(value: float) -> str:
    return f"{value / MEGABYTE:,.0f}"


def cost_columns() -> Columns:
    """Show what a job costs."""
    return ("client µs/job", "server µs/job", "WAL B/job"), lambda spot: (
        spot.median("client_micros", _one),
        spot.median("server_micros", _one),
        spot.median("wal_bytes", _whole),
    )


def drain_columns() -> Columns:
    """Show what a job costs, and what the worker and the disk hold."""
    headings, cells = cost_columns()
    return (*headings, "disk B/job", "worker MB"), lambda spot: (
        *cells(spot),
        spot.median("disk_bytes", _whole),
        spot.median("rss", _megabytes),
    )


def sleeper_columns() -> Columns:
    """Show how near it came to what a hundred slots can do."""
    headings, cells = cost_columns()
    more = ("of the ideal 10,000/s", "slots in use while jobs are due", "slots not napping")
    return (*more, *headings), lambda spot: (
        spot.median("rate", lambda rate: _percent(rate / IDEAL_SLEEPERS)),
        spot.median("occupied", _percent),
        spot.median("idle", _percent),
        *cells(spot),
    )


def step_columns() -> Columns:
    """Show steps instead of jobs."""
    headings, cells = cost_columns()
    return ("steps/s", *headings), lambda spot: (
        spot.median("rate", lambda rate: _whole(rate * STEPS)),
        *cells(spot),
    )


def signal_columns() -> Columns:
    """Show how quickly they were sent, beside how quickly they were acted upon."""
    headings, cells = cost_columns()

    def sent(spot: Spot) -> str:
        jobs = spot.measured.jobs(spot.scenario, spot.variant, spot.contestant)
        return spot.median("sent_seconds", lambda seconds: _whole(jobs / seconds))

    return ("sent/s", *headings), lambda spot: (sent(spot), *cells(spot))


def http_columns() -> Columns:
    """Show how long each took, and what the same framework answers with nothing behind it."""
    return ("p50 ms", "p99 ms", "empty POSTs/s", "of these"), lambda spot: (
        spot.median("p50", _one),
        spot.median("p99", _one),
        spot.median("empty_rate", _whole),
        spot.median("share", _percent),
    )


def latency_sheet(measured: Measured, _: frozenset[str]) -> Sheet:
    """Show latencies, the quickest first."""
    rows = []
    for variant in measured.variants("latency"):
        names = measured.contenders("latency", variant)
        spots = [Spot(measured, "latency", variant, name) for name in names]
        for spot in sorted(spots, key=_p50_of):
            rows.append(
                (
                    variant,
                    spot.contestant,
                    f"{measured.jobs('latency', variant, spot.contestant):,}",
                    rounds(spot.figure("p50")),
                    ranged(spot.figure("p50"), "{:.1f}"),
                    ranged(spot.figure("p99"), "{:.1f}"),
                    spot.median("most", _one),
                    spot.median("asked_rate", _whole),
                    spot.median("rate", _whole),
                )
            )
    return Sheet(
        title="Latency from submit to the handler's start",
        headings=(
            *("condition", "contestant", "samples per round", "rounds"),
            *("p50 ms (range)", "p99 ms (range)", "slowest ms"),
            *("load requested/s", "load reached/s"),
        ),
        rows=rows,
        note="Half load is half of the rate at which the measured submits and drains together "
        "would fill the machine.",
    )


def commands_sheet(measured: Measured, _: frozenset[str]) -> Sheet:
    """Show commands beside what they are compared with, and how soon containers are recovered."""
    spots = _list_spots(measured, "commands")
    return Sheet(
        title="Commands in boxes",
        headings=(
            *("condition", "contestant", "jobs", "rounds", "p50 ms (range)", "p99 ms"),
            *("bare p50 ms", "of bare", "commit p50 ms", "beyond bare and two commits, ms"),
            "recovered after s (range)",
        ),
        rows=[
            (
                *(spot.variant, spot.contestant),
                f"{measured.jobs('commands', spot.variant, spot.contestant):,}",
                rounds(spot.figure("p50") or spot.figure("recovery_seconds")),
                ranged(spot.figure("p50"), "{:.1f}"),
                spot.median("p99", _one),
                spot.median("bare_p50", _one),
                spot.median("of_bare", lambda value: f"{value:.2f}×"),
                spot.median("commit_p50", _one),
                spot.median("over_ms", _one),
                ranged(spot.figure("recovery_seconds"), "{:.2f}"),
            )
            for spot in spots
        ],
        note="A job is measured from the record of its submit to that of its end, in turn with the "
        "bare line. A recovery is measured from the start of the next worker, in a process that "
        "runs already, until it owns all commands.",
    )


def blobs_sheet(measured: Measured, _: frozenset[str]) -> Sheet:
    """Show small blobs beside a bare loop, and the memory that a large one takes."""
    spots = _list_spots(measured, "blobs")
    return Sheet(
        title="Blobs",
        headings=(
            *("condition", "contestant", "rounds", "put p50 ms (range)", "bare p50 ms", "of bare"),
            *("MB/s", "more memory, MB (range)"),
        ),
        rows=[
            (
                *(spot.variant, spot.contestant),
                rounds(spot.figure("p50") or spot.figure("grown_mb")),
                ranged(spot.figure("p50"), "{:.2f}"),
                spot.median("bare_p50", lambda value: f"{value:.2f}"),
                spot.median("of_bare", lambda value: f"{value:.2f}×"),
                spot.median("rate_mb", _one),
                ranged(spot.figure("grown_mb"), "{:.1f}"),
            )
            for spot in spots
        ],
        note="The bare loop is the library's put, and a sync of the file and of each directory. "
        "Memory is the peak beyond what the process had before, its library loaded.",
    )


def policy_sheet(measured: Measured, _: frozenset[str]) -> Sheet:
    """Show what a policy adds to a submit."""
    spots = _list_spots(measured, "policy")
    return Sheet(
        title="Submits that a policy judges",
        headings=(
            *("condition", "contestant", "rounds", "without, µs per job", "with, µs per job"),
            *("more, µs per job (range)", "judgement alone, µs"),
        ),
        rows=[
            (
                *(spot.variant, spot.contestant),
                rounds(spot.figure("more_us")),
                spot.median("off_us", _one),
                spot.median("with_us", _one),
                ranged(spot.figure("more_us"), "{:.1f}"),
                spot.median("judge_us", _one),
            )
            for spot in spots
        ],
        note="Batches of 500 jobs in one process, in turn with and without a policy. It has 100 "
        "structured rules and 5 expressions, and none of them matches.",
    )


def bus_sheet(measured: Measured, _: frozenset[str]) -> Sheet:
    """Show jobs over a bridge beside a bare loop."""
    spots = _list_spots(measured, "bus")
    return Sheet(
        title="Jobs over the bus",
        headings=(
            *("condition", "contestant", "rounds", "jobs per second"),
            *("bare loop, packets per second", "of the bare loop (range)"),
        ),
        rows=[
            (
                *(spot.variant, spot.contestant),
                rounds(spot.figure("of_bare")),
                spot.median("rate", _whole),
                spot.median("bare_rate", _whole),
                ranged(spot.figure("of_bare"), "{:.2f}"),
            )
            for spot in spots
        ],
        note="From a client's packet to the record of a worker's result. Client, bridge and worker "
        "share one process, and so do client, relay and worker of the bare loop, which sends "
        "packets of the same size with the same signatures and keeps nothing.",
    )


def _p50_of(spot: Spot) -> float:
    found = spot.figure("p50")
    return float("inf") if found is None else found.median


def contestants_sheet(results: Results) -> Sheet:
    """Show who took part, at which settings, and what each keeps of a finished job."""
    return Sheet(
        title="Contestants",
        headings=("contestant", "engine", "version", "settings", "what it keeps of a finished job"),
        rows=[
            (card.name, card.engine, card.version, card.settings, card.keeps)
            for card in results.cards
        ],
    )


def troubles_sheet(results: Results) -> Sheet:
    """Show what is not in the tables, and why."""
    rows = [(name, why) for name, why in results.missing.items()]
    rows += [("failed", text) for text in results.failures]
    rows += [("has no such thing", text) for text in results.unsupported]
    if results.broken is not None:
        rows.append(("THE BENCH FAILED", results.broken))
    if results.interrupted:
        rows.append(("interrupted", "the run was ended early; this is what it had measured"))
    return Sheet(title="Not measured", headings=("what", "why"), rows=rows)


def conditions(results: Results) -> list[str]:
    """Describe where and how it was measured."""
    size = "a quick run: its figures only show that everything works" if results.quick else ""
    return [
        f"{results.machine}, shared by client and server; Python {results.python}",
        *results.engines.values(),
        *_runs(results),
        f"up to {results.rounds} interleaved rounds, see each row, medians; "
        "CHECKPOINT before each stretch by the clock" + (f"; {size}" if size else ""),
    ]


def _runs(results: Results) -> Iterator[str]:
    """Tell which runs the figures are of, and of which commit each is."""
    runs = sorted({one.run for one in results.measurements if one.run})
    names = [f"{run} ({results.runs[run]})" for run in runs]
    if len(names) == 1:
        yield f"run of {names[0]}"
    elif names:
        yield f"runs of {', '.join(names)}; every ratio is of one run"


def show(results: Results, console: Console) -> None:
    """Print everything; the targets last, where they are seen."""
    first, *others = sheets(results)
    for text in conditions(results):
        console.print(text, markup=False, highlight=False)
    for sheet in [*others, first]:
        console.print(_table(sheet))
        if sheet.note:
            console.print(sheet.note, style="dim")


def _table(sheet: Sheet) -> Table:
    table = Table(title=sheet.title, title_justify="left")
    for number, heading in enumerate(sheet.headings):
        wide = number < 2 or sheet.title in ("Contestants", "Not measured", "Targets")
        table.add_column(heading, justify="left" if wide else "right", overflow="fold")
    for row in sheet.rows:
        style = next((STYLES[one] for one in STYLES if one.value == row[-1]), "")
        table.add_row(*(Text(cell) for cell in row), style=style)
    return table


def markdown(results: Results) -> str:
    """Write everything as Markdown."""
    parts = ["\n".join(f"- {text}" for text in conditions(results))]
    for sheet in sheets(results):
        parts.append(f"### {sheet.title}")
        if sheet.note:
            parts.append(sheet.note)
        lines = [_markdown_row(sheet.headings), _markdown_row(["---"] * len(sheet.headings))]
        parts.append("\n".join([*lines, *map(_markdown_row, sheet.rows)]))
    return "\n\n".join(parts)


def _markdown_row(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |"


def write_docs(page: Path, results: Results, *, with_picture: bool) -> None:
    """Replace what lies between the markers of a page."""
    text = page.read_text("utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page.name} has no place between {BEGIN} and {END}")
    picture = f"{PICTURE}\n\n" if with_picture else ""
    written = f"{picture}{markdown(results)}"
    page.write_text(f"{before}{BEGIN}\n\n{written}\n\n{END}{after}", "utf-8")
