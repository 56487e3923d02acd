"""The committer: decides the commands that wait in outboxes, and writes them together.

While one commit is under way the next gathers: large batches under load, no wait when idle, no
timers to tune. A full batch does not wait for that: it leaves beside the other. A command is
decided when it leaves, on the record that the last commit confirmed; so the start and the end of a
short job leave as one row update with two events.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias

from msgspec import Struct

from holdfast.crash_points import reach
from holdfast.errors import BadData, HoldfastError
from holdfast.flow.finish import make_dead_letter
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.lease import is_owner
from holdfast.lifecycle.linked import with_correlation
from holdfast.lifecycle.plan import PlannedEnd, end_by_plan, is_plain_success
from holdfast.lifecycle.rebase import REBASES
from holdfast.lifecycle.record import Change, Draft, Job, LoggedEvent, Refusal, Unchanged
from holdfast.lifecycle.states import OWNED
from holdfast.lifecycle.times import After
from holdfast.ports.models import Committed, Lost, Outcome, Rejected
from holdfast.ports.store import Store
from holdfast.telemetry import Meters
from holdfast.worker.failures import Failures
from holdfast.worker.outbox import GONE, START, CommitQueue
from holdfast.worker.owned_job import OwnedJob, OwnedJobs, lease_now
from holdfast.worker.stop import Stopper

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 5.0
GATHER_SECONDS = 0.04
"""How long a batch may grow: as long as two thousand handlers take that do nothing. What has ended
is run again if the worker dies before it is written."""
LOCK_SECONDS = 2.0
"""How long to wait for one job's lock while others' commands wait behind it."""
LOCKED_PAUSE_SECONDS = 0.5
"""How long to leave a job alone whose row another transaction keeps locked."""

PlannedJob: TypeAlias = tuple[OwnedJob, PlannedEnd]

_DURING_A_RUN = frozenset({c.Start, c.Step, c.Progress, c.Heartbeat, c.Wait})
"""What a running handler may ask for; every other command ends its attempt."""


class Committer(Struct, kw_only=True, eq=False):
    """Commits the commands of one worker's jobs in batches, two at most at a time."""

    store: Store
    owned: OwnedJobs
    commands: CommitQueue
    stopper: Stopper
    meters: Meters
    failures: Failures
    trouble: str | None = None
    """What keeps commits from being written, while it does."""
    _under_way: int = 0
    _closing: bool = False

    def close(self) -> None:
        """Stop once all that was posted is written."""
        self._closing = True
        self.commands.wake_all()

    async def run(self) -> None:
        """Commit what waits, until closed and empty. Waits out trouble with the store."""
        writers = [
            asyncio.create_task(self._write_batches(1, self.commands.some)),
            # While this process decides and settles one full batch, the database writes another.
            asyncio.create_task(self._write_batches(self.commands.batch, self.commands.many)),
        ]
        try:
            await asyncio.gather(*writers)
        finally:
            for writer in writers:
                writer.cancel()

    async def _write_batches(self, enough: int, wake: asyncio.Event) -> None:
        """Commit a batch whenever this many jobs wait."""
        pause = FIRST_PAUSE_SECONDS
        while self.commands.jobs or self._under_way or not self._closing:
            if len(self.commands.jobs) < enough:
                wake.clear()
                await wake.wait()
            elif await self._commit_one_batch():
                pause = FIRST_PAUSE_SECONDS
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _gather(self) -> None:
        """Let a batch grow as long as each turn of the event loop adds to it.

        Handlers that end in one turn follow each other, and a commit of some of them costs nearly
        as much as one of all. Where they wait, or there are no more, it leaves after one turn;
        where they compute, after a while.
        """
        before, ends_at = 0, time.monotonic() + GATHER_SECONDS
        while before < len(self.commands.jobs) < self.commands.batch:
            before = len(self.commands.jobs)
            await asyncio.sleep(0)
            if time.monotonic() > ends_at:
                return

    async def _commit_one_batch(self) -> bool:
        """Commit one batch; false where the store could not, and all of it still waits."""
        self._under_way += 1
        try:
            await self._gather()
            return await self._commit(self.commands.take())
        finally:
            self._commit_ended()

    def _commit_ended(self) -> None:
        self._under_way -= 1
        if self._closing:
            self.commands.wake_all()

    async def _commit(self, batch: list[OwnedJob]) -> bool:
        for job in batch:
            if job.outbox.unsure_since is not None and job.outbox.asked:
                await self._settle_unsure(job)
        sent_at, now = lease_now(), time.monotonic()
        planned, others = self._plan_ends(batch, now)
        sent = [job for job in others if self._decide(job, now)]
        if not planned:
            return await self._commit_decided(sent, sent_at)
        if not sent:
            return await self._commit_planned(planned)
        both = self._commit_planned(planned), self._commit_decided(sent, sent_at)
        return all(await asyncio.gather(*both))

    async def _commit_decided(self, sent: list[OwnedJob], sent_at: float) -> bool:
        """Commit what was decided for each of these jobs."""
        contended = [job for job in sent if job.outbox.rebases > REBASES]
        if contended:
            sent = [job for job in sent if job.outbox.rebases <= REBASES]
            if not await self._commit_contended(contended):
                self._put_back(sent)
                return False
        if not sent:
            return True
        reach("commit.sending")
        changes = [change for job in sent for change in job.outbox.changes]
        # Counted before the store is waited for: what is posted meanwhile leaves with the next.
        sizes = [len(job.outbox.changes) for job in sent]
        try:
            outcomes = await self.store.commit(changes)
        except HoldfastError as error:
            self._failed(error)
            self._put_back(sent, unsure=True)
            return False
        reach("commit.answered")
        self._succeeded()
        self.meters.committed(len(sent))
        at = -1
        for job, size in zip(sent, sizes, strict=True):
            # A job's changes are written all or none: the last outcome is that of each.
            at += size
            self._apply_outcome(job, outcomes[at], sent_at)
        return True

    # Plain ends, by plan.

    def _plan_ends(
        self, batch: list[OwnedJob], now: float
    ) -> tuple[list[PlannedJob], list[OwnedJob]]:
        """Pick the jobs whose plain start and success leave together; also return the others."""
        planned: list[PlannedJob] = []
        others: list[OwnedJob] = []
        for job in batch:
            end = _plan_end(job, now)
            if end is None:
                others.append(job)
            else:
                job.outbox.listed, job.outbox.in_flight = False, len(job.outbox.commands)
                planned.append((job, end))
        return planned, others

    async def _commit_planned(self, planned: list[PlannedJob]) -> bool:
        """Commit planned ends; what the store did not write is decided job by job."""
        reach("commit.sending")
        try:
            outcome = await self.store.commit_planned([end for _, end in planned])
        except HoldfastError as error:
            self._failed(error)
            self._put_back([job for job, _ in planned], unsure=True)
            return False
        reach("commit.answered")
        self._succeeded()
        if outcome.missed:
            missed = frozenset(outcome.missed)
            self._put_back([job for job, end in planned if end.id in missed], unsure=True)
            planned = [one for one in planned if one[1].id not in missed]
        if planned:
            self.meters.committed(len(planned))
        ended = [one for one in planned if not one[0].gone]
        for job, end in ended:
            job.end_planned(end, outcome.now)
        self._count_planned(ended)
        self.owned.end_all(job for job, _ in ended)
        return True

    def _count_planned(self, ended: list[PlannedJob]) -> None:
        groups = Counter(id(job.claimed.group) for job, _ in ended)
        by_id = {id(job.claimed.group): (job.claimed.group.like, end.plan) for job, end in ended}
        for number, (like, plan) in by_id.items():
            written = plan.start.event.type, plan.success.event.type
            self.meters.written(like.task, like.queue, *written, times=groups[number])

    # Deciding what leaves.

    def _decide(self, job: OwnedJob, now: float) -> bool:
        """Decide a job's commands on its last confirmed record; false if nothing is to be sent."""
        outbox = job.outbox
        outbox.listed = False
        if job.gone:
            return False
        commands = outbox.first_to_leave()
        if outbox.unsure_since is not None and _holds_already(job, job.record):
            self._strike_written(job, len(outbox.commands))
            return False
        try:
            changes, refused = _decide_in_order(job, job.record, commands, now)
        except BadData as error:
            self._replace_invalid(job, "validation_failed", "output", error)
            return False
        if refused is not None:
            self._give_up_refused(job, *refused)
            return False
        if not changes:
            self._strike_written(job, len(commands))
            return False
        outbox.in_flight, outbox.changes = len(commands), changes
        return True

    def _give_up_refused(self, job: OwnedJob, command: c.Command, refusal: Refusal) -> None:
        """Give up a job whose record does not allow a command.

        If a caller asked for the command, it gets the refusal instead, and the job continues.
        """
        outbox = job.outbox
        if job.mine and id(command) in (outbox.asked or ()):
            outbox.commands = [one for one in outbox.commands if one is not command]
            outbox.answer([command], refusal)
            if outbox.commands:
                self.commands.add_job(job)
            return
        if job.mine:
            # The law and the worker disagree about a job that it owns: that is a bug.
            log.error("%s refused: %s (%s)", command.operation, refusal.message, refusal.code)
        self.stopper.lose(job, refusal.message)

    def _replace_invalid(self, job: OwnedJob, code: str, stage: str, error: HoldfastError) -> None:
        """Do without commands that cannot be written.

        Their caller gets the error. If one of them ends the attempt, a dead letter replaces it.
        """
        outbox = job.outbox
        during_a_run = [one for one in outbox.commands if type(one) in _DURING_A_RUN]
        if not during_a_run or len(during_a_run) < len(outbox.commands):
            self._end_by_dead_letter(job, code, stage, error)
            return
        log.error("job %s: %s", job.record.public_id, error)
        kept: list[c.Command] = [one for one in outbox.commands if one is START]
        if len(kept) == len(outbox.commands):
            self.stopper.lose(job, str(error))
            return
        outbox.answer(outbox.commands, Refusal(code=error.code, message=str(error)))
        outbox.commands = kept
        if kept:
            self.commands.add_job(job)

    def _end_by_dead_letter(
        self, job: OwnedJob, code: str, stage: str, error: HoldfastError
    ) -> None:
        """Replace an end that cannot be written by a dead letter with the error, once."""
        outbox = job.outbox
        log.error("job %s: %s", job.record.public_id, error)
        if outbox.substituted:
            self.stopper.lose(job, str(error))
            return
        outbox.substituted = True
        last = make_dead_letter(job.record, job.actor, code, stage, error)
        outbox.answer(outbox.commands, GONE)
        outbox.commands = [*(one for one in outbox.commands if one is START), last]
        self.commands.add_job(job)
        self.failures.ended(job, last, error)

    # Outcomes of a commit.

    def _apply_outcome(self, job: OwnedJob, outcome: Outcome, sent_at: float) -> None:
        if job.gone:
            # It was given up meanwhile, and what was posted for it is dropped.
            return
        outbox = job.outbox
        if type(outcome) is Committed:
            self._accept_record(job, outcome.job, sent_at)
        elif type(outcome) is Lost:
            if outcome.current is not None and _holds_already(job, outcome.current):
                self._accept_record(job, outcome.current, sent_at)
                return
            outbox.in_flight = 0
            self._decide_again_or_lose(job, outcome.current)
        elif isinstance(outcome, Rejected) and outcome.busy:
            self._send_later(job)
        else:
            outbox.in_flight = 0
            refusal = HoldfastError(f"the store refused it: {outcome}")
            self._replace_invalid(job, "infrastructure_failure", "commit", refusal)

    def _accept_record(self, job: OwnedJob, record: Job, sent_at: float) -> None:
        outbox = job.outbox
        outbox.rebases = 0
        job.learn(record)
        written = [change.event.type for change in outbox.changes]
        self.meters.written(record.task, record.queue, *written)
        # A job that has ended has no lease to be proven.
        if record.state in OWNED:
            _note_lease(job, sent_at)
        self._strike_written(job, outbox.in_flight)

    def _strike_written(self, job: OwnedJob, count: int) -> None:
        """Strike commands that a commit carried, or that were found to hold already."""
        outbox = job.outbox
        written = outbox.strike(count)
        if not outbox.commands and not job.mine:
            job.gone = True
        outbox.answer(written, None)
        if outbox.commands:
            self.commands.add_job(job)
            return
        outbox.wake_waiters()
        if job.gone:
            self.owned.end(job)

    def _decide_again_or_lose(self, job: OwnedJob, current: Job | None) -> None:
        """React to a lost compare-and-set: decide again where the job is still this attempt's.

        However often: after `REBASES` misses it is written under the job's lock.
        """
        outbox = job.outbox
        outbox.rebases += 1
        if current is None:
            self.stopper.lose(job, "the job is gone")
        elif outbox.changes and current.rev == outbox.changes[0].record.rev:
            self.stopper.lose(job, "its lease has passed")
        else:
            # Also where it is no longer mine: a repeat of what already holds is success.
            job.learn(current)
            self.commands.add_job(job)

    # Trouble with the store, and with rows that others write.

    def _failed(self, error: HoldfastError) -> None:
        self.trouble = str(error)
        self.meters.store_error(error.code)
        log.warning("commit failed, will try again: %s", error)

    def _succeeded(self) -> None:
        if self.trouble is not None:
            self.trouble = None
            log.warning("commits succeed again")

    def _put_back(self, jobs: Iterable[OwnedJob], *, unsure: bool = False) -> None:
        """Keep what could not be written; `unsure` whether it was: repeating it is safe."""
        jobs = list(jobs)
        for job in jobs:
            outbox = job.outbox
            outbox.in_flight = 0
            if unsure and outbox.unsure_since is None:
                # What was planned was planned on the claim's record.
                decided_on = outbox.changes[0].record if outbox.changes else job.claimed.group.like
                outbox.unsure_since = decided_on.rev
        self.commands.put_first(jobs)

    def _send_later(self, job: OwnedJob) -> None:
        """Send a job's commands again once its row may be unlocked; other jobs do not wait."""
        log.warning("a row is locked, will try again: job %s", job.record.public_id)
        self._under_way += 1

        def again() -> None:
            self._put_back([job], unsure=True)
            self._commit_ended()

        asyncio.get_running_loop().call_later(LOCKED_PAUSE_SECONDS, again)

    async def _commit_contended(self, contended: list[OwnedJob]) -> bool:
        """Commit what lost its compare-and-set again and again, each under its job's lock.

        Another process writes to the job all the time, and the job is still this worker's: only a
        decision under the lock is sure to be written.
        """
        for number, job in enumerate(contended):
            sent_at = lease_now()
            try:
                async with asyncio.timeout(LOCK_SECONDS):
                    outcome = await self._commit_locked(job, time.monotonic())
            except TimeoutError:
                self._send_later(job)
                continue
            except HoldfastError as error:
                self._failed(error)
                self._put_back([job], unsure=True)
                self._put_back(contended[number + 1 :])
                return False
            self._succeeded()
            self.meters.committed(1)
            self._apply_outcome(job, outcome, sent_at)
        return True

    async def _commit_locked(self, job: OwnedJob, now: float) -> Outcome:
        commands = job.outbox.commands[: job.outbox.in_flight]
        decided = job.outbox.changes

        def decide_on(current: Job, _: Sequence[LoggedEvent]) -> Sequence[Change]:
            nonlocal decided
            # Refused, or invalid by now: it is decided again on this record, and reported then.
            try:
                changes, refused = _decide_in_order(job, current, commands, now)
            except BadData:
                return []
            decided = changes if refused is None else []
            return decided

        outcome = await self.store.commit_locked(job.record.id, decide_on)
        job.outbox.changes = decided
        return outcome

    async def _settle_unsure(self, job: OwnedJob) -> None:
        """Find out, before it is decided again, whether what was asked for had been written.

        By its request_id, and before: the record that others have shown us meanwhile may be the one
        that it led to, and a step decided upon that would be a second one.
        """
        outbox = job.outbox
        after, outbox.unsure_since = outbox.unsure_since or 0, None
        try:
            events = await self.store.events(job.record.id, after=after)
            current = (await self.store.get([job.record.id]))[0]
        except HoldfastError as error:
            outbox.unsure_since = after
            log.warning("it is unknown whether a write was committed, will check again: %s", error)
            return
        landed = {event.request_id for event in events} - {None}
        written = [at for at, one in enumerate(outbox.commands, 1) if one.request_id in landed]
        if written and current is not None:
            job.learn(current)
            self._strike_written(job, written[-1])


def _decide_in_order(
    job: OwnedJob, record: Draft, commands: Iterable[c.Command], now: float
) -> tuple[list[Change], tuple[c.Command, Refusal] | None]:
    """Decide commands, each upon the one before; also which one is refused, and why. Pure."""
    changes: list[Change] = []
    for command in commands:
        decision = decide(record, _make_start(job, now) if command is START else command)
        if type(decision) is Change:
            if decision.submits:
                decision = with_correlation(decision, job.claimed.correlation_id)
            changes.append(decision)
            record = decision.next
        elif type(decision) is Refusal:
            return [], (command, decision)
    return changes, None


def _make_start(job: OwnedJob, now: float) -> c.Start:
    """Make the command for a start, when it really was; `now` is by the monotonic clock."""
    return c.Start(actor=job.actor, ago=_measure_start(job, now), network=job.network)


def _measure_start(job: OwnedJob, now: float) -> int:
    """Return how many microseconds ago a job was started.

    A start that waited long for its commit is dated at worst later than it was: else its lease
    would be over before it is written.
    """
    return min(int((now - job.started_at) * 1e6), job.like.policy.running_lease // 2)


def _plan_end(job: OwnedJob, now: float) -> PlannedEnd | None:
    """Return the planned end of a job that was started and has succeeded, and no more than that.

    None where `decide` has to be asked: a record is known that is not the claim's, a write may have
    landed, a caller waits for an answer, or the result cannot be kept.
    """
    outbox, commands = job.outbox, job.outbox.commands
    if len(commands) != 2 or commands[0] is not START or not is_plain_success(commands[1]):
        return None
    if job.known is not None or job.gone or outbox.unsure_since is not None or outbox.asked:
        return None
    claimed, plan = job.claimed, job.claimed.group.plan
    if plan is None:
        return None
    ago, floor = _measure_start(job, now), claimed.updated_at
    with suppress(BadData):
        return end_by_plan(plan, claimed.id, commands[1].body, ago=ago, floor=floor)
    return None


def _holds_already(job: OwnedJob, current: Job) -> bool:
    """Return whether the end of an attempt had been written before, and only its reply was lost.

    It is enough to look at the last command: all are written together, and it ended the attempt.
    """
    commands = job.outbox.commands
    last = commands[-1] if commands else START
    if last is START or is_owner(current, job.actor):
        return False
    return type(decide(current, last)) is Unchanged


def _note_lease(job: OwnedJob, sent_at: float) -> None:
    """Take note of the lease that a commit granted, counted from when it was sent."""
    for change in job.outbox.changes:
        lease = change.event.lease_expires_at
        # An instant is the lease as it was; only a span was granted now.
        if type(lease) is After:
            job.prove(sent_at + lease.micros / 1e6, change.event.rev)
