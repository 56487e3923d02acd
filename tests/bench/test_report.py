"""The report: what is shown, what is written into the page, and that no miss is hidden."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from bench.contestants import HOLDFAST, HOLDFAST_SQLITE, Card
from bench.figures import Measurement
from bench.report import BEGIN, END, markdown, show, write_docs
from bench.run import Results


def _measurement(name: str, number: int, rate: float, **changes: object) -> Measurement:
    values = {"rate": rate, "client_micros": 12.34, "wal_bytes": 1234.5, "rss": 64e6}
    given = {"scenario": "drain", "variant": "100,000 burst", "jobs": 100_000, "values": values}
    given |= {"contender": name, "round": number} | changes
    return Measurement(**given)  # type: ignore[arg-type]


def _card(name: str, engine: str) -> Card:
    return Card(name=name, engine=engine, version="1.2", settings="best", keeps="a row | two")


def _results() -> Results:
    graphile = "graphile-worker batched"
    return Results(
        machine="Linux, 2 cores",
        python="3.11.7",
        engines={"postgresql": "PostgreSQL 15"},
        rounds=3,
        cards=[
            _card(HOLDFAST, "postgresql"),
            _card(graphile, "postgresql"),
            _card("huey", "sqlite"),
        ],
        measurements=[
            *(_measurement(HOLDFAST, n, rate) for n, rate in enumerate((900.0, 1000.0, 1300.0))),
            *(
                _measurement(graphile, n, rate, jobs=2_000)
                for n, rate in enumerate((900.0, 1250.0))
            ),
            _measurement(HOLDFAST_SQLITE, 0, 700.0, variant="100,000 SQLite"),
            _measurement("huey", 0, 100.0, variant="100,000 SQLite"),
        ],
        missing={"pg-boss": "could not be installed: no network"},
        failures=["drain, 100,000 burst: dbos drain ended with code 1"],
    )


def test_medians_ranges_ratios_and_jobs_are_shown() -> None:
    text = markdown(_results())
    assert "| 100,000 burst | holdfast | 100,000 | 3 | 1,000 (900–1,300) |" in text
    assert "| graphile-worker batched | 2,000 | 2 | 1,075 (900–1,250) | 0.93× (0.80–1.00) |" in text
    assert "| 12.3 |  | 1,234 |  | 64 |" in text


def test_each_row_tells_its_own_rounds() -> None:
    growth = {"scenario": "growth", "variant": "1,000,000 jobs", "jobs": 1_000_000}
    results = _results()
    results.measurements += [_measurement(HOLDFAST, n, 900.0, **growth) for n in range(2)]
    text = markdown(results)
    assert "up to 3 interleaved rounds, see each row" in text
    assert "| 1,000,000 jobs | holdfast | 1,000,000 | 2 | 900 (900–900) |" in text


def test_a_contestant_on_sqlite_is_compared_with_holdfast_there() -> None:
    assert "| huey | 100,000 | 1 | 100 (100–100) | 7.00× (7.00–7.00) |" in markdown(_results())


def test_a_miss_is_written_as_one() -> None:
    text = markdown(_results())
    [burst] = [line for line in text.splitlines() if "drain vs Graphile batched, burst" in line]
    assert burst.endswith("| ≥ 1.50× | ≥ 2.50× | 0.93× (100,000 burst) | MISSED |")


def test_who_is_missing_and_what_failed_is_told() -> None:
    text = markdown(_results())
    assert "| pg-boss | could not be installed: no network |" in text
    assert "| failed | drain, 100,000 burst: dbos drain ended with code 1 |" in text


def test_a_bar_in_a_cell_does_not_break_the_table() -> None:
    assert r"a row \| two" in markdown(_results())


def test_an_interrupted_or_broken_run_says_so() -> None:
    results = _results()
    results.interrupted, results.broken = True, "verify failed"
    text = markdown(results)
    assert "| interrupted |" in text
    assert "| THE BENCH FAILED | verify failed |" in text


def test_everything_is_shown_on_a_terminal() -> None:
    out = io.StringIO()
    show(_results(), Console(file=out, width=200))
    shown = out.getvalue()
    assert "PostgreSQL 15" in shown
    assert "MISSED" in shown
    assert "could not be installed: no network" in shown


def test_results_survive_their_file() -> None:
    results = _results()
    assert msgspec.json.decode(msgspec.json.encode(results), type=Results) == results


def test_only_what_lies_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"# Before\n\n{BEGIN}\n\nearlier figures\n\n{END}\n\n## After\n")
    write_docs(page, _results(), with_picture=True)
    text = page.read_text()
    assert text.startswith(f"# Before\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\n## After\n")
    assert "earlier figures" not in text
    assert "(performance.png)" in text
    write_docs(page, _results(), with_picture=False)
    assert "(performance.png)" not in page.read_text()
    assert page.read_text().count(BEGIN) == 1


def test_a_page_without_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("# Page\n")
    with pytest.raises(ValueError, match="has no place"):
        write_docs(page, _results(), with_picture=False)
    assert page.read_text() == "# Page\n"
