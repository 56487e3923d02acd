"""SIGKILL at every point of the cleaning of a command's outputs; the next pass finishes it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.lifecycle.states import EventType, Retention, State
from holdfast.maintenance.verify import verify
from holdfast.ports.blobs import Blobs
from holdfast.ports.models import Submitted
from holdfast.testing.factories import new_job
from holdfast.testing.store_actions import stored
from holdfast.wiring import migrate, opened, plan_blobs, read_address
from tests.flow.outputs import ended_command, keys_of
from tests.support.named_points import cleaning_points

KEY = "6fa459ea-ee8a-4ca4-894e-db77e160355e"
LIMIT_SECONDS = 60
LEFT = {"clean.logs_deleted": ["artifacts"], "clean.artifacts_deleted": []}
"""What is left of a job's outputs at each point."""


def test_every_point_of_cleaning_is_died_at() -> None:
    assert set(cleaning_points()) == set(LEFT)


async def clean(url: str, place: str, die_at: str | None = None) -> int:
    """Call `holdfast clean` in a process of its own, which may kill itself at a named point."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if die_at is not None:
        environment["HOLDFAST_DIE_AT"] = die_at
    words = ["clean", "--url", url, "--blobs", place, "--keep", "0s"]
    command = [sys.executable, "-m", "holdfast.cli", *words]
    # Waited for in a thread.
    process = subprocess.Popen(  # noqa: ASYNC220
        command, env=environment, cwd=Path(__file__).parents[2]
    )
    return await asyncio.wait_for(asyncio.to_thread(process.wait), LIMIT_SECONDS)


async def tops(blobs: Blobs) -> list[str]:
    """Which kinds of outputs there are."""
    keys = await keys_of(blobs, "artifacts", "logs")
    return sorted({key.partition("/")[0] for key in keys})


@pytest.mark.req("D12", "D13")
@pytest.mark.parametrize("point", LEFT)
async def test_a_janitor_killed_while_it_deletes_is_followed_by_one_that_finishes(
    url: str, blobs_address: str, point: str
) -> None:
    await migrate(read_address(url))
    async with opened(read_address(url)) as store:
        blobs = await plan_blobs(blobs_address)(store)
        job = await ended_command(store, blobs, client_job_id=KEY)
        assert await clean(url, blobs_address, die_at=point) == -signal.SIGKILL

        assert (await stored(store, job.id)).retention is Retention.CLEANING
        assert await tops(blobs) == LEFT[point]
        [same] = await store.submit([new_job(client_job_id=KEY)])
        assert isinstance(same, Submitted)
        assert (same.created, same.job.id) == (False, job.id)

        assert await clean(url, blobs_address) == 0
        after = await stored(store, job.id)
        assert (after.state, after.retention) == (State.SUCCEEDED, Retention.CLEANED)
        assert await tops(blobs) == []
        types = [event.type for event in await store.events(job.id)]
        assert types[-2:] == [EventType.CLEANING, EventType.CLEANED]
        [new] = await store.submit([new_job(client_job_id=KEY)])
        assert isinstance(new, Submitted)
        assert new.created
        problems: list[object] = []
        await verify(store, on_problem=problems.append)
        assert problems == []
