"""What `make bench` can be asked for, and what it keeps of an earlier run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bench import __main__ as bench_main
from bench.__main__ import arguments, drawn, earlier_results, keep, scale_of, write_docs
from bench.figures import Measurement
from bench.report import BEGIN, END
from bench.run import Results
from bench.scenarios import QUICK, Scale


def test_nothing_said_is_everything_five_times() -> None:
    given = arguments([])
    assert given.rounds == 5
    assert scale_of(given) == Scale()


def test_a_quick_run_is_small_and_once() -> None:
    given = arguments(["--quick"])
    assert given.rounds == 1
    assert scale_of(given) == QUICK


def test_a_brief_run_has_one_size_and_one_process() -> None:
    assert scale_of(arguments(["--brief", "--jobs", "7"])) == Scale(jobs=7, larger=False)


def test_a_scenario_that_there_is_not_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["--only", "drian"])
    assert "no scenario drian; there are submit" in capsys.readouterr().err


def test_an_earlier_run_is_kept_only_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_main, "RESULTS", tmp_path / "bench.json")
    assert earlier_results(arguments(["--add"])) is None
    kept = Results(machine="m", python="3", run="1")
    keep(kept)
    assert earlier_results(arguments(["--add"])) == kept
    assert earlier_results(arguments([])) is None


def test_pieces_are_put_together_for_one_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for run, variant in (("morning", "10 analysed"), ("evening", "10 burst")):
        found = Measurement(
            scenario="drain",
            variant=variant,
            contender="a",
            round=0,
            jobs=1,
            values={"rate": 1.0},
            run=run,
        )
        files.append(tmp_path / f"{run}.json")
        results = Results(machine="m", python="3", runs={run: "c"}, measurements=[found])
        files[-1].write_bytes(msgspec.json.encode(results))
    monkeypatch.setattr("sys.argv", ["bench", "--from", *map(str, files)])
    assert bench_main.main() == 0
    shown = capsys.readouterr().out
    assert "10 analysed" in shown
    assert "10 burst" in shown
    assert "runs of evening (c), morning (c); every ratio is of one run" in shown


def test_a_quick_run_leaves_the_figures_of_a_full_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_main, "RESULTS", tmp_path / "bench.json")
    monkeypatch.setattr(bench_main, "QUICK_RESULTS", tmp_path / "quick.json")
    keep(Results(machine="m", python="3", quick=True))
    assert [file.name for file in tmp_path.iterdir()] == ["quick.json"]


def test_a_picture_that_could_not_be_drawn_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_main, "plotting_python", lambda _: tmp_path / "no-python")
    assert not drawn(tmp_path / "bench.json")


def test_every_figure_lies_beside_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, figures = tmp_path / "performance.md", tmp_path / "performance.json"
    page.write_text(f"{BEGIN}{END}")
    for name, value in (("ROOT", tmp_path), ("PAGE", page), ("FIGURES", figures)):
        monkeypatch.setattr(bench_main, name, value)
    monkeypatch.setattr(bench_main, "drawn", lambda _: False)
    results = Results(machine="m", python="3")
    write_docs(results)
    assert msgspec.json.decode(figures.read_bytes(), type=Results) == results
    assert "- m, shared by client and server" in page.read_text()
