"""The files of attempts on their host: gone once nobody needs them, and never before."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from holdfast.lifecycle.states import State
from holdfast.queries import unneeded_files
from tests.commands.support import LIMIT_SECONDS, CommandPlace, gone

LOCAL = pytest.mark.parametrize("runner", ["process"], indirect=True)


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that no end on record names go at once, too."""
    monkeypatch.setattr(unneeded_files, "GRACE", -1_000_000)


async def removed(directory: Path) -> None:
    """Wait until a directory is gone."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while await asyncio.to_thread(directory.exists):  # noqa: ASYNC110  the host's
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("_at_once")
async def test_the_files_of_an_attempt_go_with_its_box(place: CommandPlace) -> None:
    made = "mkdir -p ${HOLDFAST_ARTIFACTS:-/artifacts}/a/b; echo made > "
    job = await place.submit(
        f"{made} ${{HOLDFAST_ARTIFACTS:-/artifacts}}/a/b/file; "
        "chmod 0500 ${HOLDFAST_ARTIFACTS:-/artifacts}/a"
    )
    async with place.worker():
        running = await place.submit("echo ready; sleep 60")
        assert (await place.ended(job)).state is State.SUCCEEDED
        await removed(await place.files(job))
        await place.running(running)
        assert (await place.files(running)).is_dir()
        await running.cancel(hard=True)
        await place.ended(running)
    await removed(await place.files(running))


@LOCAL
@pytest.mark.usefixtures("_at_once")
async def test_files_that_a_killed_worker_left_are_swept(place: CommandPlace) -> None:
    job = await place.submit("exit 0")
    process = place.start_worker(die_at="box.removed")
    await place.ended(job)
    assert await gone(process) == -signal.SIGKILL
    assert (await place.files(job)).is_dir()
    async with place.worker():
        await removed(await place.files(job))
    assert (await place.read(job)).state is State.SUCCEEDED
