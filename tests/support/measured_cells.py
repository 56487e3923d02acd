"""One cell of the bench, measured on SQLite and judged: what its tests share."""

from bench.cells import Cell
from bench.contestants import HOLDFAST_SQLITE, Contestant, own
from bench.figures import Measured, Measurement
from bench.places import SqliteEngine
from bench.run import line
from bench.targets import TARGETS, Judged, Verdict, judge


def list_ours() -> list[Contestant]:
    """Return Holdfast on SQLite."""
    return [one for one in own() if one.name == HOLDFAST_SQLITE]


def measure_on_sqlite(cell: Cell) -> Measured:
    """Measure a cell once."""
    with SqliteEngine() as engine, engine.place() as place:
        [finding] = cell.measure(cell, place)
    found = Measurement(
        scenario=cell.scenario,
        variant=cell.variant,
        contender=cell.contestant.name,
        round=0,
        jobs=finding.jobs or cell.jobs,
        values=finding.values,
    )
    # As a run of the bench shows it while it goes on.
    assert cell.contestant.name in line(found)
    return Measured([found])


def judge_known(measured: Measured) -> list[Judged]:
    """Return the verdicts on what was measured."""
    judged = [judge(target, measured) for target in TARGETS]
    return [one for one in judged if one.verdict is not Verdict.UNKNOWN]
