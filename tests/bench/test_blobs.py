"""Blobs in the bench: each measurement is judged and shown."""

from __future__ import annotations

import pytest

from bench import blobs
from bench.blobs import Scale
from bench.cells import Cell
from bench.contestants import HOLDFAST_SQLITE
from bench.report import blobs_sheet
from tests.support.measured_cells import judge_known, list_ours, measure_on_sqlite


def _cells() -> list[Cell]:
    return list(blobs.cells(list_ours(), Scale(small=5, large_bytes=6_000_000)))


@pytest.mark.parametrize("cell", _cells(), ids=lambda cell: cell.variant)
def test_each_measurement_of_blobs_is_judged_and_shown(cell: Cell) -> None:
    measured = measure_on_sqlite(cell)

    assert len(judge_known(measured)) == 1
    [row] = blobs_sheet(measured, frozenset()).rows
    assert (row[0], row[1]) == (cell.variant, HOLDFAST_SQLITE)
