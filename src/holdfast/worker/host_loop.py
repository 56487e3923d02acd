"""The host loop: a worker's care for the jobs that take room on its host.

It takes the host's lock, takes over what dead workers of this host left behind, claims as much as
there is room for, and removes boxes once the end of their jobs is written. Level-triggered: what a
pass could not do, the next one finds again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from holdfast.crash_points import reach
from holdfast.errors import HoldfastError, JobUnreadable, Refused, RuntimeTrouble
from holdfast.flow.command import perform
from holdfast.flow.recover_boxes import recover_box
from holdfast.ids import unix_seconds
from holdfast.lifecycle.commands import Adopt, Lose
from holdfast.lifecycle.record import Actor, Job, JobId
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.times import SECOND
from holdfast.ports.box import BoxLabel
from holdfast.ports.host import AttemptFiles, Host
from holdfast.ports.models import Claimed, Clock, claimed_as
from holdfast.ports.store import Store
from holdfast.queries.unneeded_files import is_unneeded
from holdfast.worker.executor import Executor
from holdfast.worker.owned_job import OwnedJobs, lease_now, own_adopted
from holdfast.worker.room import RoomClaimer
from holdfast.worker.stop_request import StopRequest

log = logging.getLogger(__name__)

REMOVE_SECONDS = 0.5
"""Between two looks for ends that were written, and whose boxes can go."""
CLOSE_SECONDS = 3.0
"""How long a worker that ends waits for removals; what is left then is an orphan for the next."""
SWEEP_EVERY = 12
"""Passes between two listings of all boxes, for orphans."""


class HostLoop(Struct, kw_only=True, eq=False):
    """Cares for one host, in the name of one worker; on its event loop."""

    store: Store
    owned: OwnedJobs
    host: Host
    worker: str
    claimer: RoomClaimer
    executor: Executor
    stop_request: StopRequest
    pause_seconds: float
    """Between two looks for the lock, for jobs that were left behind, and for boxes to remove."""
    passes: int = 0
    _reason: str | None = None
    _removing: dict[tuple[JobId, int], asyncio.Task[None]] = field(default_factory=dict)
    _sweeping: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Care for the host until the worker is to stop: what it took over then would be lost."""
        while not self.stop_request.is_set():
            try:
                await self.recover()
            except HoldfastError as error:
                log.warning("boxes of this host could not be recovered, will try again: %s", error)
            except Exception:  # the loop's edge: functions continue, whatever is wrong here
                log.exception("boxes of this host could not be recovered, will try again")
            await asyncio.sleep(self.pause_seconds)

    async def remove_ended(self) -> None:
        """Remove boxes soon after the ends of their jobs are written, until cancelled."""
        while True:
            try:
                await self._remove_ended()
            except HoldfastError as error:
                log.warning("ended boxes could not be removed, will try again: %s", error)
            except Exception:  # the loop's edge
                log.exception("ended boxes could not be removed, will try again")
            await asyncio.sleep(REMOVE_SECONDS)

    async def recover(self) -> None:
        """Make one pass: the lock, then jobs, then boxes; in this order (D14)."""
        if not self._take_lock():
            return
        kinds = self.host.runners.keys()
        left = await self.store.owned_on(self.host.name, but=self.worker, kinds=kinds)
        await self._adopt_or_lose([*left, *await self._find_forgotten()])
        self._open()
        if self.passes % SWEEP_EVERY or await self._remove_orphans():
            self.passes += 1
        if self.passes % SWEEP_EVERY == 1 and (self._sweeping is None or self._sweeping.done()):
            # Beside the next passes: large trees take long.
            self._sweeping = asyncio.create_task(self._remove_left_files())

    async def _find_forgotten(self) -> list[Job]:
        """Return jobs that run in this worker's name and that it does not know.

        The reply to their adoption was lost. What was only claimed, the ownership check releases.
        """
        if self.owned.claiming:
            return []
        known = {job.claimed.id for job in self.owned.running}
        return [
            job
            for job in await self.store.owned(self.worker)
            if job.running
            and job.kind in self.host.runners
            and job.id not in known
            and job.id.int not in self.owned.by_id
            and job.id.int not in self.owned.left
        ]

    def _take_lock(self) -> bool:
        reason = self.host.take_lock()
        if reason != self._reason and reason is not None:
            log.warning("this worker runs no commands: %s", reason)
        self._reason = reason
        if reason is not None:
            self.passes = 0
            self.claimer.close()
        return reason is None

    def _open(self) -> None:
        if not self.claimer.is_open:
            room, able = self.host.room, ", ".join(sorted(self.host.capabilities))
            log.info(
                "this worker runs the commands of host %s (%s), in %d CPUs and %d MB",
                *(self.host.name, able, room.cpus, room.memory_mb),
            )
        self.claimer.open()

    async def _adopt_or_lose(self, jobs: Sequence[Job]) -> None:
        """Take over what can continue, and end what was lost.

        What is neither takes its room until a later pass: it may run.
        """
        self.claimer.leave_room_for(jobs)
        if not jobs:
            return
        clock = await self.store.clock()
        settled = await asyncio.gather(*(self._try_to_recover(job, clock) for job in jobs))
        reach("boxes.recovered")
        self.claimer.leave_room_for(
            [job for job, is_settled in zip(jobs, settled, strict=True) if not is_settled]
        )

    async def _try_to_recover(self, job: Job, clock: Clock) -> bool:
        """Recover one job; return whether that is settled. No job is in the way of others."""
        try:
            return await self._recover_job(job, clock)
        except (HoldfastError, OSError) as error:
            log.warning("job %s is not recovered yet: %s", job.public_id, error)
        except Exception:  # the edge of one job
            log.exception("job %s is not recovered yet", job.public_id)
        return False

    async def _recover_job(self, job: Job, clock: Clock) -> bool:
        """Recover one job, by what its box shows; return whether that is settled."""
        claim = await self._read_claim(job)
        command = await self._choose(claim, clock)
        asked_at = lease_now()
        try:
            recovered = await perform(self.store, job.id, command, expected_rev=job.rev)
        except Refused as error:
            # Another writer came first: the next pass sees what it wrote.
            log.info("job %s is not recovered: %s", job.public_id, error)
            return False
        if isinstance(command, Lose):
            log.warning("job %s is lost: %s", job.public_id, command.error_code)
        else:
            self._take_over(claim.with_record(recovered), asked_at)
        return True

    async def _read_claim(self, job: Job) -> Claimed:
        [first] = await self.store.events(job.id, limit=1)
        assert first.created is not None
        return claimed_as(job, first.created, first.body, first.correlation_id)

    async def _choose(self, claim: Claimed, clock: Clock) -> Adopt | Lose:
        job, actor = claim.job, Actor(Role.HOST, self.worker)
        sight = await self.host.look(claim)
        command = recover_box(job, sight, actor, now=clock.now, epoch=clock.epoch)
        if isinstance(command, Lose):
            # Something of a lost box may be left; the record states that nothing is.
            command = replace(command, log=await self.host.salvage(claim))
            await self.host.remove(job.id, job.attempt)
        return command

    def _take_over(self, claim: Claimed, asked_at: float) -> None:
        job = claim.job
        log.info("job %s is taken over", job.public_id)
        owned = own_adopted(claim, Actor(Role.OWNER, self.worker, job.attempt), asked_at)
        self.owned.by_id[job.id.int] = owned
        self.executor.start(owned)

    async def _remove_ended(self) -> None:
        """Remove boxes whose jobs' ends are written, beside everything else."""
        busy = {
            (job.claimed.id, job.actor.attempt)
            for job in (*self.owned.by_id.values(), *self.owned.in_room)
        }
        ended = [one for one in self.host.made() if one not in busy and one not in self._removing]
        for id_, attempt in ended:
            if not await self._is_needed(id_, attempt):
                self._remove(id_, attempt)

    async def _remove_orphans(self) -> bool:
        """Kill and remove boxes without a live job; return whether all boxes could be listed.

        The boxes are listed first and their jobs read afterwards: one that was claimed meanwhile
        is seen as live.
        """
        labels = await self._list_boxes()
        if labels is None:
            return False
        for label in labels:
            if not await self._is_needed(label.job, label.attempt):
                log.warning("box %s has no live job: it is removed", label.name)
                self._remove(label.job, label.attempt)
        return True

    async def _is_needed(self, id: JobId, attempt: int) -> bool:
        """Return whether a box may have a live job; a damaged one is left alone."""
        try:
            [job] = await self.store.get([id])
        except JobUnreadable:
            return True
        return job is not None and self._is_live(job, attempt)

    async def _list_boxes(self) -> Sequence[BoxLabel] | None:
        try:
            return await self.host.boxes()
        except RuntimeTrouble as error:
            log.warning("the boxes of this host could not be listed: %s", error)
            return None

    def _is_live(self, job: Job, attempt: int) -> bool:
        if job.owned and job.attempt == attempt:
            return True
        owned = self.owned.by_id.get(job.id.int)
        # Its end may be on its way.
        return owned is not None and owned.record.attempt == attempt

    def _remove(self, job: JobId, attempt: int) -> None:
        which = job, attempt
        if which not in self._removing:
            task = self._removing[which] = asyncio.create_task(self._try_to_remove(*which))
            task.add_done_callback(lambda _: self._removing.pop(which, None))

    async def _try_to_remove(self, job: JobId, attempt: int) -> None:
        try:
            await self.host.remove(job, attempt)
        except (HoldfastError, OSError) as error:
            log.warning("the box of job %s could not be removed yet: %s", job, error)
            # Not at once again: a runtime in trouble would be called twice a second for each box.
            await asyncio.sleep(self.pause_seconds)
            return
        now = _host_now()
        await self._remove_files([AttemptFiles(job=job, attempt=attempt, changed_at=now)])

    async def _remove_left_files(self) -> None:
        """Remove files of attempts that have ended, and that no removal of a box came to.

        The files are listed first and their jobs read afterwards: one that was claimed meanwhile
        is seen as live.
        """
        try:
            found = await self.host.files()
        except OSError as error:
            log.warning("files of ended jobs could not be listed: %s", error)
            return
        boxes = {*self.host.made(), *self._removing}
        await self._remove_files([one for one in found if (one.job, one.attempt) not in boxes])

    async def _remove_files(self, found: Sequence[AttemptFiles]) -> None:
        """Remove files that nobody needs; what fails, a later pass finds again."""
        for one in found:
            try:
                if await is_unneeded(self.store, one, now=_host_now()):
                    await self.host.remove_files(one.job, one.attempt)
            except (HoldfastError, OSError) as error:
                log.warning("files of job %s could not be removed yet: %s", one.job, error)

    async def claim_and_start(self, attend: Callable[[Sequence[Claimed]], None]) -> None:
        """Claim what there is room for and start it, again and again, until stopped.

        `attend` has the leases of what was claimed renewed in time.
        """
        while (limit := await self.claimer.room()) > 0:
            claimed = await self.claimer.claim(limit)
            if claimed:
                reach("room.claimed")
            attend(claimed)
            for job in self.claimer.take():
                self.executor.start_or_end(job)
            if len(claimed) < limit:
                await self.claimer.wait_for_work()

    async def finish(self) -> None:
        """Remove what has ended, as far as the runtime answers soon."""
        try:
            await self._remove_ended()
        except (HoldfastError, OSError) as error:
            log.warning("ended boxes are left to the next worker of this host: %s", error)
        sweeping = [] if self._sweeping is None else [self._sweeping]
        if removing := [*self._removing.values(), *sweeping]:
            _, late = await asyncio.wait(removing, timeout=CLOSE_SECONDS)
            for task in late:
                task.cancel()

    def close(self) -> None:
        """Let go of the host: from now on its lock may be another worker's."""
        self.host.close()


def _host_now() -> int:
    return int(unix_seconds() * SECOND)
