"""Commands in the bench: each beside its bare line, and no trace of either afterwards."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import boxes
from bench.boxes import Scale
from bench.cells import Cell
from bench.contestants import HOLDFAST_SQLITE
from bench.protocol import Unsupported
from bench.report import commands_sheet
from tests.support.measured_cells import judge_known, list_ours, measure_on_sqlite
from tests.support.waiting import wait_until

SMALL = Scale(samples=2, recovered=2)


def _cells() -> list[Cell]:
    return list(boxes.cells(list_ours(), SMALL))


@pytest.mark.live
@pytest.mark.xdist_group("boxes")
@pytest.mark.parametrize("cell", _cells(), ids=lambda cell: cell.variant)
def test_each_measurement_of_commands_is_judged_and_leaves_nothing(cell: Cell) -> None:
    before = _groups()
    try:
        measured = measure_on_sqlite(cell)
    except Unsupported as reason:
        pytest.skip(str(reason))
    known = judge_known(measured)
    assert len(known) == 1
    assert known[0].measure.endswith(", SQLite")
    [row] = commands_sheet(measured, frozenset()).rows
    assert (row[0], row[1]) == (cell.variant, HOLDFAST_SQLITE)
    # What another test is measuring at the same time goes by itself; what is left behind stays.
    wait_until(lambda: not _groups() - before, "control groups to be removed", limit_seconds=90)


def _groups() -> set[str]:
    found = Path("/sys/fs/cgroup").glob("*/holdfast/*")
    return {str(path) for path in found if "bench" in path.name}


def test_without_podman_containers_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    cell = _cells()[0]
    assert cell.task == "podman"
    with pytest.raises(Unsupported):
        measure_on_sqlite(cell)
