"""A sandbox has no way out; without isolation the same ways are open, so that they prove it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.runners.bare.boxes import BareBoxes
from holdfast.runners.sandbox.boxes import SandboxBoxes
from holdfast.testing import BoxBench
from holdfast.testing.box_contract import BoxTrial
from tests.runners.escape_probes import (
    PROBES,
    SAME,
    HostCanaries,
    Probe,
    host_canaries,
    is_denied,
    is_there,
    named,
)
from tests.runners.hosts import new_store

CONTROLLED = [probe for probe in PROBES if probe.control is not None and is_there(probe)]
LACKING = [probe.name for probe in PROBES if probe.optional and probe not in CONTROLLED]
"""What nobody can get out by on this host: its kernel or hardware does not have it."""


@pytest.fixture
def canaries(reachable: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostCanaries]:
    with host_canaries(reachable) as placed:
        monkeypatch.setenv("OF_THE_WORKER", placed.secret)
        yield placed


@pytest_asyncio.fixture
async def sandbox(reachable: Path) -> AsyncIterator[BoxBench]:
    boxes = SandboxBoxes.on_this_host(new_store())
    yield BoxBench(boxes=boxes, directory=reachable)
    await boxes.close()


@pytest_asyncio.fixture
async def bare(reachable: Path) -> AsyncIterator[BoxBench]:
    boxes = BareBoxes.on_this_host(new_store())
    yield BoxBench(boxes=boxes, directory=reachable)
    await boxes.close()


@pytest.mark.parametrize("probe", PROBES, ids=named)
async def test_a_sandbox_denies(probe: Probe, sandbox: BoxBench, canaries: HostCanaries) -> None:
    trial = BoxTrial(sandbox.boxes, sandbox.box(canaries.fill(probe.command)))
    exit = await trial.run()
    assert is_denied(exit.code), trial.log()
    assert canaries.are_intact()


@pytest.mark.parametrize("probe", CONTROLLED, ids=named)
async def test_without_isolation_succeeds(
    probe: Probe, bare: BoxBench, canaries: HostCanaries
) -> None:
    command = probe.command if probe.control == SAME else probe.control
    assert command is not None
    trial = BoxTrial(bare.boxes, bare.box(canaries.fill(command)))
    assert (await trial.run()).code == 0, trial.log()


def test_there_are_enough_probes(capsys: pytest.CaptureFixture[str]) -> None:
    assert len({probe.name for probe in PROBES}) == len(PROBES) >= 40
    assert len(CONTROLLED) >= 40
    with capsys.disabled():
        print("\nprobes without a control, which this host lacks:", ", ".join(LACKING) or "none")
