"""A service manager ends a worker: its containers continue, and the next worker takes them over.

`KillMode=mixed` sends SIGTERM to the worker, and at last SIGKILL to all processes in the control
group of its unit. Containers and their monitors have left that group.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.lifecycle.states import State
from tests.commands.support import RUNS, CommandPlace, gone, killed, processes_of, runs
from tests.runners.hosts import CGROUPS
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.parametrize("runner", ["podman"], indirect=True),
    pytest.mark.parametrize("store_url", ["sqlite"], indirect=True),
]
BOXES = int(os.environ.get("HOLDFAST_TEST_BOXES", "5"))
"""How many boxes are recovered at once; the more, the longer it takes."""


class Unit:
    """The control group of a service, as its manager makes it."""

    def __init__(self, group: Path) -> None:
        self._group = group
        group.mkdir()

    def put(self, pid: int) -> None:
        """Put a process into the unit; what it starts from now on is in it, too."""
        (self._group / "cgroup.procs").write_text(str(pid))

    def processes(self) -> set[int]:
        """Return what is in the unit."""
        return set(map(int, (self._group / "cgroup.procs").read_text().split()))

    def kill(self) -> None:
        """Send SIGKILL to all processes until none is left."""
        while found := self.processes():
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Leave nothing behind."""
        self.kill()
        self._group.rmdir()


@pytest.fixture(params=["systemd", "unified"])
def unit(request: pytest.FixtureRequest) -> Iterator[Unit]:
    """A unit in each hierarchy by which a manager may find it; on version 2 there is one."""
    hierarchy = CGROUPS / str(request.param)
    made = Unit((hierarchy if hierarchy.exists() else CGROUPS) / f"holdfast-unit-{os.getpid()}")
    yield made
    made.remove()


@pytest.mark.req("D16")
async def test_a_kill_of_the_whole_unit_leaves_containers_running_and_they_are_adopted(
    place: CommandPlace, unit: Unit
) -> None:
    process = place.start_worker()
    unit.put(process.pid)
    count = "echo ready; for n in $(seq 40); do echo $n; sleep 0.1; done; exit 5"
    job = await place.submit(RUNS + count)
    started = await place.running(job)
    # The call that started it has returned: with it, what watches the container would die.
    await asyncio.to_thread(
        wait_until,
        lambda: unit.processes() == {process.pid},
        "the start to be done",
        limit_seconds=60,
    )
    unit.kill()
    assert await gone(process) == -signal.SIGKILL
    assert processes_of(job)
    async with place.worker():
        ended = await place.ended(job)
    assert (ended.state, ended.exit_code, ended.attempt) == (State.FAILED, 5, started.attempt)
    assert await place.output(job) == ["ready", *map(str, range(1, 41))]
    assert await runs(place, job) == 1


@pytest.mark.req("D16")
@pytest.mark.parametrize("state", [State.CLAIMED, State.RUNNING])
async def test_a_deploy_while_a_container_is_being_started_starts_it_once(
    place: CommandPlace, unit: Unit, state: State
) -> None:
    """The call of Podman is in the unit, too: it dies at any point of a start."""
    jobs = [await place.submit(RUNS + "echo ready; sleep 1; exit 5") for _ in range(3)]
    process = place.start_worker()
    unit.put(process.pid)
    await place.until(jobs[0], lambda job: job.state is state)
    process.send_signal(signal.SIGTERM)
    unit.kill()
    await gone(process)
    async with place.worker():
        ends = [await place.ended(job) for job in jobs]
        await place.cleared()
    lost = "container_not_found_on_recovery"
    assert {end.exit_code if end.error_code != lost else 5 for end in ends} == {5}
    assert [await runs(place, job) for job in jobs] == [
        0 if end.error_code == lost else 1 for end in ends
    ]


@pytest.mark.req("D14", "D16")
async def test_many_containers_are_taken_over_at_once(place: CommandPlace) -> None:
    process = place.start_worker(cpus=BOXES)
    jobs = [
        await place.submit(RUNS + f"echo ready; sleep 2; exit {number}", memory_mb=32)
        for number in range(1, BOXES + 1)
    ]
    for job in jobs:
        await place.running(job)
    await killed(process)
    assert {(await place.read(job)).state for job in jobs} == {State.RUNNING}
    async with place.worker(cpus=BOXES) as worker:
        for job in jobs:
            await place.until(job, lambda job: worker.name in (job.owner or "") or job.terminal)
        ends = [await place.ended(job) for job in jobs]
    assert [end.exit_code for end in ends] == list(range(1, BOXES + 1))
    assert {await runs(place, job) for job in jobs} == {1}
