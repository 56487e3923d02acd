"""Holdfast at another revision as a contestant: its name, its tree, and by what it is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import cells, contestants, revisions
from bench.cells import Cell, NotProven
from bench.contestants import HOLDFAST, HOLDFAST_SQLITE, Contestant
from bench.figures import Measured
from bench.places import SqlitePlace
from bench.protocol import ProgramError
from bench.scenarios import Field, Scale, growth, over_http, signals, sleepers, steps


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository whose second commit says other than its first, which is tagged."""
    place = tmp_path / "repository"
    place.mkdir()
    who = ("-c", "user.name=n", "-c", "user.email=e@example.org")

    def git(*words: str) -> None:
        subprocess.run(["git", *who, *words], cwd=place, check=True, capture_output=True)

    git("init")
    for text in ("before", "after"):
        (place / "word.txt").write_text(text)
        git("add", "word.txt")
        git("commit", "-m", text)
        if text == "before":
            git("tag", "v1")
    monkeypatch.setattr(revisions, "ROOT", place)
    return place


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """List the environments that were made, instead of making them: what for, and within what."""
    found: list[tuple[str, str]] = []

    def make(_: Path, wanted: list[str], limits: Path) -> None:
        found.append((wanted[0], limits.read_text()))

    monkeypatch.setattr(revisions, "make_environment", make)
    return found


def test_a_revision_is_the_tree_of_that_commit(
    repository: Path, made: list[tuple[str, str]], tmp_path: Path
) -> None:
    found, missing = revisions.install(["store", "holdfast@v1"], print, tmp_path)
    assert missing == {}
    assert [(one.name, one.family) for one in found] == [
        ("holdfast@v1", HOLDFAST),
        ("holdfast@v1 on SQLite", HOLDFAST_SQLITE),
    ]
    assert {(one.directory / "word.txt").read_text() for one in found} == {"before"}
    assert {one.argv[0] for one in found} == {str(found[0].directory.parent / "venv/bin/python")}
    [(wanted, limits)] = made
    assert wanted == f"{found[0].directory}[postgres,server]"
    assert "msgspec==" in limits
    assert "holdfast==" not in limits


def test_what_is_installed_is_not_installed_again(
    repository: Path, made: list[tuple[str, str]], tmp_path: Path
) -> None:
    for _ in range(2):
        revisions.install(["holdfast@v1", "store@v1"], print, tmp_path)
    assert len(made) == 1


def test_one_engine_of_a_revision_can_be_chosen(
    repository: Path, made: list[tuple[str, str]], tmp_path: Path
) -> None:
    asked = ["holdfast@v1 on", "holdfast@v1 on SQLite"]
    found, missing = revisions.install(asked, print, tmp_path)
    assert missing == {}
    assert [one.name for one in contestants.chosen(found, asked)] == ["holdfast@v1 on SQLite"]


def test_a_revision_that_there_is_not_is_told_and_the_rest_goes_on(
    repository: Path, made: list[tuple[str, str]], tmp_path: Path
) -> None:
    said: list[str] = []
    found, missing = revisions.install(["holdfast@v9", "store@v1"], said.append, tmp_path)
    assert [one.name for one in found] == ["store@v1", "store@v1 on SQLite"]
    assert list(missing) == ["holdfast@v9"]
    assert said[0].startswith("holdfast@v9 could not be installed: `git rev-parse")


def test_a_name_tells_whose_and_of_which_engine() -> None:
    assert contestants.before("holdfast@v1 on SQLite", HOLDFAST_SQLITE)
    assert not contestants.before("holdfast@v1 on SQLite", HOLDFAST)
    assert not contestants.before(HOLDFAST, HOLDFAST)
    ours = ["holdfast", "store on SQLite", "holdfast@v1", "store@v1 on SQLite"]
    assert all(map(contestants.is_ours, ours))
    assert not any(map(contestants.is_ours, ["huey", "graphile-worker batched"]))


def _older(directory: Path) -> Contestant:
    return Contestant(
        name="holdfast@v1 on SQLite",
        family=HOLDFAST_SQLITE,
        engine="sqlite",
        argv=(sys.executable, "-m", "bench.programs.holdfast"),
        directory=directory,
        ours=True,
    )


def test_a_revision_runs_its_own_programs_and_is_verified_by_its_own_law(tmp_path: Path) -> None:
    for package, module in (("bench", "programs/holdfast.py"), ("holdfast", "cli.py")):
        file = tmp_path / package / module
        file.parent.mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
        file.write_text(f"raise SystemExit('{package} of v1')")
    one = _older(tmp_path)
    cell = Cell(scenario="steps", variant="v", contestant=one, jobs=1, measure=cells.drain)
    with pytest.raises(ProgramError, match="bench of v1"):
        one.program.ask("version")
    with pytest.raises(NotProven, match="holdfast of v1"):
        cells.verify(cell, SqlitePlace(tmp_path), None)


@pytest.mark.parametrize("scenario", [steps, signals, sleepers, growth, over_http])
def test_before_and_after_are_measured_beside_each_other(scenario: object, tmp_path: Path) -> None:
    field = Field(
        contestants=[*contestants.own(), _older(tmp_path)], scale=Scale(), measured=Measured()
    )
    found = [cell.contestant.name for cell in scenario(field)]  # type: ignore[operator]
    names = list(dict.fromkeys(found))
    assert names == [HOLDFAST, HOLDFAST_SQLITE, "holdfast@v1 on SQLite"]
