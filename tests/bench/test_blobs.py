"""Blobs in the bench: each measurement is judged and shown."""

from __future__ import annotations

import pytest

from bench import blobs
from bench.blobs import Scale
from bench.cells import Cell
from bench.contestants import HOLDFAST_SQLITE, own
from bench.figures import Measured, Measurement
from bench.places import SqliteEngine
from bench.report import blobs_sheet
from bench.targets import TARGETS, Verdict, judge


def _cells() -> list[Cell]:
    ours = [one for one in own() if one.name == HOLDFAST_SQLITE]
    return list(blobs.cells(ours, Scale(small=5, large_bytes=6_000_000)))


@pytest.mark.parametrize("cell", _cells(), ids=lambda cell: cell.variant)
def test_each_measurement_of_blobs_is_judged_and_shown(cell: Cell) -> None:
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
    [row] = blobs_sheet(measured, frozenset()).rows
    assert (row[0], row[1]) == (cell.variant, HOLDFAST_SQLITE)
