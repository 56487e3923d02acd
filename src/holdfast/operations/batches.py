"""Concurrent calls of a store are sent in batches: while one is under way, the next is gathered.

No call waits for others: one that finds nothing under way goes at once, with all that came in the
same turn of the loop. If a whole batch waits as one leaves, it leaves beside it, and so does what
waits behind one that is stuck. An invalid call fails alone, and a cancelled caller affects no
other.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HoldfastError, StoreBroken, StoreError, StoreFull, StoreUnavailable
from holdfast.flow.deny import settle_denied
from holdfast.ids import mint_request
from holdfast.lifecycle.alike import AlikeJobs, job_id_of
from holdfast.lifecycle.record import Change, Job, JobId, LoggedEvent, NewJob
from holdfast.lifecycle.stamp import stamp
from holdfast.lifecycle.states import EventType
from holdfast.operations.key_waits import KeyWaits, is_busy
from holdfast.ports.models import DecideLocked, Outcome, SubmitOutcome
from holdfast.ports.store import Store

T = TypeVar("T")
A = TypeVar("A")
SETTLER = "door"
"""The actor that ends what a rule denied at its birth."""
BATCH_ITEMS = 500
BATCH_BYTES = 4 * 1024 * 1024
"""Bytes of bodies in one batch; a single body may be larger."""
ALIKE_ITEMS = 1000
"""Alike jobs in one batch: of three sizes measured, the smallest that was the cheapest per job."""
LANES = 2
"""Batches under way at once: while the database writes one, the next is prepared."""
STUCK_SECONDS = 1.0
"""After this time a batch that is under way no longer delays others."""
MOST_LANES = 8
"""Batches under way at once, including those that are stuck."""
TURN_SECONDS = 5.0
"""How long a command waits for those before it; the compare-and-set holds without its turn."""


class _CallerItems(Generic[T, A]):
    """What one caller sends together, and the future of its answers."""

    __slots__ = ("bytes", "future", "items")

    def __init__(self, items: Sequence[T], size: int, future: asyncio.Future[list[A]]) -> None:
        self.items = items
        self.future = future
        self.bytes = size


class Batcher(Generic[T, A]):
    """Gathers what one event loop sends by one method of a store."""

    def __init__(
        self,
        call: Callable[[Sequence[T]], Awaitable[list[A]]],
        *,
        size: Callable[[T], int],
        name: Callable[[T], str],
        shared: tuple[type[StoreError], ...] = (StoreUnavailable, StoreFull),
    ) -> None:
        """Send by `call`; `size` returns the bytes of an item's bodies, `name` names its job.

        All callers get a `shared` error, which is the store's; after another error, each caller's
        items are sent alone.
        """
        self._call = call
        self._shared = shared
        self._size = size
        self._name = name
        self._waiting: deque[_CallerItems[T, A]] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._stuck = 0

    async def send(self, items: Sequence[T]) -> list[A]:
        """Send items in one batch, together with those of others; return once they are durable.

        After StoreUnavailable it is unknown whether they were written.
        """
        return await self._add_items(items) if items else []

    async def send_many(self, items: Sequence[T]) -> list[A]:
        """Send items in as many batches as they fill."""
        parts = [self._add_items(part) for part in self._split_items(items)]
        if len(parts) == 1:
            return await parts[0]
        # All are awaited, also if one fails: an error that is not retrieved would be logged later.
        answers = await asyncio.gather(*parts, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [one for answer in answers if isinstance(answer, list) for one in answer]

    def _add_items(self, items: Sequence[T]) -> asyncio.Future[list[A]]:
        future: asyncio.Future[list[A]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_CallerItems(items, sum(map(self._size, items)), future))
        self._go_on()
        return future

    async def finish(self) -> None:
        """Wait until all items are sent."""
        while self._lanes:
            await asyncio.wait(self._lanes)

    @property
    def _moving(self) -> int:
        """Return how many lanes will soon send more."""
        return len(self._lanes) - self._stuck

    def _go_on(self) -> None:
        """Send what waits, if no lane is about to."""
        if self._waiting and not self._moving and len(self._lanes) < MOST_LANES:
            self._open_lane()

    def _open_lane(self) -> None:
        lane = asyncio.get_running_loop().create_task(self._send_all())
        self._lanes.add(lane)
        lane.add_done_callback(self._close_lane)

    def _close_lane(self, lane: asyncio.Task[None]) -> None:
        self._lanes.discard(lane)
        if lane.cancelled():
            # Only if the loop itself ends, and cancels this: they were never sent.
            for sent in self._waiting:
                sent.future.cancel()
        else:
            self._go_on()

    async def _send_all(self) -> None:
        while batch := self._next_batch():
            # Only whole batches go side by side: a smaller one grows meanwhile.
            if self._moving < LANES and len(self._lanes) < MOST_LANES and self._is_batch_full():
                self._open_lane()
            with self._watched():
                await self._send(batch)
            if self._moving > 1 and not self._is_batch_full():
                return

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Let others pass a batch that takes long."""
        stuck = False

        def give_up() -> None:
            nonlocal stuck
            stuck = True
            self._stuck += 1
            self._go_on()

        timer = asyncio.get_running_loop().call_later(STUCK_SECONDS, give_up)
        try:
            yield
        finally:
            timer.cancel()
            self._stuck -= stuck

    def _is_batch_full(self) -> bool:
        """Return whether what waits fills a batch."""
        items = size = 0
        for sent in self._waiting:
            items += len(sent.items)
            size += sent.bytes
            if items >= BATCH_ITEMS or size >= BATCH_BYTES:
                return True
        return False

    def _next_batch(self) -> list[_CallerItems[T, A]]:
        batch: list[_CallerItems[T, A]] = []
        items = size = 0
        while self._waiting:
            sent = self._waiting[0]
            items += len(sent.items)
            size += sent.bytes
            if batch and (items > BATCH_ITEMS or size > BATCH_BYTES):
                break
            self._waiting.popleft()
            # A caller that was cancelled before its turn is not sent at all.
            if sent.future.done():
                items, size = items - len(sent.items), size - sent.bytes
            else:
                batch.append(sent)
        return batch

    async def _send(self, batch: Sequence[_CallerItems[T, A]]) -> None:
        try:
            answers = await self._call([item for sent in batch for item in sent.items])
        except self._shared as error:
            self._fail(batch, error)
        except Exception as error:  # noqa: BLE001  every caller gets it
            await self._send_apart(batch, error)
        else:
            _answer_callers(batch, answers)

    async def _send_apart(self, batch: Sequence[_CallerItems[T, A]], error: Exception) -> None:
        """Send each caller's items alone, to find the ones that fail. What was written before is
        recognised by the ids of jobs, or of requests: see `BatchedStore.commit`.
        """
        if len(batch) == 1:
            self._fail(batch, error)
            return
        for sent in batch:
            await self._send([sent])

    def _fail(self, batch: Sequence[_CallerItems[T, A]], error: Exception) -> None:
        for sent in batch:
            if not sent.future.done():
                sent.future.set_exception(self._error_of_caller(error, sent))

    def _error_of_caller(self, error: Exception, sent: _CallerItems[T, A]) -> Exception:
        """Return an error for one caller: it names its job, and has a traceback of its own."""
        if not isinstance(error, StoreError):
            return error
        job_id = self._name(sent.items[0])
        own: HoldfastError = type(error)(str(error), code=error.code, job_id=job_id)
        own.__cause__ = error
        return own

    def _split_items(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """Divide what one caller sends into batches."""
        part: list[T] = []
        size = 0
        for item in items:
            size += self._size(item)
            if part and (len(part) == BATCH_ITEMS or size > BATCH_BYTES):
                yield part
                part, size = [], self._size(item)
            part.append(item)
        if part:
            yield part


def _answer_callers(batch: Sequence[_CallerItems[T, A]], answers: Sequence[A]) -> None:
    start = 0
    for sent in batch:
        end = start + len(sent.items)
        if not sent.future.done():
            sent.future.set_result(list(answers[start:end]))
        start = end


def _make_submit_batcher(
    call: Callable[[Sequence[NewJob]], Awaitable[list[SubmitOutcome]]],
) -> Batcher[NewJob, SubmitOutcome]:
    return Batcher(
        call,
        size=lambda job: len(job.event.body or b""),
        name=lambda job: job.record.public_id,
        shared=_ALL_SUBMITS_FAIL,
    )


_ALL_SUBMITS_FAIL = (StoreUnavailable, StoreFull, StoreBroken)


async def _nothing() -> list[SubmitOutcome]:
    return []


async def _as(outcome: SubmitOutcome) -> SubmitOutcome:
    return outcome


class AlikeSubmit(Struct, frozen=True, kw_only=True):
    """What became of alike jobs that were submitted in one batch."""

    jobs: AlikeJobs
    outcomes: Sequence[SubmitOutcome] = ()
    """The outcome of each, unless all were accepted as they are."""
    accepted: Job | None = None
    """The record of any of them, where all were accepted; with another id, it is each one's."""


def _split_alike(jobs: AlikeJobs) -> Iterator[AlikeJobs]:
    """Divide alike jobs into batches."""
    for start in range(0, len(jobs), ALIKE_ITEMS):
        yield from _halve_if_large(jobs.part(start, start + ALIKE_ITEMS))


def _halve_if_large(jobs: AlikeJobs) -> Iterator[AlikeJobs]:
    half = len(jobs) // 2
    if half and sum(map(len, jobs.bodies)) > BATCH_BYTES:
        yield from _halve_if_large(jobs.part(0, half))
        yield from _halve_if_large(jobs.part(half, len(jobs)))
    else:
        yield jobs


class BatchedStore:
    """A store for many concurrent callers, each with one job: their calls become few."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._submits = _make_submit_batcher(store.submit)
        self._alike: Batcher[AlikeJobs, AlikeSubmit] = Batcher(
            self._submit_each_alike,
            # Each is a batch of its own.
            size=lambda _: BATCH_BYTES,
            name=lambda jobs: str(job_id_of(jobs.ids[0])),
            shared=_ALL_SUBMITS_FAIL,
        )
        # Separate: a submit may have to wait for its key, and one without a key never does.
        self._keyed = _make_submit_batcher(partial(store.submit, await_keys=False))
        self._key_waits = KeyWaits(store.submit)
        self._commits: Batcher[Change, Outcome] = Batcher(
            store.commit,
            size=lambda change: len(change.event.body or b""),
            name=lambda change: change.record.public_id,
        )
        self._reads: Batcher[JobId, Job | None] = Batcher(store.get, size=lambda _: 0, name=str)
        self._brief_reads: Batcher[JobId, Job | None] = Batcher(
            partial(store.get, signals=False), size=lambda _: 0, name=str
        )
        # Each lock lives as long as a caller waits for it.
        self._turns: WeakValueDictionary[JobId, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, id: JobId) -> AsyncGenerator[None]:
        """Wait for earlier commands on the same job.

        In one batch, all but one of them would lose, and decide again together.
        """
        lock = self._turns.setdefault(id, asyncio.Lock())
        held = False
        with suppress(TimeoutError):
            async with asyncio.timeout(TURN_SECONDS):
                held = await lock.acquire()
        try:
            yield
        finally:
            if held:
                lock.release()

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        """Submit jobs, in one batch with those of other callers; return once they are durable.

        After StoreUnavailable it is unknown whether the jobs exist. Their ids are set before, so
        that a caller can submit the same jobs again and each is made once.
        """
        outcomes = await self._submit(jobs)
        return await settle_denied(self._store, outcomes, SETTLER)

    async def submit_alike(self, jobs: AlikeJobs) -> list[AlikeSubmit]:
        """Submit jobs that differ in id and body alone, in batches of their own.

        A batch that the store does not take so is submitted as any other jobs are.
        """
        return await self._alike.send_many(list(_split_alike(jobs)))

    async def _submit_each_alike(self, parts: Sequence[AlikeJobs]) -> list[AlikeSubmit]:
        return [await self._submit_part(part) for part in parts]

    async def _submit_part(self, part: AlikeJobs) -> AlikeSubmit:
        now = await self._store.submit_alike(part)
        if now is None:
            return AlikeSubmit(jobs=part, outcomes=await self.submit(part.expand()))
        return AlikeSubmit(jobs=part, accepted=stamp(part.first.record, now, now))

    async def _submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        keyed = [job for job in jobs if job.keys]
        if not keyed:
            return await self._submits.send_many(jobs)
        keyless = [job for job in jobs if not job.keys]
        parts = await asyncio.gather(
            self._submits.send_many(keyless) if keyless else _nothing(),
            self._submit_keyed(keyed),
            return_exceptions=True,
        )
        for part in parts:
            if isinstance(part, BaseException):
                raise part
        answers = [iter(part) for part in parts if isinstance(part, list)]
        return [next(answers[bool(job.keys)]) for job in jobs]

    async def _submit_keyed(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        """Submit jobs with keys: those that wait for a key delay no others."""
        known = [self._key_waits.wanted(job) for job in jobs]
        together = [job for job, waits in zip(jobs, known, strict=True) if not waits]
        sent = iter(await self._keyed.send_many(together) if together else [])
        outcomes = [None if waits else next(sent) for waits in known]
        return await asyncio.gather(
            *(
                self._key_waits.submit(job) if outcome is None or is_busy(outcome) else _as(outcome)
                for job, outcome in zip(jobs, outcomes, strict=True)
            )
        )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Write changes as the store does, all of one call in one batch.

        Under a request id of their own: if they are sent again, it shows whether they were written.
        """
        request_id = mint_request()
        return await self._commits.send(
            [
                change
                if change.event.request_id is not None
                else replace(change, event=replace(change.event, request_id=request_id))
                for change in changes
            ]
        )

    async def commit_locked(
        self, id: JobId, decide: DecideLocked, *, after: int | None = None
    ) -> Outcome:
        """Decide on a job's current record and commit, not in a batch: it holds a lock."""
        return await self._store.commit_locked(id, decide, after=after)

    async def get(self, ids: Sequence[JobId], *, signals: bool = True) -> list[Job | None]:
        """Read jobs by internal id."""
        return await (self._reads if signals else self._brief_reads).send(ids)

    async def events(
        self, id: JobId, *, after: int = 0, limit: int = 1000, max_bytes: int | None = None
    ) -> list[LoggedEvent]:
        """Read one job's events after a revision."""
        return await self._store.events(id, after=after, limit=limit, max_bytes=max_bytes)

    async def latest_events(
        self, id: JobId, types: Collection[EventType], *, limit: int = 100
    ) -> list[LoggedEvent]:
        """Read one job's newest events of these types."""
        return await self._store.latest_events(id, types, limit=limit)

    async def request_event(self, id: JobId, request_id: str) -> LoggedEvent | None:
        """Read the event of a job that was written under a request_id."""
        return await self._store.request_event(id, request_id)

    async def await_durable(self) -> None:
        """Wait until what was read before survives what an acknowledged write does."""
        await self._store.await_durable()

    async def finish(self) -> None:
        """Wait until all items are sent."""
        # The first hands on to the next what it cannot submit itself.
        for gathering in (
            self._alike,
            self._submits,
            self._keyed,
            self._commits,
            self._reads,
            self._brief_reads,
        ):
            await gathering.finish()
