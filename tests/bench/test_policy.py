"""The policy in the bench: each measurement is judged and shown."""

from __future__ import annotations

import pytest

from bench import policy
from bench.cells import Cell
from bench.contestants import HOLDFAST_SQLITE
from bench.policy import Scale
from bench.programs.policy import write_rules
from bench.report import policy_sheet
from holdfast.admission.book import read_book
from tests.support.measured_cells import judge_known, list_ours, measure_on_sqlite


def _cells() -> list[Cell]:
    return list(policy.cells(list_ours(), Scale(jobs=2_000)))


def test_the_rules_are_as_many_as_the_bench_claims() -> None:
    rules = read_book(write_rules()).rules
    assert (len(rules), len([one for one in rules if one.when])) == (105, 5)


@pytest.mark.parametrize("cell", _cells(), ids=lambda cell: cell.variant)
def test_each_measurement_of_a_policy_is_judged_and_shown(cell: Cell) -> None:
    measured = measure_on_sqlite(cell)

    assert len(judge_known(measured)) == 1
    [row] = policy_sheet(measured, frozenset()).rows
    assert (row[0], row[1]) == (cell.variant, HOLDFAST_SQLITE)
