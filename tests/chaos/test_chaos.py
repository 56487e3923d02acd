"""A short battle on each store: the same code as `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.battle import battle

SECONDS = 12.0
SEED = 3


@pytest.mark.req("B3", "B4", "B9", "B32")
@pytest.mark.xdist_group("chaos")
# Fights last as long as planned; starting workers and healing depend on the machine.
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_no_fault_breaks_a_promise(engine: str, tmp_path: Path) -> None:
    verdict = await battle(engine, SECONDS, SEED, tmp_path, print)
    print(verdict.table)
    assert verdict.problems == [], "\n".join(verdict.problems)
    assert verdict.jobs > 50
