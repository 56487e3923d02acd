"""How a worker ends: the request to stop, and the steps from there until nothing is left of it.

It ends soon after its grace at the latest, whether or not the store answers meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.worker.pipeline import Pipeline
from holdfast.worker.stop_request import StopRequest

log = logging.getLogger(__name__)

KILL_LIMIT_SECONDS = 4.0
WRITE_LIMIT_SECONDS = 10.0
"""How long after its grace a worker tries to write the ends of its jobs, the kills included."""
LET_GO_SECONDS = 5.0
"""How long it then waits for threads and connections that may be stuck in a store that is away."""


class Shutdown(Struct, kw_only=True, eq=False):
    """Ends one worker. `exits`: the process ends then, and what cannot be killed with it."""

    pipeline: Pipeline
    request: StopRequest
    claiming: asyncio.Task[None]
    committing: asyncio.Task[None]
    loops: Sequence[asyncio.Task[None]]
    exits: bool
    leaves: bool = True
    """Whether attempts that can continue without the worker are left running."""
    stuck: bool = False
    """Whether, at the end, a part was stuck in the store, and was left behind."""

    async def run(self) -> None:
        """Finish, release or kill what runs, write all ends, and let go."""
        await self._end_attempts()
        await self._write_ends()
        await self._sign_off()
        await self._close_parts()

    async def _end_attempts(self) -> None:
        pipeline = self.pipeline
        running = pipeline.owned.running
        pipeline.executor.start_waiting()
        await self._wait_until(lambda: self._has_left() and self.claiming.done() and not running)
        # What it may have claimed is found by its owner's name, or when the lease has passed.
        self.claiming.cancel()
        for job in list(running):
            if job.run is not None and job.claimed.id.int not in pipeline.owned.left:
                pipeline.stopper.stop(job.run, "shutdown")
        await self._wait_until(lambda: not running, KILL_LIMIT_SECONDS)
        for job in running:
            log.error("job %s still runs at the end of its worker", job.record.public_id)
            self._fail("a handler could not be killed")
            # A box may outlive this process: the next worker of this host ends its job, with proof.
            if self.exits and not job.gone and not job.takes_room:
                pipeline.executor.leave_behind(job)

    def _has_left(self) -> bool:
        """Leave what can continue alone to the next worker of this host: a deploy ends no box.

        Asked again and again: an attempt can be left only once its start is on record.
        """
        for job in list(self.pipeline.owned.running) if self.leaves else ():
            if job.run is not None and self.pipeline.executor.leave(job.run):
                name = job.record.public_id
                log.info("job %s continues; the next worker of this host takes it over", name)
        return True

    async def _write_ends(self) -> None:
        self.pipeline.committer.close()
        await self._wait_until(self.committing.done, WRITE_LIMIT_SECONDS)

    async def _wait_until(self, done: Callable[[], bool], seconds: float = 0.0) -> None:
        """Wait until something holds, or for the grace and this many seconds more."""
        changed = self.pipeline.owned.changed
        while not done() and (left := self.request.left(seconds)) > 0:
            changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), min(0.05, left))

    async def _sign_off(self) -> None:
        """Release what it may own and not know of, and retire; report where that fails."""
        pipeline = self.pipeline
        if not self.committing.done():
            trouble = pipeline.committer.trouble or "the store does not answer"
            self._fail(f"{len(pipeline.owned.by_id)} jobs' ends could not be written: {trouble}")
            return
        try:
            async with asyncio.timeout(self.request.left(WRITE_LIMIT_SECONDS)):
                await pipeline.log_writer.flush()
                if not pipeline.owned.running:
                    await pipeline.ownership_check.release_strays()
                await pipeline.store.retire(pipeline.worker.name)
        except (HoldfastError, TimeoutError) as error:
            self._fail(f"the worker's end could not be recorded: {error!r}")

    def _fail(self, why: str) -> None:
        self.request.failed = self.request.failed or HoldfastError(why)

    async def _close_parts(self) -> None:
        """Let all parts end; one that is stuck in a store that is away is left behind."""
        closing = asyncio.create_task(self._close())
        await asyncio.wait([closing], timeout=LET_GO_SECONDS)
        self.stuck = not closing.done()
        if not self.stuck:
            await closing

    async def _close(self) -> None:
        pipeline = self.pipeline
        tasks = (self.claiming, self.committing, *self.loops)
        for task in tasks:
            task.cancel()
        pipeline.keeper.stop()
        await asyncio.gather(*tasks, return_exceptions=True)
        pipeline.stopper.close()
        if pipeline.host_loop is not None:
            await pipeline.host_loop.finish()
        await pipeline.runners.close()
        if pipeline.host_loop is not None:
            # Last: the next worker of this host must not find boxes that are still being killed.
            pipeline.host_loop.close()
        await asyncio.to_thread(pipeline.failures.close)
        await pipeline.keeper.ended()
        await pipeline.store.close()
