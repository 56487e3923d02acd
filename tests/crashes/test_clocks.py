"""Clocks that are wrong: a worker's by a day, and the one of SQLite's host that steps.

On PostgreSQL only the server's clock counts; libfaketime gives a worker process a wrong one. On
SQLite every process reads the host's clock, and that may be set while it runs.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.lifecycle.states import State
from holdfast.stores.sqlite.clock import wall_clock
from holdfast.stores.sqlite.store import SqliteStore
from tests.crashes.apps import STEADY_LEASE_SECONDS, make_app
from tests.crashes.waiting import all_ended, until
from tests.support.checker import assert_kept
from tests.support.crew import Crew
from tests.support.resource import Resource
from tests.support.unavailable import Unavailable

BRISK: dict[str, Any] = {"tick": "100ms", "poll": "50ms"}
DAY = 24 * 3600 * 1_000_000
KINDS = ("quick", "shaky", "steady_careful", "lasting", "reporting", "threaded")


def faked(offset: str) -> dict[str, str]:
    """Give a process a clock that is off; durations stay true, as with a clock that was set."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not libraries:
        raise Unavailable("libfaketime was not found: install the package faketime")
    return {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME": offset,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


@pytest.mark.req("B8")
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("offset", ["+1d", "-1d"])
async def test_a_worker_whose_clock_is_wrong_by_a_day_keeps_and_loses_leases_like_any_other(
    app: Holdfast, crew: Crew, resource: Resource, offset: str
) -> None:
    steady = app.tasks["steady_lasting"]
    wrong = crew.start(environment=faked(offset), **BRISK).wait_ready()
    jobs = await app.submit_many([steady.prepare(1.5 * STEADY_LEASE_SECONDS) for _ in range(8)])
    # Beside it one whose clock is right: if either judged by its own, leases would be taken away.
    async with app.worker(concurrency=1, **BRISK):
        assert set(await all_ended(jobs)) == {State.SUCCEEDED}
    mine = {effect.pid for effects in resource.all().values() for effect in effects}
    assert wrong.process.pid in mine
    assert {(await job.refresh()).record.failures for job in jobs} == {0}

    job = await steady.submit(30)
    await until(lambda: resource.saw(job.id, "begin"), "the wrong one to run it")
    wrong.kill()
    async with app.worker(**BRISK):
        await until(lambda: len(resource.of(job.id)) > 1, "its lease to be found")
        await job.cancel(hard=True)
        assert await all_ended([job]) == [State.CANCELLED]
    await assert_kept(await app.store(), resource, [job.id for job in (*jobs, job)])


class SteppingClock:
    """The host's clock, set forward or back by a test."""

    def __init__(self) -> None:
        """Begin with the right time."""
        self.offset = 0

    def __call__(self) -> int:
        """Tell the time."""
        return wall_clock() + self.offset


def stepping_app(path: Path, clock: Callable[[], int]) -> Holdfast:
    """Make an app all of whose stores read one clock."""
    return make_app(store=lambda: SqliteStore(str(path), clock=clock))


@pytest.mark.parametrize("step", [DAY, -DAY], ids=["forward", "back"])
async def test_a_step_of_the_clock_while_jobs_run_loses_nothing(
    sqlite_path: Path, resource: Resource, step: int
) -> None:
    clock = SteppingClock()
    async with stepping_app(sqlite_path, clock) as app:
        running = [await app.tasks["lasting"].submit() for _ in range(3)]
        async with app.worker(**BRISK):
            for job in running:
                await until(lambda job=job: resource.saw(job.id, "begin"), "it to run")
            clock.offset = step
            later = [await app.tasks[kind].submit() for kind in KINDS]
            assert set(await all_ended([*running, *later])) == {State.SUCCEEDED}
        everything = [job.id for job in (*running, *later)]
        store = await app.store()
        await assert_kept(store, resource, everything, steady_clock=False)
        for job in (*running, *later):
            times = [event.ts for event in await job.events()]
            assert times == sorted(times), "within a job time never goes back"


async def test_what_a_worker_held_that_died_before_the_clock_was_set_forward_is_found(
    sqlite_path: Path, resource: Resource
) -> None:
    clock = SteppingClock()
    with Crew(str(sqlite_path), resource.directory) as crew:
        async with stepping_app(sqlite_path, clock) as app:
            job = await app.tasks["lasting"].submit()
            victim = crew.start(die_at="handler.returned", **BRISK)
            assert await asyncio.to_thread(victim.wait) == -signal.SIGKILL, victim.said()
            clock.offset = DAY
            async with app.worker(**BRISK):
                assert await all_ended([job]) == [State.SUCCEEDED]
            await assert_kept(await app.store(), resource, [job.id], steady_clock=False)
