"""The jobs that a worker owns: of each the record as last confirmed, the lease, and the fence.

The committer and the lease keeper both write to the job, each from its own thread; what either
learns of the record goes through `learn`, and an older record never replaces a newer one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec import Struct, field

from holdfast.crash_points import reach
from holdfast.lifecycle.family import KIN, awaits_children
from holdfast.lifecycle.lease import is_owner, renewal, shortest_grant
from holdfast.lifecycle.plan import PlannedEnd, record_after
from holdfast.lifecycle.record import Actor, Job
from holdfast.ports.models import Claimed
from holdfast.worker.outbox import Outbox

if TYPE_CHECKING:
    from holdfast.worker.run import Run

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
_LOCK = threading.Lock()
"""Over every record of the process: held for a comparison and an assignment."""


def lease_now() -> float:
    """Return the time by the clock of leases: it counts while the machine sleeps.

    `time.monotonic()` stands still during a suspend on Linux, and the store's clock does not: a
    worker that wakes up after an hour would trust leases that expired long ago. macOS has no such
    clock that Python offers: there, leases are trusted as long as the machine was awake, and the
    store refuses what is written too late.
    """
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


class ClaimedBatch(Struct, eq=False, gc=False):
    """The jobs of one claim, as long as their ends are not written."""

    request_id: str
    jobs: int
    left: int


class OwnedJob(Struct, eq=False, gc=False):
    """One claimed job. Belongs to the worker's event loop, except `learn` and `prove`.

    The garbage collector does not track it: its walks would cost more than the job. What refers
    back to it (its run) is let go when the attempt ends.
    """

    claimed: Claimed
    actor: Actor
    claimed_at: float
    """When the claim was answered, by the monotonic clock."""
    proven_until: float
    """Until when the lease is known to last, by the clock of leases."""
    proven_rev: int
    deadline_at: float | None
    """The job's deadline by the monotonic clock."""
    batch: ClaimedBatch | None = None
    """The claim that brought it; None where it was taken over."""
    known: Job | None = None
    """The record as last confirmed, if it is another than the claim's."""
    ended: tuple[PlannedEnd, int] | None = None
    """Its end and when that was written, if it was planned: the record is made when asked for."""
    outbox: Outbox = field(default_factory=Outbox)
    run: Run | None = None
    """Its attempt, while that runs."""
    started_at: float = 0.0
    """When the attempt was started, by the monotonic clock; 0 before."""
    gone: bool = False
    """It ended, was released, or was lost: nothing more is written for it."""
    adopted: bool = False
    """Its attempt was started by another worker of this host, and is continued."""
    takes_room: bool = False
    """It takes CPUs and memory of the host, not one of the worker's slots."""
    network: str | None = None
    """The network that its box gets, if any."""

    @property
    def record(self) -> Job:
        """The record as last confirmed; made when it is asked for."""
        if self.known is None and self.ended is not None:
            end, now = self.ended
            self.learn(record_after(end, self.claimed.job, now))
        return self.known or self.claimed.job

    @property
    def like(self) -> Job:
        """The same, but perhaps for its id and its times: always at hand."""
        return self.known or self.claimed.group.like

    @property
    def lease_seconds(self) -> float:
        """How long the lease is that a renewal would grant now."""
        return renewal(self.like) / 1e6

    @property
    def shortest_lease_seconds(self) -> float:
        """How long the shorter of its two leases is: a start may cut a claim's short any time."""
        return shortest_grant(self.like.policy) / 1e6

    @property
    def mine(self) -> bool:
        """Whether the record, as last seen, is still owned by this attempt."""
        like = self.like
        return like.owned and is_owner(like, self.actor)

    def learn(self, record: Job) -> None:
        """Take note of a record, unless a newer one is known. From any thread."""
        with _LOCK:
            if record.rev > self.like.rev:
                self.known = record

    def end_planned(self, end: PlannedEnd, now: int) -> None:
        """Take note that the planned end was written at `now`, by the store's clock."""
        self.ended = end, now
        self.outbox.strike(self.outbox.in_flight)
        # What was posted meanwhile came after the attempt had ended.
        self.outbox.drop()

    def prove(self, until: float, rev: int) -> None:
        """Take note of the lease that a revision granted. From any thread.

        It replaces the one before, also where it is shorter: a start cuts a claim's lease short.
        """
        with _LOCK:
            if rev > self.proven_rev:
                self.proven_until, self.proven_rev = until, rev


def own(claimed: Claimed, actor: Actor, asked_at: float) -> OwnedJob:
    """Own a job claimed by a request that was sent at `asked_at`, by the clock of leases."""
    return own_all([claimed], lambda _: actor, asked_at)[0]


def own_all(
    claimed: Sequence[Claimed],
    actor_of: Callable[[int], Actor],
    asked_at: float,
    request_id: str | None = None,
) -> list[OwnedJob]:
    """Own the jobs of one claim; `actor_of` returns who acts in an attempt of this number."""
    batch = None if request_id is None else ClaimedBatch(request_id, len(claimed), len(claimed))
    now = time.monotonic()
    owned: list[OwnedJob] = []
    for group, alike in groupby(claimed, key=attrgetter("group")):
        like = group.like
        actor, rev = actor_of(like.attempt), like.rev
        # From when the request was sent: a slow reply must not stretch the lease.
        until = asked_at + like.policy.lease / 1e6
        owned += [
            OwnedJob(one, actor, now, until, rev, _deadline(one, now), batch) for one in alike
        ]
    return owned


def _deadline(claimed: Claimed, answered_at: float) -> float | None:
    # The claim was written at `updated_at` by the store's clock, before it was answered: counted
    # from then, a job is never ended early, however long the claim took.
    if claimed.deadline_at is None:
        return None
    return answered_at + (claimed.deadline_at - claimed.updated_at) / 1e6


def own_adopted(claimed: Claimed, actor: Actor, asked_at: float) -> OwnedJob:
    """Own a job that was taken over from a dead worker by a commit that was sent at `asked_at`."""
    job = own(claimed, actor, asked_at)
    job.proven_until = asked_at + job.lease_seconds
    job.adopted = job.takes_room = True
    return job


class OwnedJobs:
    """Jobs from their claim until their end is written, or they are lost. On one event loop."""

    def __init__(self) -> None:
        self.by_id: dict[int, OwnedJob] = {}
        """By the integer of the job's id: a UUID is hashed by two calls of Python."""
        self.waiting: deque[OwnedJob] = deque()
        """Claimed, and waiting for a free slot."""
        self.running: set[OwnedJob] = set()
        """Their attempts run; also of a job that was lost and whose handler has not ended yet."""
        self.in_room: set[OwnedJob] = set()
        """Those of `running` that take room of the host instead of a slot."""
        self.left: set[int] = set()
        """Ids of jobs whose attempts continue without this worker; they are still in its name."""
        self.claiming = 0
        """How many claims are under way, which may have brought jobs that are not here yet."""
        self.ended_claims: dict[str, int] = {}
        """Claims of which the ends of all jobs are written, with the number of these. A job that
        was lost is not counted off: the store looks itself what became of such a claim."""
        self.changed = asyncio.Event()
        """Set when a slot or a job became free."""
        self.family_changed = asyncio.Event()
        """Set when a child ended, or a parent started to wait for its children."""

    def snapshot(self) -> list[OwnedJob]:
        """Return all jobs. From any thread."""
        return list(self.by_id.values())

    def add(self, job: OwnedJob) -> None:
        """Take in a claimed job; it waits for a slot."""
        self.by_id[job.claimed.id.int] = job
        self.waiting.append(job)

    def forget(self, job: OwnedJob) -> None:
        """Let a job go: its end is written, or it is another owner's."""
        job.gone = True
        number = job.claimed.id.int
        if self.by_id.get(number) is job:
            del self.by_id[number]
        reach("finish.acknowledged")
        self.changed.set()

    def leave(self, job: OwnedJob) -> None:
        """Let a job go whose attempt continues: another worker of this host takes it over."""
        self.left.add(job.claimed.id.int)
        self.forget(job)

    def end_all(self, jobs: Iterable[OwnedJob]) -> None:
        """Let jobs go whose planned ends were committed: they concern no other job."""
        by_id = self.by_id
        for job in jobs:
            job.gone = True
            number = job.claimed.id.int
            if by_id.get(number) is job:
                del by_id[number]
            self._count_off(job)
            reach("finish.acknowledged")
        self.changed.set()

    def end(self, job: OwnedJob) -> None:
        """Let a job go whose end, or whose wait, was committed."""
        record = job.like
        if record.link_kind in KIN or (record.wait_for and awaits_children(record.wait_for)):
            # Sweeps would do it too: this only saves the parent their tick.
            self.family_changed.set()
        self._count_off(job)
        self.forget(job)

    def _count_off(self, job: OwnedJob) -> None:
        """Take note that the end of a job is written: perhaps it was the last of its claim."""
        batch = job.batch
        if batch is not None:
            batch.left -= 1
            if not batch.left:
                self.ended_claims[batch.request_id] = batch.jobs

    @property
    def slots_taken(self) -> int:
        """How many of the worker's slots are taken."""
        return len(self.running) - len(self.in_room)

    @property
    def unconfirmed(self) -> int:
        """How many have ended here, and their end is not written yet."""
        return len(self.by_id) - len(self.running) - len(self.waiting)
