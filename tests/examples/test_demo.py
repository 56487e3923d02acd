"""The demo, played for real: its own worker is killed, and what it claims must have happened."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.demo.__main__ import clear
from holdfast.flow.history import ReadEvent, history
from holdfast.lifecycle.states import State
from holdfast.ports import Query
from holdfast.wiring import opened, read_address

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 110.0


@pytest.mark.live
def test_the_demo_ends_well_and_did_what_it_says(tmp_path: Path) -> None:
    place = tmp_path / "demo"
    played = subprocess.run(
        [sys.executable, "-m", "examples.demo", str(place)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )

    assert played.returncode == 0, played.stdout + played.stderr
    assert "✗" not in played.stdout
    assert "no problem" in played.stdout.splitlines()[-1]
    asyncio.run(_check_the_store(str(place / "shop.db")))


async def _check_the_store(url: str) -> None:
    async with opened(read_address(url)) as store:
        jobs = {job.public_id: job for job in (await store.find(Query())).jobs}
        states = {name: job.state for name, job in jobs.items() if len(name) < 36}
        assert states == {
            "order-7": State.SUCCEEDED,
            "invoice-7": State.DEAD_LETTERED,
            "catalogue": State.CANCELLED,
            "video": State.SUCCEEDED,
        }
        _check_the_crash(await history(store, jobs["order-7"].id))


def _check_the_crash(events: list[ReadEvent]) -> None:
    types = [event.type for event in events]
    stalled = types.index("job_stalled")
    charged = [number for number, event in enumerate(events) if event.facts.get("step") == "charge"]
    assert len([number for number in charged if types[number] == "step_completed"]) == 1
    assert max(charged) < stalled < types.index("signal_received")
    killed, other, *_ = [event.actor for event in events if event.type == "job_claimed"]
    assert killed != other


def test_a_directory_that_is_no_earlier_demo_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    assert not clear(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_an_earlier_demo_makes_room(tmp_path: Path) -> None:
    (tmp_path / "shop.db").touch()
    (tmp_path / "till").write_text("order 7: 19.99\n")
    assert clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
