"""Concurrent submits become few: while one batch is under way, the next gathers.

No timers: a submit that finds nothing under way goes at once, with whatever came in the same turn
of the loop; where a whole batch more waits as one leaves, it leaves beside it. One that is bad
fails alone, and a caller that goes away takes nobody with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

from holdfast.errors import HoldfastError, StoreBroken, StoreError, StoreFull, StoreUnavailable
from holdfast.lifecycle.job import NewJob
from holdfast.ports import Store, SubmitOutcome

BATCH_JOBS = 500
BATCH_BYTES = 4 * 1024 * 1024
"""Of bodies in one batch; a single job may be larger."""
LANES = 2
"""Batches under way at once: while the database writes one, the next is laid out."""


class Sent:
    """What one caller submits together, and what came of it."""

    __slots__ = ("bytes", "future", "jobs")

    def __init__(self, jobs: Sequence[NewJob], future: asyncio.Future[list[SubmitOutcome]]) -> None:
        """Ask for jobs, answered to a future."""
        self.jobs = jobs
        self.future = future
        self.bytes = sum(_size(job) for job in jobs)


class Gathering:
    """Gathers what one event loop submits to one store."""

    def __init__(self, store: Store) -> None:
        """Take the store; nothing waits yet."""
        self._store = store
        self._waiting: deque[Sent] = deque()
        self._lanes: set[asyncio.Task[None]] = set()

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        """Submit jobs, together with those of others; answers once they are durable.

        StoreUnavailable: it is not known whether they are there. Each id was minted before, so
        that the same jobs can be sent again and are made once.
        """
        loop = asyncio.get_running_loop()
        parts = [Sent(part, loop.create_future()) for part in _parts(jobs)]
        self._waiting.extend(parts)
        if not self._lanes:
            self._open_lane()
        if len(parts) == 1:
            return await parts[0].future
        # All are awaited, whatever becomes of one: an error nobody heard would be told later.
        answers = await asyncio.gather(*(part.future for part in parts), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [outcome for answer in answers if isinstance(answer, list) for outcome in answer]

    async def finish(self) -> None:
        """Wait until all that was submitted is sent."""
        while self._lanes:
            await asyncio.wait(self._lanes)

    def _open_lane(self) -> None:
        lane = asyncio.get_running_loop().create_task(self._send_all())
        self._lanes.add(lane)
        lane.add_done_callback(self._close_lane)

    def _close_lane(self, lane: asyncio.Task[None]) -> None:
        self._lanes.discard(lane)
        if lane.cancelled():
            # Only where the loop itself ends, and cancels this: they were never sent.
            for sent in self._waiting:
                sent.future.cancel()
        elif self._waiting and not self._lanes:
            self._open_lane()

    async def _send_all(self) -> None:
        while batch := self._next_batch():
            # Only whole batches go side by side: of what is less, more gathers meanwhile.
            if len(self._lanes) < LANES and self._whole_waits():
                self._open_lane()
            await self._send(batch)
            if len(self._lanes) > 1 and not self._whole_waits():
                return

    def _whole_waits(self) -> bool:
        """Whether what waits fills a batch."""
        jobs = size = 0
        for sent in self._waiting:
            jobs += len(sent.jobs)
            size += sent.bytes
            if jobs >= BATCH_JOBS or size >= BATCH_BYTES:
                return True
        return False

    def _next_batch(self) -> list[Sent]:
        batch: list[Sent] = []
        jobs = size = 0
        while self._waiting:
            sent = self._waiting[0]
            jobs += len(sent.jobs)
            size += sent.bytes
            if batch and (jobs > BATCH_JOBS or size > BATCH_BYTES):
                break
            self._waiting.popleft()
            # Whoever went away before its turn is not sent at all.
            if sent.future.done():
                jobs, size = jobs - len(sent.jobs), size - sent.bytes
            else:
                batch.append(sent)
        return batch

    async def _send(self, batch: Sequence[Sent]) -> None:
        try:
            outcomes = await self._store.submit([job for sent in batch for job in sent.jobs])
        except (StoreUnavailable, StoreFull, StoreBroken) as error:
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001  every caller is told
            await self._send_apart(batch, error)
        else:
            _answer(batch, outcomes)

    async def _send_apart(self, batch: Sequence[Sent], error: Exception) -> None:
        """Find who made a batch fail. What of it was written is known by its ids, and answered."""
        if len(batch) == 1:
            _fail(batch, error)
            return
        for sent in batch:
            await self._send([sent])


def _answer(batch: Sequence[Sent], outcomes: Sequence[SubmitOutcome]) -> None:
    begin = 0
    for sent in batch:
        end = begin + len(sent.jobs)
        if not sent.future.done():
            sent.future.set_result(list(outcomes[begin:end]))
        begin = end


def _fail(batch: Sequence[Sent], error: Exception) -> None:
    for sent in batch:
        if not sent.future.done():
            sent.future.set_exception(_own(error, sent))


def _own(error: Exception, sent: Sent) -> Exception:
    """Make an error for one caller: it names its job, and its traceback is nobody else's."""
    if not isinstance(error, StoreError):
        return error
    job = sent.jobs[0].record
    own: HoldfastError = type(error)(str(error), code=error.reason_code, job_id=job.public_id)
    own.__cause__ = error
    return own


def _parts(jobs: Sequence[NewJob]) -> Iterator[Sequence[NewJob]]:
    """Cut what one caller submits into batches."""
    part: list[NewJob] = []
    size = 0
    for job in jobs:
        size += _size(job)
        if part and (len(part) == BATCH_JOBS or size > BATCH_BYTES):
            yield part
            part, size = [], _size(job)
        part.append(job)
    if part:
        yield part


def _size(job: NewJob) -> int:
    return len(job.event.body or b"")
