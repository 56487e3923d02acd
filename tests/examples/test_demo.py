"""The demo, played for real: its own worker is killed, and what it claims must have happened."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.demo.__main__ import clear
from examples.demo.boxes import Boxes
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import Kind, State
from holdfast.ports.models import Query
from holdfast.queries.history import ReadEvent, read_history
from holdfast.stores.findings import Finding, problem, warning
from holdfast.wiring import opened, read_address

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 280.0
"""Beside other tests on two cores; alone it takes half a minute."""
RUNNERS = {
    "podman": ({}, "Podman: each command has a container"),
    # Its own programs are found wherever PATH leads.
    "sandbox": ({"PATH": str(Path(sys.executable).parent)}, "bubblewrap: each command has"),
}
"""By the best runner that the demo can find: its environment, and what it writes."""


@pytest.mark.live
@pytest.mark.xdist_group("boxes")
@pytest.mark.parametrize("runner", RUNNERS)
def test_the_demo_ends_well_and_did_what_it_says(
    tmp_path: Path, temporary: Path, runner: str
) -> None:
    place = tmp_path / "demo"
    environment, written = RUNNERS[runner]
    played = subprocess.run(
        [sys.executable, "-m", "examples.demo", str(place)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200", "TMPDIR": str(temporary), **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )

    assert played.returncode == 0, played.stdout + played.stderr
    assert "✗" not in played.stdout
    assert "no problem" in played.stdout.splitlines()[-1]
    assert written in played.stdout
    asyncio.run(_check_the_store(str(place / "shop.db"), survives=runner == "podman"))
    assert _traces_on_host(temporary) == set()


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory for the temporary files of one demo, which the users of boxes can pass."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-test-demo-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


async def _check_the_store(url: str, *, survives: bool) -> None:
    async with opened(read_address(url)) as store:
        found = (await store.find(Query())).jobs
        jobs = {job.public_id: job for job in found}
        states = {name: job.state for name, job in jobs.items() if len(name) < 36}
        assert states == {
            "order-7": State.SUCCEEDED,
            "invoice-7": State.DEAD_LETTERED,
            "catalogue": State.CANCELLED,
            "video": State.SUCCEEDED,
            "gift": State.DENIED,
            "refund-7": State.SUCCEEDED,
            "slow": State.TIMED_OUT,
            "writer": State.SUCCEEDED,
            "backup": State.SUCCEEDED if survives else State.FAILED,
        }
        _check_the_approval(await read_history(store, jobs["refund-7"].id))
        _check_the_crash(await read_history(store, jobs["order-7"].id))
        _check_the_exit_codes([job for job in found if job.kind is Kind.COMMAND])
        _check_the_orphan(jobs["backup"], await read_history(store, jobs["backup"].id), survives)


def _check_the_approval(events: list[ReadEvent]) -> None:
    types = [event.type for event in events]
    assert types[:3] == ["job_created", "job_approved", "job_admitted"]
    assert (events[1].actor, events[1].cause) == ("control:clerk", "the lamp was broken")


def _check_the_exit_codes(commands: list[Job]) -> None:
    ended = [(job.state, job.exit_code) for job in commands if job.public_id != "backup"]
    assert sorted(ended) == [
        (State.FAILED, 3),
        (State.SUCCEEDED, 0),
        (State.TIMED_OUT, 7),
    ]


def _check_the_orphan(backup: Job, events: list[ReadEvent], survives: bool) -> None:
    """A container is adopted by another worker; any other box is lost with its worker."""
    claimer = next(event.actor for event in events if event.type == "job_claimed")
    takers = [event.actor for event in events if event.type == "job_adopted"]
    if survives:
        assert (len(takers), backup.exit_code) == (1, 0)
        assert takers[0] != claimer
    else:
        assert (takers, backup.exit_code) == ([], None)
        assert backup.error_code == "container_lost_on_recovery"


def _traces_on_host(temporary: Path) -> set[str]:
    """Return what is left of a demo that had this directory for all of its own."""
    mark = str(temporary)
    directories = set(map(str, temporary.glob("holdfast-demo-*")))
    mounts = {line for line in Path("/proc/mounts").read_text().splitlines() if mark in line}
    processes = {
        path.parts[2] for path in Path("/proc").glob("[0-9]*/cmdline") if _names(path, mark)
    }
    return directories | mounts | processes


def _names(command_line: Path, mark: str) -> bool:
    try:
        return mark.encode() in command_line.read_bytes()
    except OSError:
        return False


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


async def test_boxes_are_the_best_that_work_and_their_troubles_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken() -> list[Finding]:
        return [problem("x", "it does not work", "fix it")]

    async def working() -> list[Finding]:
        return [warning("x", "it has no isolation", "use another")]

    checks = {"podman": broken, "sandbox": broken, "process": working}
    monkeypatch.setattr("examples.demo.boxes.list_runner_checks", lambda: checks)
    monkeypatch.setattr("os.environ", dict(os.environ))
    boxes = Boxes()
    await boxes.choose()
    boxes.remove()
    assert boxes.runner == "process"
    assert boxes.troubles == ["podman: it does not work", "sandbox: it does not work"]
    assert not boxes.directory.exists()
