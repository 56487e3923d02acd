"""Concurrent calls of a store become few: while one batch is under way, the next gathers.

Nobody waits for company: a call that finds nothing under way goes at once, with whatever came in
the same turn of the loop; where a whole batch more waits as one leaves, it leaves beside it, and so
does what waits behind one that is stuck. One that is bad fails alone, and a caller that goes away
takes nobody with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from holdfast.errors import HoldfastError, StoreBroken, StoreError, StoreFull, StoreUnavailable
from holdfast.identity import mint_request
from holdfast.lifecycle.job import Change, Job, JobId, LoggedEvent, NewJob
from holdfast.lifecycle.states import EventType
from holdfast.ports import DecideLocked, Outcome, Store, SubmitOutcome
from holdfast.services.key_waits import KeyWaits, is_busy

T = TypeVar("T")
A = TypeVar("A")
BATCH_ITEMS = 500
BATCH_BYTES = 4 * 1024 * 1024
"""Of bodies in one batch; a single one may be larger."""
LANES = 2
"""Batches under way at once: while the database writes one, the next is laid out."""
STUCK_SECONDS = 1.0
"""From then on a batch that is under way holds no other up."""
MOST_LANES = 8
"""Batches under way at once, those that are stuck among them."""
TURN_SECONDS = 5.0
"""How long a command waits for those before it; the compare-and-set holds without its turn."""


class Sent(Generic[T, A]):
    """What one caller sends together, and what came of it."""

    __slots__ = ("bytes", "future", "items")

    def __init__(self, items: Sequence[T], size: int, future: asyncio.Future[list[A]]) -> None:
        """Ask for something, answered to a future."""
        self.items = items
        self.future = future
        self.bytes = size


class Gathering(Generic[T, A]):
    """Gathers what one event loop sends by one call of a store."""

    def __init__(
        self,
        call: Callable[[Sequence[T]], Awaitable[list[A]]],
        *,
        size: Callable[[T], int],
        name: Callable[[T], str],
        shared: tuple[type[StoreError], ...] = (StoreUnavailable, StoreFull),
    ) -> None:
        """Take the call; `size` is of an item's bodies, `name` of its job. Nothing waits yet.

        An error that is `shared` is the store's and all are told of it; else each is sent alone.
        """
        self._call = call
        self._shared = shared
        self._size = size
        self._name = name
        self._waiting: deque[Sent[T, A]] = deque()
        self._lanes: set[asyncio.Task[None]] = set()
        self._stuck = 0

    async def send(self, items: Sequence[T]) -> list[A]:
        """Send items in one batch, together with those of others; answers once they are durable.

        StoreUnavailable: it is not known whether they are there.
        """
        return await self._enter(items) if items else []

    async def send_many(self, items: Sequence[T]) -> list[A]:
        """Send items in as many batches as they fill."""
        parts = [self._enter(part) for part in self._parts(items)]
        if len(parts) == 1:
            return await parts[0]
        # All are awaited, whatever becomes of one: an error nobody heard would be told later.
        answers = await asyncio.gather(*parts, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [one for answer in answers if isinstance(answer, list) for one in answer]

    def _enter(self, items: Sequence[T]) -> asyncio.Future[list[A]]:
        future: asyncio.Future[list[A]] = asyncio.get_running_loop().create_future()
        self._waiting.append(Sent(items, sum(map(self._size, items)), future))
        self._go_on()
        return future

    async def finish(self) -> None:
        """Wait until all that was asked for is sent."""
        while self._lanes:
            await asyncio.wait(self._lanes)

    @property
    def _moving(self) -> int:
        """How many lanes there are of which more can be expected soon."""
        return len(self._lanes) - self._stuck

    def _go_on(self) -> None:
        """See that what waits is sent."""
        if self._waiting and not self._moving and len(self._lanes) < MOST_LANES:
            self._open_lane()

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
        else:
            self._go_on()

    async def _send_all(self) -> None:
        while batch := self._next_batch():
            # Only whole batches go side by side: of what is less, more gathers meanwhile.
            if self._moving < LANES and len(self._lanes) < MOST_LANES and self._whole_waits():
                self._open_lane()
            with self._watched():
                await self._send(batch)
            if self._moving > 1 and not self._whole_waits():
                return

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Let others go on beside a batch that takes long."""
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

    def _whole_waits(self) -> bool:
        """Whether what waits fills a batch."""
        items = size = 0
        for sent in self._waiting:
            items += len(sent.items)
            size += sent.bytes
            if items >= BATCH_ITEMS or size >= BATCH_BYTES:
                return True
        return False

    def _next_batch(self) -> list[Sent[T, A]]:
        batch: list[Sent[T, A]] = []
        items = size = 0
        while self._waiting:
            sent = self._waiting[0]
            items += len(sent.items)
            size += sent.bytes
            if batch and (items > BATCH_ITEMS or size > BATCH_BYTES):
                break
            self._waiting.popleft()
            # Whoever went away before its turn is not sent at all.
            if sent.future.done():
                items, size = items - len(sent.items), size - sent.bytes
            else:
                batch.append(sent)
        return batch

    async def _send(self, batch: Sequence[Sent[T, A]]) -> None:
        try:
            answers = await self._call([item for sent in batch for item in sent.items])
        except self._shared as error:
            self._fail(batch, error)
        except Exception as error:  # noqa: BLE001  every caller is told
            await self._send_apart(batch, error)
        else:
            _answer(batch, answers)

    async def _send_apart(self, batch: Sequence[Sent[T, A]], error: Exception) -> None:
        """Find who made a batch fail. What of it was written is known by its ids, and answered.

        Those of jobs, or of requests: see `Together.commit`.
        """
        if len(batch) == 1:
            self._fail(batch, error)
            return
        for sent in batch:
            await self._send([sent])

    def _fail(self, batch: Sequence[Sent[T, A]], error: Exception) -> None:
        for sent in batch:
            if not sent.future.done():
                sent.future.set_exception(self._own(error, sent))

    def _own(self, error: Exception, sent: Sent[T, A]) -> Exception:
        """Make an error for one caller: it names its job, and its traceback is nobody else's."""
        if not isinstance(error, StoreError):
            return error
        job_id = self._name(sent.items[0])
        own: HoldfastError = type(error)(str(error), code=error.code, job_id=job_id)
        own.__cause__ = error
        return own

    def _parts(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """Cut what one caller sends into batches."""
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


def _answer(batch: Sequence[Sent[T, A]], answers: Sequence[A]) -> None:
    begin = 0
    for sent in batch:
        end = begin + len(sent.items)
        if not sent.future.done():
            sent.future.set_result(list(answers[begin:end]))
        begin = end


def _submits(
    call: Callable[[Sequence[NewJob]], Awaitable[list[SubmitOutcome]]],
) -> Gathering[NewJob, SubmitOutcome]:
    return Gathering(
        call,
        size=lambda job: len(job.event.body or b""),
        name=lambda job: job.record.public_id,
        shared=(StoreUnavailable, StoreFull, StoreBroken),
    )


async def _nothing() -> list[SubmitOutcome]:
    return []


async def _as(outcome: SubmitOutcome) -> SubmitOutcome:
    return outcome


class Together:
    """A store as many callers at once use it, each for one job: their calls become few."""

    def __init__(self, store: Store) -> None:
        """Take the store; nothing waits yet."""
        self._store = store
        self._submits = _submits(store.submit)
        # Apart: a key may have to be waited for, and those without one never have to.
        self._keyed = _submits(partial(store.submit, await_keys=False))
        self._key_waits = KeyWaits(store.submit)
        self._commits: Gathering[Change, Outcome] = Gathering(
            store.commit,
            size=lambda change: len(change.event.body or b""),
            name=lambda change: change.record.public_id,
        )
        self._reads: Gathering[JobId, Job | None] = Gathering(store.get, size=lambda _: 0, name=str)
        self._brief_reads: Gathering[JobId, Job | None] = Gathering(
            partial(store.get, signals=False), size=lambda _: 0, name=str
        )
        # Each lock lives as long as somebody waits for it.
        self._turns: WeakValueDictionary[JobId, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, id: JobId) -> AsyncGenerator[None]:
        """Wait for those who came before with commands for the same job.

        Gathered, all but one of them would lose, and decide anew together.
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
        """Submit jobs, together with those of others; answers once they are durable.

        StoreUnavailable: it is not known whether they are there. Each id was minted before, so
        that the same jobs can be sent again and are made once.
        """
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
        """Submit jobs with keys: those whose key has to be waited for hold up no others."""
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

        Under a request of their own: were they sent again, it is known whether they had landed.
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
        """Decide on a job's current record and commit, by itself: it holds a lock."""
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
        self, id: JobId, types: Sequence[EventType], *, limit: int = 100
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
        """Wait until all that was asked for is sent."""
        for gathering in (
            self._submits,
            self._keyed,
            self._commits,
            self._reads,
            self._brief_reads,
        ):
            await gathering.finish()
