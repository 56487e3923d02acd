"""What a command printed is followed while it runs, whoever watches over it, and kept whole."""

from __future__ import annotations

import asyncio
import signal
from hashlib import sha256
from typing import Any

import pytest

from holdfast.lifecycle.states import State
from holdfast.operations.follow_logs import follow_lines
from holdfast.operations.requests import GetLogs
from holdfast.ports.blobs import read_blob
from holdfast.queries.log_segments import list_log
from holdfast.tasks.handles import JobHandle
from holdfast.wiring import plan_blobs
from tests.commands.support import LIMIT_SECONDS, CommandPlace, killed

EACH = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
PODMAN = pytest.mark.parametrize("runner", ["podman"], indirect=True)


class Follower:
    """Follows the log of a job, as `holdfast logs -f` does."""

    def __init__(self, place: CommandPlace, job: JobHandle[Any]) -> None:
        self.lines: list[str] = []
        self._came = asyncio.Event()
        self._following = asyncio.create_task(self._follow(place, job))

    async def _follow(self, place: CommandPlace, job: JobHandle[Any]) -> None:
        operations = await place.app.operations()
        async for line in follow_lines(operations, GetLogs(job=job.id)):
            self.lines.append(line.message)
            self._came.set()

    async def reached(self, text: str) -> None:
        """Wait until a line has come."""
        async with asyncio.timeout(LIMIT_SECONDS):
            while text not in self.lines:
                await self._came.wait()
                self._came.clear()

    async def ended(self) -> list[str]:
        """Wait until there is nothing more to follow; return all lines."""
        await asyncio.wait_for(self._following, LIMIT_SECONDS)
        return self.lines


@EACH
@PODMAN
@pytest.mark.req("D14")
async def test_a_follower_misses_nothing_when_another_worker_takes_the_command_over(
    place: CommandPlace,
) -> None:
    job = await place.submit("for n in $(seq 40); do echo $n; sleep 0.05; done")
    follower = Follower(place, job)
    first = place.start_worker()
    await follower.reached("3")
    await killed(first, signal.SIGKILL)
    async with place.worker():
        assert (await place.ended(job)).state is State.SUCCEEDED
    assert await follower.ended() == [str(n) for n in range(1, 41)]


@EACH
async def test_the_log_of_an_ended_command_is_one_blob_that_its_last_event_describes(
    place: CommandPlace,
) -> None:
    job = await place.submit("echo one; echo two >&2; echo three; exit 3")
    async with place.worker():
        record = await place.ended(job)
    [end] = [event for event in await place.events(job) if event.ends]
    assert end.facts.log is not None
    store = await place.app.store()
    blobs = await plan_blobs(None, place.directory)(store)
    [segment] = (await list_log(blobs, record.id, record.attempt)).found
    data = await read_blob(blobs, segment.key)
    assert (end.facts.log.bytes, end.facts.log.digest) == (len(data), sha256(data).hexdigest())
    log = await (await place.app.operations()).do(GetLogs(job=job.id))
    assert sorted(line.message for line in log.lines) == ["one", "three", "two"]
