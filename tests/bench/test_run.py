"""The run: whose turn it is, the rest before each stretch, and what a failure leads to."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from bench import cells, contestants
from bench.cells import Cell, NotProven
from bench.contestants import HOLDFAST, STORE, Card, Contestant
from bench.figures import Measured, Measurement
from bench.peers import Pace
from bench.places import Place, Usage
from bench.protocol import ProgramError
from bench.run import Results, Run, merged
from bench.scenarios import (
    SCENARIOS,
    Field,
    Scale,
    drains,
    half_load,
    in_turn,
    selected,
)

PROGRAM = """
import json, sys
verb, url = sys.argv[1], sys.argv[-1]
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
with open(options["--url"], "a") as log:
    log.write(verb + "\\n")
jobs = int(options.get("--jobs", 0))
REPLIES = {"setup": {}, "left": {"left": LEFT}}
print(json.dumps(REPLIES.get(verb, {"jobs": jobs, "seconds": 0.5, "cpu": 0.1, "rss": 7})))
"""


class FakePlace:
    """Writes into one log, with the programs, what is asked of it."""

    def __init__(self, path: Path) -> None:
        self.url = str(path)

    def set_up(self, kind: str, make: Callable[[], object]) -> None:
        make()

    def rest(self) -> None:
        self._say("CHECKPOINT")

    def analyse(self) -> None:
        self._say("ANALYZE")

    def settle(self) -> None:
        self._say("VACUUM")

    def usage(self) -> Usage:
        return Usage(cpu_seconds=0.0, wal_bytes=0, disk_bytes=0)

    def _say(self, word: str) -> None:
        with Path(self.url).open("a") as log:
            log.write(word + "\n")


class FakeEngine:
    """Gives the same place again and again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def place(self) -> Iterator[Place]:
        yield FakePlace(self._path)

    def version(self) -> str:
        return "fake"


def _contestant(name: str, *, left: int = 0, code: str = PROGRAM, **changes: Any) -> Contestant:
    given: dict[str, Any] = {"family": name, "engine": "postgresql", **changes}
    argv = (sys.executable, "-c", code.replace("LEFT", str(left)))
    return Contestant(name=name, argv=argv, **given)


def _run(
    tmp_path: Path,
    *taking_part: Contestant,
    report: Callable[[str], None] = print,
    conditions: Sequence[str] = (),
) -> Run:
    return Run(
        Results(machine="", python=""),
        {"postgresql": FakeEngine(tmp_path / "log"), "sqlite": FakeEngine(tmp_path / "log")},
        taking_part,
        Scale(jobs=10, larger=False),
        report=report,
        keep=lambda _: None,
        conditions=conditions,
    )


def _cells(*names: str) -> list[Cell]:
    field = Field(
        contestants=[_contestant(name) for name in names],
        scale=Scale(jobs=10),
        measured=Measured(),
    )
    return list(drains(field))


def test_contestants_take_turns_at_being_first() -> None:
    cells = _cells("a", "b", "c")
    first = [cell.contestant.name for cell in in_turn(cells, 0)][:3]
    assert first == ["a", "b", "c"]
    assert [cell.contestant.name for cell in in_turn(cells, 1)][:3] == ["b", "c", "a"]
    assert [cell.contestant.name for cell in in_turn(cells, 3)][:3] == first


def test_a_condition_is_measured_for_all_before_the_next() -> None:
    variants = [cell.variant for cell in in_turn(_cells("a", "b"), 1)]
    assert variants[:4] == ["10 analysed", "10 analysed", "10 burst", "10 burst"]
    assert "10 burst, 2 processes" in variants


def test_every_cell_of_a_scenario_comes_once_a_round(tmp_path: Path) -> None:
    run = _run(tmp_path, _contestant("a"), _contestant("b"))
    run.scenario("drain", 3, lambda *_: None)
    found = run.results.measurements
    drained = [(one.contender, one.variant, one.round) for one in found if one.scenario == "drain"]
    assert sorted(drained) == sorted(set(drained))
    assert len(drained) == 2 * 2 * 3
    assert {one.scenario for one in found} == {"drain", "submit"}


@pytest.mark.parametrize("analysed", [True, False])
def test_a_checkpoint_comes_right_before_each_stretch(tmp_path: Path, analysed: bool) -> None:
    cell = _drain_cell(_contestant("a"), analysed=analysed)
    cells.drain(cell, FakePlace(tmp_path / "log"))
    expected = ["setup", "CHECKPOINT", "fill", "ANALYZE", "CHECKPOINT", "drain", "left"]
    if not analysed:
        expected.remove("ANALYZE")
    assert (tmp_path / "log").read_text().split() == expected


def _drain_cell(contestant: Contestant, **changes: Any) -> Cell:
    given: dict[str, Any] = {"scenario": "drain", "variant": "10 burst", "jobs": 10, **changes}
    return Cell(contestant=contestant, measure=cells.drain, **given)


def test_rates_and_costs_are_per_job(tmp_path: Path) -> None:
    [_, found] = cells.drain(_drain_cell(_contestant("a")), FakePlace(tmp_path / "log"))
    assert found.values["rate"] == 20.0
    assert found.values["client_micros"] == pytest.approx(10_000)
    assert found.values["rss"] == 7


def test_a_peer_that_leaves_jobs_behind_does_not_count_and_the_rest_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    run = _run(tmp_path, _contestant("lazy", left=3), _contestant("b"), report=said.append)
    run.scenario("drain", 2, lambda *_: None)
    assert {one.contender for one in run.results.measurements} == {"b"}
    assert run.results.failures == [
        "drain, 10 analysed: lazy left 3 of 10 jobs",
        "drain, 10 burst: lazy left 3 of 10 jobs",
    ]
    assert any("lazy left 3 of 10 jobs" in text for text in said)


def test_a_failure_under_one_condition_leaves_the_others_measured(tmp_path: Path) -> None:
    # The log of the place tells a program whether the tables were analysed.
    code = PROGRAM.replace("LEFT", 'int("ANALYZE" in open(options["--url"]).read().split()[-4:])')
    run = _run(tmp_path, _contestant("a", code=code))
    run.scenario("drain", 2, lambda *_: None)
    assert run.results.failures == ["drain, 10 analysed: a left 1 of 10 jobs"]
    drained = [one for one in run.results.measurements if one.scenario == "drain"]
    assert [(one.variant, one.round) for one in drained] == [("10 burst", 0), ("10 burst", 1)]


def test_a_history_is_cleaned_up_after_before_the_drain_on_it(tmp_path: Path) -> None:
    cell = msgspec.structs.replace(_drain_cell(_contestant("a")), history=20)
    first, second = cells.growth(cell, FakePlace(tmp_path / "log"))
    assert (first.jobs, second.jobs) == (None, 2)
    said = (tmp_path / "log").read_text().split()
    made = ["setup", "CHECKPOINT", "fill", "CHECKPOINT", "drain", "fill", "drain"]
    assert said == [*made, "VACUUM", "CHECKPOINT", "fill", "CHECKPOINT", "drain", "left"]


def test_a_peer_that_did_other_than_asked_does_not_count(tmp_path: Path) -> None:
    code = PROGRAM.replace('{"jobs": jobs,', '{"jobs": jobs - 1,')
    with pytest.raises(ProgramError, match="should do 10 jobs"):
        cells.drain(_drain_cell(_contestant("a", code=code)), FakePlace(tmp_path / "log"))


def test_what_a_peer_does_not_have_is_noted_once(tmp_path: Path) -> None:
    code = 'print(\'{"unsupported": "bulk only"}\')'
    run = _run(tmp_path, _contestant("a", code=code))
    run.scenario("single", 3, lambda *_: None)
    assert run.results.unsupported == ["a setup: bulk only"]
    assert run.results.failures == []


def test_holdfast_leaving_jobs_behind_fails_the_bench(tmp_path: Path) -> None:
    run = _run(tmp_path, _contestant(HOLDFAST, left=1, ours=True))
    with pytest.raises(NotProven, match="left 1 of 10 jobs"):
        run.scenario("drain", 1, lambda *_: None)
    assert run.results.measurements == []


def test_a_failure_of_holdfast_fails_the_bench(tmp_path: Path) -> None:
    run = _run(tmp_path, _contestant(HOLDFAST, code="raise SystemExit(9)", ours=True))
    with pytest.raises(NotProven, match="ended with code 9"):
        run.scenario("drain", 1, lambda *_: None)


def test_the_first_latency_counts_of_nobody(tmp_path: Path) -> None:
    code = PROGRAM.replace('{"left": LEFT}', '{}, "latency": {"ms": [900.0] + [2.0] * 4}')
    cell = msgspec.structs.replace(_drain_cell(_contestant("a", code=code)), samples=4)
    [found] = cells.latency(cell, FakePlace(tmp_path / "log"))
    assert found.values == {"p50": 2.0, "p99": 2.0, "most": 2.0}
    with pytest.raises(ProgramError, match="fewer than 6 latencies"):
        cells.latency(msgspec.structs.replace(cell, samples=5), FakePlace(tmp_path / "log"))


def test_several_processes_are_timed_by_their_own_clocks() -> None:
    replies = [
        {"jobs": 4, "first": 10.0, "last": 12.0, "cpu": 1.0, "rss": 5},
        {"jobs": 6, "first": 11.0, "last": 15.0, "cpu": 2.0, "rss": 9},
        {"jobs": 0, "first": 0.0, "last": 0.0, "cpu": 0.0, "rss": 3},
    ]
    found = cells._together(_drain_cell(_contestant("a")), replies, watched=99.0)
    assert found == {"jobs": 10, "seconds": 5.0, "cpu": 3.0, "rss": 9}


def _drains_of(name: str = "one", **changes: Any) -> list[tuple[int, str]]:
    field = Field(
        contestants=[_contestant(name, **changes)],
        scale=Scale(jobs=100, middling_jobs=30, slow_jobs=7),
        measured=Measured(),
    )
    cells = list(drains(field))
    # Every drain is measured in every round.
    assert {cell.most_rounds for cell in cells} == {None}
    return [(cell.jobs, cell.variant) for cell in cells]


def test_everybody_fast_is_drained_under_every_condition() -> None:
    assert _drains_of() == [
        (100, "100 analysed"),
        (100, "100 burst"),
        (200, "200 analysed"),
        (200, "200 burst"),
        (100, "100 burst, 2 processes"),
    ]


def test_slower_peers_get_fewer_jobs_and_not_the_larger_drain() -> None:
    assert _drains_of(pace=Pace.SLOW) == [(7, "100 burst")]
    assert _drains_of(pace=Pace.MIDDLING) == [
        (30, "100 analysed"),
        (30, "100 burst"),
        (30, "100 burst, 2 processes"),
    ]


def test_sqlite_is_not_analysed_and_the_store_is_one_process() -> None:
    name = "100 SQLite"
    assert _drains_of(engine="sqlite") == [(100, name), (100, f"{name}, 2 processes")]
    found = _drains_of(STORE)
    assert [variant for _, variant in found] == ["100 analysed", "100 burst"]


def test_what_takes_long_is_measured_in_fewer_rounds(tmp_path: Path) -> None:
    cells = [
        msgspec.structs.replace(_drain_cell(_contestant(name)), variant=name, most_rounds=most)
        for name, most in (("long", 2), ("short", None))
    ]
    run = _run(tmp_path)
    steps: list[tuple[str, int]] = []
    with patch.dict(SCENARIOS, {"drain": lambda _: iter(cells)}):
        run.scenario("drain", 3, lambda text, total: steps.append((text, total)))
    assert [one.variant for one in run.results.measurements if one.scenario == "drain"] == [
        "long", "short", "long", "short", "short"
    ]  # fmt: skip
    assert {total for _, total in steps} == {5}


def test_half_load_is_half_of_what_submits_and_drains_leave_room_for() -> None:
    def one(scenario: str, variant: str, rate: float) -> Measurement:
        return Measurement(
            scenario=scenario,
            variant=variant,
            contender="a",
            round=0,
            jobs=1,
            values={"rate": rate},
        )

    found = [one("submit", "x", 30.0), one("drain", "x", 60.0), one("drain", "y", 15.0)]
    assert half_load(Measured(found), "a") == pytest.approx(5.0)
    assert half_load(Measured(found[:1]), "a") is None


def test_a_drain_measures_the_submit_too() -> None:
    assert "submit" not in selected([])
    assert selected(["submit"]) == ["submit"]
    assert selected(["latency", "drain"]) == ["drain", "latency"]


def test_a_run_can_be_of_some_conditions_alone(tmp_path: Path) -> None:
    run = _run(tmp_path, _contestant("a"), conditions=["analysed"])
    run.scenario("drain", 1, lambda *_: None)
    drained = [one for one in run.results.measurements if one.scenario == "drain"]
    assert [one.variant for one in drained] == ["10 analysed"]


def test_a_measurement_names_its_run(tmp_path: Path) -> None:
    run = _run(tmp_path, _contestant("a"))
    run.results.run = "today"
    run.scenario("drain", 1, lambda *_: None)
    assert {one.run for one in run.results.measurements} == {"today"}


def _measured_in(run: str, *conditions: str, name: str = "a", **changes: Any) -> Results:
    found = [
        Measurement(
            scenario="drain", variant=one, contender=name, round=0, jobs=1, values={}, run=run
        )
        for one in conditions
    ]
    return Results(machine="m", python="3", run=run, measurements=found, **changes)


def test_a_condition_is_of_the_last_run_that_has_it() -> None:
    earlier = _measured_in("1", "burst", "analysed", name="b", runs={"1": "x"}, rounds=5)
    found = merged(earlier, _measured_in("2", "burst", runs={"2": "y"}, rounds=3))
    assert [(one.variant, one.run, one.contender) for one in found.measurements] == [
        ("analysed", "1", "b"),
        ("burst", "2", "a"),
    ]
    assert (found.run, found.runs, found.rounds) == ("2", {"1": "x", "2": "y"}, 5)


def test_what_an_earlier_run_says_about_others_stays() -> None:
    def card(name: str, version: str) -> Card:
        return Card(name=name, engine="sqlite", version=version, settings="", keeps="")

    earlier = _measured_in(
        "1",
        cards=[card("a", "1"), card("b", "1")],
        missing={"a": "no network", "c": "no network"},
        failures=["drain, burst: a left 1 job", "drain, analysed: a left 1 job"],
        broken="verify failed",
    )
    found = merged(earlier, _measured_in("2", "burst", cards=[card("a", "2")]))
    assert [(one.name, one.version) for one in found.cards] == [("a", "2"), ("b", "1")]
    assert found.missing == {"c": "no network"}
    assert found.failures == ["drain, analysed: a left 1 job", "a run before: verify failed"]
    assert found.broken is None


class FakePeer:
    """A peer that may not be installable."""

    engine, pace = "postgresql", Pace.FAST

    def __init__(self, name: str, *modes: str, broken: bool = False) -> None:
        self.name = name
        self.modes = [(mode, f"settings of {mode}") for mode in modes]
        self._broken = broken

    def install(self, directory: Path) -> None:
        if self._broken:
            raise OSError("no network")

    def argv(self, directory: Path) -> list[str]:
        return [str(directory), self.name]


def test_a_peer_that_cannot_be_installed_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    said: list[str] = []
    peers = [FakePeer("x", "best", broken=True), FakePeer("y", "best", "default")]
    found, missing = contestants.install(peers, said.append, tmp_path)
    assert missing == {"x": "could not be installed: no network"}
    assert said == ["x could not be installed: no network"]
    assert [(one.name, one.mode, one.first) for one in found] == [
        ("y best", "best", True),
        ("y default", "default", False),
    ]


def test_a_peer_of_one_mode_goes_by_its_own_name() -> None:
    [found] = contestants.in_modes(FakePeer("y", "batched"), ())
    assert (found.name, found.mode) == ("y", "batched")


def test_contestants_are_chosen_by_how_their_names_begin() -> None:
    found = contestants.own()
    assert contestants.chosen(found, []) == found
    assert [one.name for one in contestants.chosen(found, ["store"])] == [
        "store",
        "store on SQLite",
    ]


def test_a_card_tells_the_settings_of_mode_and_program(tmp_path: Path) -> None:
    told = {"version": "1", "settings": "b", "keeps": "c"}
    one = _contestant("a", code=f"print({json.dumps(json.dumps(told))})", settings="a")
    card = contestants.card(one)
    assert (card.version, card.settings, card.keeps) == ("1", "a; b", "c")
