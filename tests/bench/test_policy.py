"""The policy in the bench: each measurement is judged and shown."""

from __future__ import annotations

import pytest

from bench import policy
from bench.cells import Cell
from bench.contestants import HOLDFAST_SQLITE, own
from bench.figures import Measured, Measurement
from bench.places import SqliteEngine
from bench.policy import Scale
from bench.programs.policy import write_rules
from bench.report import policy_sheet
from bench.targets import TARGETS, Verdict, judge
from holdfast.admission.book import read_book


def _cells() -> list[Cell]:
    ours = [one for one in own() if one.name == HOLDFAST_SQLITE]
    return list(policy.cells(ours, Scale(jobs=2_000)))


def test_the_rules_are_as_many_as_the_bench_claims() -> None:
    rules = read_book(write_rules()).rules
    assert (len(rules), len([one for one in rules if one.when])) == (105, 5)


@pytest.mark.parametrize("cell", _cells(), ids=lambda cell: cell.variant)
def test_each_measurement_of_a_policy_is_judged_and_shown(cell: Cell) -> None:
    with SqliteEngine() as engine, engine.place() as place:
        [finding] = cell.measure(cell, place)
    measured = Measured(
        [
            Measurement(
                scenario=cell.scenario,
                variant=cell.variant,
                contender=cell.contestant.name,
                round=0,
                jobs=cell.jobs,
                values=finding.values,
            )
        ]
    )

    judged = [judge(target, measured) for target in TARGETS]

    assert len([one for one in judged if one.verdict is not Verdict.UNKNOWN]) == 1
    [row] = policy_sheet(measured, frozenset()).rows
    assert (row[0], row[1]) == (cell.variant, HOLDFAST_SQLITE)
