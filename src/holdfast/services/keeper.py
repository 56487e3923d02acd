"""The lease keeper: renews what a worker holds, from a thread and a connection of its own.

A handler that blocks the event loop keeps its lease: this thread goes on. One that never lets go
of the interpreter may lose it; what it writes then is refused.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from holdfast.errors import HoldfastError, JobBusy
from holdfast.lifecycle.commands import Heartbeat
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.job import Change, Job, LoggedEvent
from holdfast.lifecycle.times import After
from holdfast.points import reach
from holdfast.ports import Committed, Lost, Outcome, Store
from holdfast.services.held import Held
from holdfast.services.lease_clock import lease_now
from holdfast.telemetry import Meters

log = logging.getLogger(__name__)

BATCH = 500
LOOKS_PER_LEASE = 8
"""A lease is looked at so often while it lasts: renewed at half, with time for several tries."""
LONGEST_REST_SECONDS = 1.0
SHORTEST_REST_SECONDS = 0.02
LOCK_SECONDS = 2.0
"""How long the renewal of one job waits for its lock: other leases run out meanwhile."""


class Keeper:
    """A thread that keeps the leases of `held` alive until it is stopped."""

    def __init__(
        self,
        store: Store,
        held: Callable[[], Collection[Held]],
        meters: Meters,
        *,
        on_news: Callable[[Held], None],
    ) -> None:
        """Renew through a store that nobody else uses; `on_news` is called in this thread."""
        self.failed: BaseException | None = None
        """What ended the thread, if anything but `stop` did."""
        self._store = store
        self._held = held
        self._meters = meters
        self._on_news = on_news
        self._stopping = threading.Event()
        self._wake: Callable[[], object] | None = None
        self._cut: Callable[[], object] | None = None
        self._ended = asyncio.Event()
        self._pulse = meters.pulse("keeper", limit_seconds=30.0)
        self._thread = threading.Thread(target=self._main, name="holdfast keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._owner = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """Renew nothing more, not even what is on its way: the store may be away."""
        self._stopping.set()
        cut = self._cut
        if cut is not None:
            with suppress(RuntimeError):  # it has just died, and its loop is closed
                cut()

    async def ended(self) -> None:
        """Wait until a keeper that was stopped has let go of its store."""
        await self._ended.wait()

    def attend(self, lease_seconds: float) -> None:
        """Look again at once if a lease that begins now could end while this thread rests."""
        if lease_seconds / LOOKS_PER_LEASE < LONGEST_REST_SECONDS and self._wake is not None:
            self._wake()

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # the thread's edge: the worker looks at it
            self.failed = error
            log.exception("the lease keeper died")
        with suppress(RuntimeError):  # the owner's loop may have ended meanwhile
            self._owner.call_soon_threadsafe(self._ended.set)

    async def _run(self) -> None:
        woken = asyncio.Event()
        loop = asyncio.get_running_loop()
        keeping = loop.create_task(self._keep(woken))
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        self._cut = lambda: loop.call_soon_threadsafe(keeping.cancel)
        try:
            with suppress(asyncio.CancelledError):
                await keeping
        finally:
            self._wake = self._cut = None
            self._pulse.stop()
            await self._store.close()

    async def _keep(self, woken: asyncio.Event) -> None:
        opened = False
        while not self._stopping.is_set():
            opened = opened or await self._open()
            if opened:
                await self._renew_due()
            self._pulse.beat()
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), self._rest())
            woken.clear()

    async def _open(self) -> bool:
        try:
            await self._store.open()
        except HoldfastError as error:
            self._trouble(error)
            return False
        return True

    def _rest(self) -> float:
        shortest = min((held.shortest_lease_seconds for held in self._held()), default=60.0)
        return min(max(shortest / LOOKS_PER_LEASE, SHORTEST_REST_SECONDS), LONGEST_REST_SECONDS)

    async def _renew_due(self) -> None:
        due = [held for held in self._held() if _is_due(held, lease_now())]
        for start in range(0, len(due), BATCH):
            await self._renew(due[start : start + BATCH])

    async def _renew(self, due: list[Held]) -> None:
        asked = [
            (held, change) for held in due if (change := _renewal(held, held.record)) is not None
        ]
        if not asked:
            return
        sent_at = lease_now()
        reach("renew.sending")
        try:
            outcomes = await self._store.commit([change for _, change in asked])
        except HoldfastError as error:
            self._trouble(error)
            return
        reach("renew.answered")
        renewed = 0
        overtaken: list[Held] = []
        for (held, change), outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, Lost) and _overtaken(outcome, change):
                overtaken.append(held)
            else:
                renewed += self._settle(held, change, outcome, sent_at)
        # After the others: a lock may have to be waited for.
        renewed += sum([await self._renew_locked(held) for held in overtaken])
        self._meters.keeper.renewed(renewed)

    async def _renew_locked(self, held: Held) -> bool:
        """Renew under the job's lock: somebody else wrote first, and may do so every time."""
        renewal: Change | None = None

        def decide_on(current: Job, _: Sequence[LoggedEvent]) -> list[Change]:
            nonlocal renewal
            renewal = _renewal(held, current)
            return [] if renewal is None else [renewal]

        sent_at = lease_now()
        try:
            async with asyncio.timeout(LOCK_SECONDS):
                outcome = await self._store.commit_locked(held.record.id, decide_on)
        except TimeoutError:
            self._trouble(JobBusy(f"job {held.record.public_id} is locked by another transaction"))
            return False
        except HoldfastError as error:
            self._trouble(error)
            return False
        return self._settle(held, renewal, outcome, sent_at)

    def _settle(self, held: Held, change: Change | None, outcome: Outcome, sent_at: float) -> bool:
        if isinstance(outcome, Committed) and change is not None:
            held.learn(outcome.job)
            held.prove(sent_at + _granted_seconds(change), change.event.rev)
            self._on_news(held)
            return True
        current = outcome.current if isinstance(outcome, Lost) else None
        if current is not None and (change is None or current.rev > change.record.rev):
            # It is no longer this worker's: whoever runs it hears of that.
            held.learn(current)
            self._on_news(held)
        else:
            self._meters.keeper.failed()
        return False

    def _trouble(self, error: HoldfastError) -> None:
        self._meters.keeper.failed()
        log.warning("leases could not be renewed, will try again: %s", error)


def _is_due(held: Held, now: float) -> bool:
    """Whether half of its lease is over, and no other commit is about to renew or end it."""
    left = held.proven_until - now
    half = held.lease_seconds / 2
    if held.gone or left > half:
        return False
    # A commit under way would lose its compare-and-set to this one; it gets half of what is left.
    return not held.in_flight or left <= half / 2


def _renewal(held: Held, record: Job) -> Change | None:
    decision = decide(record, Heartbeat(actor=held.actor))
    return decision if isinstance(decision, Change) else None


def _overtaken(lost: Lost, change: Change) -> bool:
    """Whether a compare-and-set missed because somebody else wrote, not because of the lease."""
    return lost.current is not None and lost.current.rev > change.record.rev


def _granted_seconds(change: Change) -> float:
    lease = change.event.lease_expires_at
    return lease.micros / 1e6 if isinstance(lease, After) else 0.0
