"""The lease keeper: renews what a worker owns, from a thread and a connection of its own.

A handler that blocks the event loop keeps its lease, because this thread still runs. A handler that
never releases the interpreter may lose it; what it writes then is refused.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.crash_points import reach
from holdfast.errors import HoldfastError, JobBusy
from holdfast.flow.claim import shortest_lease_seconds
from holdfast.lifecycle.commands import Heartbeat
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.record import Change, Job, LoggedEvent
from holdfast.lifecycle.times import After
from holdfast.ports.models import Claimed, Committed, Lost, Outcome
from holdfast.ports.store import Store
from holdfast.telemetry import Meters
from holdfast.worker.owned_job import OwnedJob, OwnedJobs, lease_now
from holdfast.worker.stop import Stopper

log = logging.getLogger(__name__)

BATCH = 500
LOOKS_PER_LEASE = 8
"""How often a lease is looked at while it lasts: renewed at half, with time for several tries."""
LONGEST_REST_SECONDS = 1.0
SHORTEST_REST_SECONDS = 0.02
LOCK_SECONDS = 2.0
"""How long the renewal of one job waits for its lock: other leases expire meanwhile."""


class LeaseKeeper:
    """A thread that keeps the leases of owned jobs alive until it is stopped."""

    def __init__(self, store: Store, owned: OwnedJobs, stopper: Stopper, meters: Meters) -> None:
        """Renew through a store that no other part uses.

        `stopper` learns, on the worker's event loop, of records that have changed meanwhile.
        """
        self.failed: BaseException | None = None
        """What ended the thread, if anything but `stop` did."""
        self._store = store
        self._owned = owned
        self._stopper = stopper
        self._meters = meters
        self._stopping = threading.Event()
        self._wake: Callable[[], object] | None = None
        self._cut: Callable[[], object] | None = None
        self._ended = asyncio.Event()
        self._pulse = meters.pulse("keeper", limit_seconds=30.0)
        self._thread = threading.Thread(
            target=self._run_and_report, name="holdfast keeper", daemon=True
        )

    def start(self) -> None:
        """Start the thread; call it on the worker's event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """Renew nothing more, not even what is on its way: the store may be away."""
        self._stopping.set()
        cut = self._cut
        if cut is not None:
            with suppress(RuntimeError):  # it has just died, and its loop is closed
                cut()

    async def watch(self, every_seconds: float) -> None:
        """Raise what the thread died of, soon after it did."""
        while self.failed is None:  # noqa: ASYNC110  another thread's
            await asyncio.sleep(every_seconds)
        raise HoldfastError(f"the lease keeper died: {self.failed!r}")

    async def ended(self) -> None:
        """Wait until a keeper that was stopped has let go of its store."""
        await self._ended.wait()

    def attend(self, claimed: Sequence[Claimed]) -> None:
        """Look again at once if a lease that starts now could end while this thread rests."""
        if claimed and shortest_lease_seconds(claimed) / LOOKS_PER_LEASE < LONGEST_REST_SECONDS:
            wake = self._wake
            if wake is not None:
                wake()

    def _run_and_report(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # the thread's edge: the worker looks at it
            self.failed = error
            log.exception("the lease keeper died")
        with suppress(RuntimeError):  # the worker's loop may have ended meanwhile
            self._loop.call_soon_threadsafe(self._ended.set)

    async def _run(self) -> None:
        woken = asyncio.Event()
        loop = asyncio.get_running_loop()
        keeping = loop.create_task(self._keep_leases(woken))
        self._wake = lambda: loop.call_soon_threadsafe(woken.set)
        self._cut = lambda: loop.call_soon_threadsafe(keeping.cancel)
        try:
            with suppress(asyncio.CancelledError):
                await keeping
        finally:
            self._wake = self._cut = None
            self._pulse.stop()
            await self._store.close()

    async def _keep_leases(self, woken: asyncio.Event) -> None:
        opened = False
        while not self._stopping.is_set():
            opened = opened or await self._open()
            if opened:
                await self._renew_due()
            self._pulse.beat()
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), self._rest_seconds())
            woken.clear()

    async def _open(self) -> bool:
        try:
            await self._store.open()
        except HoldfastError as error:
            self._failed(error)
            return False
        return True

    def _rest_seconds(self) -> float:
        leases = (job.shortest_lease_seconds for job in self._owned.snapshot())
        shortest = min(leases, default=60.0)
        return min(max(shortest / LOOKS_PER_LEASE, SHORTEST_REST_SECONDS), LONGEST_REST_SECONDS)

    async def _renew_due(self) -> None:
        due = [job for job in self._owned.snapshot() if _is_due(job, lease_now())]
        for start in range(0, len(due), BATCH):
            await self._renew(due[start : start + BATCH])

    async def _renew(self, due: list[OwnedJob]) -> None:
        asked = [(job, change) for job in due if (change := _renewal(job, job.record)) is not None]
        if not asked:
            return
        sent_at = lease_now()
        reach("renew.sending")
        try:
            outcomes = await self._store.commit([change for _, change in asked])
        except HoldfastError as error:
            self._failed(error)
            return
        reach("renew.answered")
        renewed = 0
        overtaken: list[OwnedJob] = []
        for (job, change), outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, Lost) and _is_overtaken(outcome, change):
                overtaken.append(job)
            else:
                renewed += self._apply_outcome(job, change, outcome, sent_at)
        # After the others: a lock may have to be waited for.
        renewed += sum([await self._renew_locked(job) for job in overtaken])
        self._meters.keeper.renewed(renewed)

    async def _renew_locked(self, job: OwnedJob) -> bool:
        """Renew under the job's lock: another process wrote first, and may do so every time."""
        renewal: Change | None = None

        def decide_on(current: Job, _: Sequence[LoggedEvent]) -> list[Change]:
            nonlocal renewal
            renewal = _renewal(job, current)
            return [] if renewal is None else [renewal]

        sent_at = lease_now()
        try:
            async with asyncio.timeout(LOCK_SECONDS):
                outcome = await self._store.commit_locked(job.record.id, decide_on)
        except TimeoutError:
            self._failed(JobBusy(f"job {job.record.public_id} is locked by another transaction"))
            return False
        except HoldfastError as error:
            self._failed(error)
            return False
        return self._apply_outcome(job, renewal, outcome, sent_at)

    def _apply_outcome(
        self, job: OwnedJob, change: Change | None, outcome: Outcome, sent_at: float
    ) -> bool:
        if isinstance(outcome, Committed) and change is not None:
            job.prove(sent_at + _granted_seconds(change), change.event.rev)
            self._learn(job, outcome.job)
            return True
        current = outcome.current if isinstance(outcome, Lost) else None
        if current is not None and (change is None or current.rev > change.record.rev):
            # It is no longer this worker's: its attempt is stopped.
            self._learn(job, current)
        else:
            self._meters.keeper.failed()
        return False

    def _learn(self, job: OwnedJob, record: Job) -> None:
        job.learn(record)
        self._loop.call_soon_threadsafe(self._stopper.heed, job)

    def _failed(self, error: HoldfastError) -> None:
        self._meters.keeper.failed()
        log.warning("leases could not be renewed, will try again: %s", error)


def _is_due(job: OwnedJob, now: float) -> bool:
    """Return whether half of its lease is over and no other commit is about to renew or end it."""
    left = job.proven_until - now
    half = job.lease_seconds / 2
    if job.gone or left > half:
        return False
    # A commit under way would lose its compare-and-set to this one; it gets half of what is left.
    return not job.outbox.in_flight or left <= half / 2


def _renewal(job: OwnedJob, record: Job) -> Change | None:
    decision = decide(record, Heartbeat(actor=job.actor))
    return decision if isinstance(decision, Change) else None


def _is_overtaken(lost: Lost, change: Change) -> bool:
    """Return whether a compare-and-set missed because of another write, not of the lease."""
    return lost.current is not None and lost.current.rev > change.record.rev


def _granted_seconds(change: Change) -> float:
    lease = change.event.lease_expires_at
    return lease.micros / 1e6 if isinstance(lease, After) else 0.0
