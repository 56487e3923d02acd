"""The desk: where a worker's commands wait, are decided, and go out together.

While one commit is under way the next gathers: large batches under load, no wait when idle, no
timers to tune. A full batch does not wait for that: it leaves beside the other. A command is
decided when it leaves, on the record that the last commit confirmed; so the start and the end of a
short job leave as one row update with two events.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from msgspec import Struct

from holdfast.errors import BadData, HoldfastError
from holdfast.flow.finish import dead_letter
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide, is_owner
from holdfast.lifecycle.job import Change, Draft, Job, LoggedEvent, Refusal, Unchanged
from holdfast.lifecycle.linked import with_correlation
from holdfast.lifecycle.rebase import REBASES
from holdfast.lifecycle.states import OWNED
from holdfast.lifecycle.times import After
from holdfast.points import reach
from holdfast.ports import Committed, Lost, Outcome, Rejected, Store
from holdfast.services.held import START, Held
from holdfast.services.lease_clock import lease_now
from holdfast.telemetry import Meters

log = logging.getLogger(__name__)

BATCH = 500
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 5.0
LOCK_SECONDS = 2.0
"""How long one job's lock is waited for while others' commands wait behind it."""
LOCKED_PAUSE_SECONDS = 0.5
"""How long a job rests whose row another transaction keeps locked, before it is tried again."""


ON_THE_WAY = frozenset({c.Start, c.Step, c.Progress, c.Heartbeat, c.Wait})
"""What a handler that runs may ask for; everything else is an attempt's end."""
_ALONE = frozenset({c.Heartbeat, c.CorrectTerms})
GONE = Refusal(code="lease_lost", message="the job is no longer this attempt's")


class Listener(Protocol):
    """Who is told what became of a job's commands; called on the event loop."""

    def confirmed(self, held: Held) -> None:
        """All that was posted so far is written, or held already."""

    def lost(self, held: Held, why: str) -> None:
        """The job is no longer this worker's: nothing more will be written for it."""

    def substituted(self, held: Held, command: c.Command, error: BaseException) -> None:
        """The end of an attempt cannot be written: the job ends by this command instead."""


class Sent(Struct, frozen=True, gc=False):
    """What one commit carries of one job."""

    held: Held
    changes: list[Change]
    commands: int


class Desk:
    """Takes commands from one event loop and commits them in batches, two at most at a time."""

    def __init__(self, store: Store, listener: Listener, meters: Meters) -> None:
        """Write to a store, and tell a listener."""
        self._store = store
        self._listener = listener
        self._meters = meters
        self._waiting: list[Held] = []
        self._under_way = 0
        self._some = asyncio.Event()
        """Something waits."""
        self._many = asyncio.Event()
        """A full batch waits."""
        self._closing = False
        self.trouble: str | None = None
        """What keeps commits from being written, while it does."""

    def post(self, held: Held, *commands: c.Command) -> None:
        """Have commands written, in order, after those already posted for the job."""
        if not held.gone:
            held.commands += commands
            self._list(held)

    async def ask(self, held: Held, command: c.Command) -> Refusal | None:
        """Have a command written and wait for it; tells why the law does not allow it now.

        Give it a request_id: whether it was written can then be told even if the reply was lost.
        """
        if held.gone:
            return GONE
        answer: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        held.asked = {**(held.asked or {}), id(command): answer}
        self.post(held, command)
        return await answer

    def _list(self, held: Held) -> None:
        if not held.listed and not held.in_flight:
            held.listed = True
            self._waiting.append(held)
            self._some.set()
            if len(self._waiting) >= BATCH:
                self._many.set()

    def close(self) -> None:
        """End once all that was posted is written."""
        self._closing = True
        self._wake_all()

    def _wake_all(self) -> None:
        self._some.set()
        self._many.set()

    async def run(self) -> None:
        """Commit what waits, until closed and empty. Trouble is waited out, never the end."""
        writers = [
            asyncio.create_task(self._write(1, self._some)),
            # While this process decides and settles one full batch, the database writes another.
            asyncio.create_task(self._write(BATCH, self._many)),
        ]
        try:
            await asyncio.gather(*writers)
        finally:
            for writer in writers:
                writer.cancel()

    async def _write(self, enough: int, wake: asyncio.Event) -> None:
        """Commit a batch whenever so many jobs wait."""
        pause = FIRST_PAUSE_SECONDS
        while self._waiting or self._under_way or not self._closing:
            if len(self._waiting) < enough:
                wake.clear()
                await wake.wait()
            elif await self._flush():
                pause = FIRST_PAUSE_SECONDS
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _flush(self) -> bool:
        """Commit one batch; false where the store could not, and all of it waits still."""
        self._under_way += 1
        try:
            return await self._commit()
        finally:
            self._under_way -= 1
            if self._closing:
                self._wake_all()

    async def _commit(self) -> bool:
        batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        for held in batch:
            if held.unsure_since is not None and held.asked:
                await self._settle_unsure(held)
        sent_at, now = lease_now(), time.monotonic()
        sent = [one for held in batch if (one := self._decide(held, now)) is not None]
        contended = [one for one in sent if one.held.rebases > REBASES]
        if contended:
            sent = [one for one in sent if one.held.rebases <= REBASES]
            if not await self._commit_contended(contended):
                self._put_back(sent)
                return False
        if not sent:
            return True
        reach("commit.sending")
        try:
            outcomes = await self._store.commit([each for one in sent for each in one.changes])
        except HoldfastError as error:
            self._failed(error)
            self._put_back(sent, unsure=True)
            return False
        reach("commit.answered")
        self._worked()
        self._meters.committed(len(sent))
        self._settle_all(sent, outcomes, sent_at)
        return True

    async def _commit_contended(self, contended: list[Sent]) -> bool:
        """Commit what lost its compare-and-set again and again, each under its job's lock.

        Somebody else writes to the job all the time, and the job is still this worker's: only a
        decision that nobody can overtake is sure to be written.
        """
        for number, one in enumerate(contended):
            sent_at = lease_now()
            try:
                async with asyncio.timeout(LOCK_SECONDS):
                    locked, outcome = await self._commit_locked(one, time.monotonic())
            except TimeoutError:
                self._send_later(one)
                continue
            except HoldfastError as error:
                self._failed(error)
                self._put_back([one], unsure=True)
                self._put_back(contended[number + 1 :])
                return False
            self._worked()
            self._meters.committed(1)
            self._settle(locked, outcome, sent_at)
        return True

    async def _commit_locked(self, sent: Sent, now: float) -> tuple[Sent, Outcome]:
        held, decided = sent.held, sent.changes
        commands = held.commands[: sent.commands]

        def decide_on(current: Job, _: Sequence[LoggedEvent]) -> list[Change]:
            nonlocal decided
            # Refused, or invalid by now: the desk decides it again on this record, and reports it.
            try:
                changes, refused = _fold(held, current, commands, now)
            except BadData:
                return []
            decided = changes if refused is None else []
            return decided

        outcome = await self._store.commit_locked(held.record.id, decide_on)
        return Sent(held, decided, sent.commands), outcome

    def _decide(self, held: Held, now: float) -> Sent | None:
        """Decide a job's commands on its last confirmed record; None if nothing is to be sent."""
        held.listed = False
        if held.gone:
            return None
        commands = _together(held.commands)
        if held.unsure_since is not None and _holds_already(held, held.record):
            held.in_flight = len(held.commands)
            self._written(held)
            return None
        try:
            changes, refused = _fold(held, held.record, commands, now)
        except BadData as error:
            self._unfit(held, "validation_failed", "output", error)
            return None
        if refused is not None:
            self._refused(held, *refused)
            return None
        held.in_flight = len(commands)
        if not changes:
            self._written(held)
            return None
        return Sent(held, changes, held.in_flight)

    def _refused(self, held: Held, command: c.Command, refusal: Refusal) -> None:
        """Give a job up whose record does not allow what was to be said of it.

        Whoever asked for it is told instead, and the job goes on without it.
        """
        if held.mine and id(command) in (held.asked or ()):
            held.commands = [one for one in held.commands if one is not command]
            held.answer([command], refusal)
            if held.commands:
                self._list(held)
            return
        if held.mine:
            # The law and the worker disagree about a job that it holds: that is a bug.
            log.error("%s refused: %s (%s)", command.operation, refusal.message, refusal.code)
        self._lose(held, refusal.message)

    def _failed(self, error: HoldfastError) -> None:
        self.trouble = str(error)
        self._meters.store_error(error.code)
        log.warning("commit failed, will try again: %s", error)

    def _worked(self) -> None:
        if self.trouble is not None:
            self.trouble = None
            log.warning("commits are written again")

    def _put_back(self, sent: Iterable[Sent], *, unsure: bool = False) -> None:
        """Keep what could not be written; `unsure` whether it was: repeating it is safe."""
        later, self._waiting = self._waiting, []
        for one in sent:
            one.held.in_flight = 0
            if unsure and one.held.unsure_since is None:
                one.held.unsure_since = one.changes[0].record.rev
            self._list(one.held)
        self._waiting += later

    def _send_later(self, sent: Sent) -> None:
        """Send a job's commands again once its row may no longer be locked; the others go on."""
        log.warning("a row is locked, will try again: job %s", sent.held.record.public_id)
        self._under_way += 1

        def again() -> None:
            self._under_way -= 1
            self._put_back([sent], unsure=True)
            if self._closing:
                self._wake_all()

        asyncio.get_running_loop().call_later(LOCKED_PAUSE_SECONDS, again)

    async def _settle_unsure(self, held: Held) -> None:
        """Find out, before it is decided again, whether what was asked for had been written.

        By its request_id, and before: the record that others have shown us meanwhile may be the one
        that it led to, and a step decided upon that would be a second one.
        """
        after, held.unsure_since = held.unsure_since or 0, None
        try:
            events = await self._store.events(held.record.id, after=after)
            current = (await self._store.get([held.record.id]))[0]
        except HoldfastError as error:
            held.unsure_since = after
            log.warning("it could not be told whether a write had landed: %s", error)
            return
        landed = {event.request_id for event in events} - {None}
        written = [at for at, one in enumerate(held.commands, 1) if one.request_id in landed]
        if written and current is not None:
            held.learn(current)
            held.in_flight = written[-1]
            self._written(held)

    def _settle_all(self, sent: list[Sent], outcomes: list[Outcome], sent_at: float) -> None:
        at = -1
        for one in sent:
            # A job's changes are written all or none: the last outcome is that of each.
            at += len(one.changes)
            self._settle(one, outcomes[at], sent_at)

    def _settle(self, sent: Sent, outcome: Outcome, sent_at: float) -> None:
        held = sent.held
        if held.gone:
            # It was given up meanwhile, and what was posted for it is struck.
            return
        if type(outcome) is Committed:
            self._accepted(sent, outcome.job, sent_at)
        elif type(outcome) is Lost:
            if outcome.current is not None and _holds_already(held, outcome.current):
                self._accepted(sent, outcome.current, sent_at)
                return
            held.in_flight = 0
            self._missed(sent, outcome.current)
        elif isinstance(outcome, Rejected) and outcome.busy:
            self._send_later(sent)
        else:
            held.in_flight = 0
            refusal = HoldfastError(f"the store refused it: {outcome}")
            self._unfit(held, "infrastructure_failure", "commit", refusal)

    def _accepted(self, sent: Sent, job: Job, sent_at: float) -> None:
        held = sent.held
        held.rebases = 0
        held.learn(job)
        written = [change.event.type for change in sent.changes]
        self._meters.written(job.task, job.queue, *written)
        # Of a job that has ended there is no lease to be proven.
        if job.state in OWNED:
            _prove(sent, sent_at)
        self._written(held)

    def _written(self, held: Held) -> None:
        """Strike what a commit carried, or found to hold already."""
        written, held.commands = held.commands[: held.in_flight], held.commands[held.in_flight :]
        held.in_flight = 0
        held.unsure_since = None
        if not held.commands and not held.mine:
            held.gone = True
        held.answer(written, None)
        if held.commands:
            self._list(held)
            return
        held.tell_confirmed()
        self._listener.confirmed(held)

    def _missed(self, sent: Sent, current: Job | None) -> None:
        """Answer a lost compare-and-set: decide anew where the job is still this attempt's.

        However often: after `REBASES` misses it is written under the job's lock.
        """
        held = sent.held
        held.rebases += 1
        if current is None:
            self._lose(held, "the job is gone")
        elif sent.changes and current.rev == sent.changes[0].record.rev:
            self._lose(held, "its lease has passed")
        else:
            # Also where it is no longer mine: a repeat of what already holds is success.
            held.learn(current)
            self._list(held)

    def _unfit(self, held: Held, code: str, stage: str, error: HoldfastError) -> None:
        """Do without what cannot be written: told to whoever asked for it, else it was the end."""
        on_the_way = [one for one in held.commands if type(one) in ON_THE_WAY]
        if not on_the_way or len(on_the_way) < len(held.commands):
            self._substitute(held, code, stage, error)
            return
        log.error("job %s: %s", held.record.public_id, error)
        kept: list[c.Command] = [one for one in held.commands if one is START]
        if len(kept) == len(held.commands):
            self._lose(held, str(error))
            return
        held.answer(held.commands, Refusal(code=error.code, message=str(error)))
        held.commands = kept
        if kept:
            self._list(held)

    def _substitute(self, held: Held, code: str, stage: str, error: BaseException) -> None:
        """End a job whose end cannot be written by saying that, once."""
        log.error("job %s: %s", held.record.public_id, error)
        if held.substituted:
            self._lose(held, str(error))
            return
        held.substituted = True
        last = dead_letter(held.record, held.actor, code, stage, error)
        held.answer(held.commands, GONE)
        held.commands = [*(one for one in held.commands if one is START), last]
        self._list(held)
        self._listener.substituted(held, last, error)

    def drop(self, held: Held) -> None:
        """Write nothing more for a job; whoever waits for it is told."""
        held.gone = True
        held.answer(held.commands, GONE)
        held.commands.clear()
        held.in_flight = 0
        held.tell_confirmed()

    def _lose(self, held: Held, why: str) -> None:
        self.drop(held)
        self._listener.lost(held, why)


def _fold(
    held: Held, record: Draft, commands: Iterable[c.Command], now: float
) -> tuple[list[Change], tuple[c.Command, Refusal] | None]:
    """Decide commands, each upon the one before; also which one is refused, and why. Pure."""
    changes: list[Change] = []
    for command in commands:
        said = held.start_command(now) if command is START else command
        decision = decide(record, said)
        if type(decision) is Change:
            if decision.submits:
                decision = with_correlation(decision, held.claimed.correlation_id)
            changes.append(decision)
            record = decision.next
        elif type(decision) is Refusal:
            return [], (command, decision)
    return changes, None


def _together(commands: list[c.Command]) -> list[c.Command]:
    """Return the commands of a job that leave first; one that folds with nothing leaves alone."""
    for command in commands:
        if type(command) in _ALONE:
            return commands[: commands.index(command) or 1]
    return commands


def _holds_already(held: Held, current: Job) -> bool:
    """Whether what ends an attempt had been written before: then its reply was lost.

    The last command tells for all: they are written together, and it is what ended the attempt.
    """
    last = held.commands[-1] if held.commands else START
    if last is START or is_owner(current, held.actor):
        return False
    return type(decide(current, last)) is Unchanged


def _prove(sent: Sent, sent_at: float) -> None:
    """Take note of the lease that a commit granted, counted from when it was sent."""
    for change in sent.changes:
        lease = change.event.lease_expires_at
        # An instant is the lease as it was; only a span was granted now.
        if type(lease) is After:
            sent.held.prove(sent_at + lease.micros / 1e6, change.event.rev)
