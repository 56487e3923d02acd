"""The reasons why a job stands where it stands: a closed set, each with its facts and a sentence.

Times are the store's microseconds. `flow.why` finds the reason; nothing here reads a store.
"""

from __future__ import annotations

import shlex
from typing import TypeAlias

from msgspec import Struct

from holdfast.flow.phrases import colon, count, span, when
from holdfast.lifecycle.job import MISMATCH, RESOLVE, SLEEP, JobId
from holdfast.lifecycle.signals import signals_of
from holdfast.lifecycle.states import Cancel, Letter, State
from holdfast.lifecycle.times import SECOND


class Because(Struct, frozen=True, kw_only=True, tag_field="code"):
    """One reason. Its code is stable, its sentence is for a person."""

    @property
    def code(self) -> str:
        """The stable name of the reason."""
        return str(self.__struct_config__.tag)

    def say(self, now: int) -> str:
        """Tell it in a sentence, as of the store's clock."""
        raise NotImplementedError

    def advise(self, job_id: str) -> str | None:
        """Return what to do about it, with the command; None where waiting is right."""
        return None


class Said(Struct, frozen=True, kw_only=True):
    """Who did it, when, and with what words."""

    by: str
    at: int
    cause: str | None = None


class Failure(Struct, frozen=True, kw_only=True):
    """What an attempt failed by: an error, or (without a code) the loss of its owner."""

    error_code: str | None
    error: str | None
    """Type and message, shortened; None if nothing was told or retention erased it."""
    cause: str | None
    attempt: int
    at: int
    by: str


class Hold(Struct, frozen=True, kw_only=True):
    """One hold on a job, and who put it there."""

    name: str
    put: Said | None = None


class Child(Struct, frozen=True, kw_only=True):
    """A child that has not ended."""

    id: JobId
    job_id: str
    task: str
    state: State


class Seen(Struct, frozen=True, kw_only=True):
    """A worker as it was last seen."""

    name: str
    host: str
    pid: int
    seen_at: int
    stopped_at: int | None
    live: bool


class Ended(Because, frozen=True, kw_only=True, tag="ended"):
    """It has its outcome; nothing more happens to it."""

    state: State
    at: int
    ended: Said | None
    cancelled: Said | None
    """Who asked for the cancel that its owner carried out."""
    rule: str | None
    """By which it was denied."""
    error_code: str | None
    error: str | None
    attempts: int
    stage: str | None
    kill: str | None
    last_owner: str | None
    letter: Letter | None
    settled: Said | None
    """Who redrove or discarded the dead letter last."""
    redriven_as: str | None
    retried_as: str | None = None
    """The new job that is the next try of this one (A16)."""
    undone_by: str | None = None
    """The job that undoes it, or has (B28)."""
    undoing: State | None = None
    """Where that one stands; None if it is gone."""
    undone: Said | None = None

    def say(self, now: int) -> str:
        """Tell the outcome, and what became of its dead letter."""
        parts = [f"{self.state}{_said(self.ended, now)}"]
        if self.cancelled is not None:
            parts.append(f"its cancel was requested{_said(self.cancelled, now)}")
        if self.rule is not None:
            parts.append(f"rule {self.rule!r}")
        if self.error_code is not None:
            stage = f" at stage {self.stage}" if self.stage else ""
            parts.append(f"error {self.error_code}{stage}{colon(self.error)}")
        parts.append(f"after {count(self.attempts, 'attempt')}")
        if self.kill == "unconfirmed":
            parts.append(f"its owner {self.last_owner} was lost, so its kill is unconfirmed")
        if self.letter is not None:
            made = f" as {self.redriven_as}" if self.redriven_as else ""
            parts.append(f"its dead letter is {self.letter}{made}{_said(self.settled, now)}")
        if self.retried_as is not None:
            parts.append(f"tried again as {self.retried_as}")
        if self.undone is not None:
            parts.append(f"undone by {self.undone_by}{_said(self.undone, now)}")
        elif self.undone_by is not None:
            parts.append(f"its compensation {self.undone_by} is {self.undoing or 'gone'}")
        return "; ".join(parts)

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        if self.letter is Letter.OPEN:
            return f"fix the cause, then: {_command('redrive', job_id)}"
        if self.error_code == "address_blocked":
            return "if this address may be called: serve with --webhooks-allow NETWORK"
        return None


class NewerVersion(Because, frozen=True, kw_only=True, tag="newer_version"):
    """A newer Holdfast wrote its state."""

    def say(self, now: int) -> str:
        """Tell what to do."""
        return "its state was written by a newer version of Holdfast; upgrade to read it"

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        return "upgrade Holdfast here"


class AwaitsAdmission(Because, frozen=True, kw_only=True, tag="awaits_admission"):
    """It is accepted and not yet let into its queue."""

    since: int

    def say(self, now: int) -> str:
        """Tell since when."""
        return f"waits for admission by a scheduler, submitted {when(self.since, now)}"


class Held(Because, frozen=True, kw_only=True, tag="held"):
    """Somebody keeps it from being claimed."""

    holds: tuple[Hold, ...]

    def say(self, now: int) -> str:
        """Tell each hold."""
        return f"held by {', and by '.join(_hold(hold, now) for hold in self.holds)}"

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        return "; ".join(_command("unhold", job_id, "--name", one.name) for one in self.holds)


class QueuePaused(Because, frozen=True, kw_only=True, tag="queue_paused"):
    """No job of its queue is claimed."""

    queue: str
    paused: Said

    def say(self, now: int) -> str:
        """Tell who paused it."""
        return f"queue {self.queue!r} was paused{_said(self.paused, now)}"

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        return _command("queues", "resume", self.queue)


class NotDue(Because, frozen=True, kw_only=True, tag="not_due"):
    """Its time has not come."""

    until: int
    set: Said | None

    def say(self, now: int) -> str:
        """Tell until when, and who said so."""
        word = f", as set{_said(self.set, now)}" if self.set else ""
        return f"not due until {when(self.until, now)}{word}"

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        return f"to run it now: {_command('reschedule', job_id, '--in', '0')}"


class Backoff(Because, frozen=True, kw_only=True, tag="backoff"):
    """An attempt failed, and the next one waits."""

    until: int
    failure: Failure
    failures: int
    max_attempts: int

    def say(self, now: int) -> str:
        """Tell which failure it was."""
        which = f"failure {self.failures} of at most {self.max_attempts}"
        return f"backs off until {when(self.until, now)} after {which}: {tell(self.failure, now)}"

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        return f"to try it now: {_command('reschedule', job_id, '--in', '0')}"


class NoWorker(Because, frozen=True, kw_only=True, tag="no_worker"):
    """No live worker serves its queue."""

    queue: str
    last_seen: tuple[Seen, ...]
    """Workers that did, the most recently seen first."""

    def say(self, now: int) -> str:
        """Tell who served it last."""
        none = f"no live worker serves queue {self.queue!r}"
        if not self.last_seen:
            return f"{none}, and none did in the last week"
        return f"{none}; last seen: {', '.join(_seen(one, now) for one in self.last_seen)}"

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        return f"start one: {_command('worker', 'MODULE:APP', '--queues', self.queue)}"


class NoCapableWorker(Because, frozen=True, kw_only=True, tag="no_capable_worker"):
    """Workers serve its queue, and none has all it needs."""

    queue: str
    needs: tuple[str, ...]
    missing: tuple[str, ...]
    """What the worker lacks that comes closest."""
    closest: str
    workers: int

    def say(self, now: int) -> str:
        """Tell what is missing."""
        there = f"queue {self.queue!r} has {count(self.workers, 'live worker')}"
        lacks = f"{self.closest} comes closest and lacks {', '.join(self.missing)}"
        return f"{there}, none with all it needs ({', '.join(self.needs)}); {lacks}"

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        start = _command("worker", "MODULE:APP", "--queues", self.queue)
        return f"start one: {start} --capabilities {shlex.quote(','.join(self.needs))}"


class TaskUnknown(Because, frozen=True, kw_only=True, tag="task_unknown"):
    """Workers serve its queue, and none has its task registered, or none in its version."""

    queue: str
    task: str
    version: str | None = None
    """The version that the job was submitted with."""
    versions: tuple[str, ...] = ()
    """In which other versions live workers have the task."""
    workers: tuple[str, ...]

    def say(self, now: int) -> str:
        """Name the task, and what to start."""
        who = ", ".join(self.workers)
        what = f"task {self.task!r}" + (f" version {self.version!r}" if self.version else "")
        there = f" (there is version {', '.join(self.versions)})" if self.versions else ""
        code = "with that version of the code" if self.version else "whose app registers it"
        return (
            f"no live worker of queue {self.queue!r} has {what}{there}: start one {code}; "
            f"live workers of the queue: {who}"
        )

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        return f"start a worker whose app has the task {self.task!r}"


class Ready(Because, frozen=True, kw_only=True, tag="ready"):
    """It is due and workers are there: one claims it as soon as it has room."""

    since: int | None
    workers: tuple[str, ...]
    slots: int
    under_way: int
    """Jobs of its queue that are claimed or running now."""
    others: int
    """Other jobs of its queue that could go first: more than really do."""
    cpus: int | None
    memory_mb: int | None
    of_tenant: bool = False
    """Only its tenant's jobs were counted; others' may go before it, too."""

    def say(self, now: int) -> str:
        """Tell how busy the workers are."""
        due = "" if self.since is None else f" since {when(self.since, now)}"
        asks = [f"{self.cpus} CPUs"] if self.cpus else []
        asks += [f"{self.memory_mb} MB"] if self.memory_mb else []
        needs = f"; it asks for {' and '.join(asks)}" if asks else ""
        whose = " of its tenant" if self.of_tenant else ""
        return (
            f"due{due}; its queue has {count(len(self.workers), 'live worker')} with "
            f"{count(self.slots, 'slot')}, {count(self.under_way, 'job')}{whose} under way and "
            f"at most {count(self.others, 'job')}{whose} that could go first{needs}"
        )


class Claimed(Because, frozen=True, kw_only=True, tag="claimed"):
    """A worker holds it and has not said that it started."""

    worker: str
    since: int | None
    until: int
    start_by: int | None
    seen: Seen | None

    def say(self, now: int) -> str:
        """Tell who holds it until when."""
        since = "" if self.since is None else f" since {when(self.since, now)}"
        limit = f", must start by {when(self.start_by, now)}" if self.start_by else ""
        lease = f"held by {self.worker}{since} until {when(self.until, now)}{limit}, not started"
        return f"{lease}{_silent(self.seen, now)}"


class Running(Because, frozen=True, kw_only=True, tag="running"):
    """Its handler runs."""

    worker: str
    since: int
    lease_until: int
    time_out_at: int | None
    seen: Seen | None

    def say(self, now: int) -> str:
        """Tell under whom, since when, for how long at most."""
        runs = f"runs under {self.worker} since {when(self.since, now)}"
        limit = ""
        if self.time_out_at is not None:
            passed = "passed, its owner must end it" if self.time_out_at <= now else "at"
            limit = f"; time limit {passed} {when(self.time_out_at, now)}"
        return f"{runs}, lease until {when(self.lease_until, now)}{limit}{_silent(self.seen, now)}"


class CancelRequested(Because, frozen=True, kw_only=True, tag="cancel_requested"):
    """Its owner was asked to end it and has not yet."""

    mode: Cancel
    asked: Said | None
    worker: str

    def say(self, now: int) -> str:
        """Tell who asked."""
        asked = f"a {self.mode} cancel was requested{_said(self.asked, now)}"
        return f"{asked}; {self.worker} has not ended it yet"

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        return f"if it does not stop: {_command('cancel', job_id, '--hard')}"


class Unkillable(Because, frozen=True, kw_only=True, tag="unkillable"):
    """A kill took no effect: it runs on until it ends by itself."""

    said: Said

    def say(self, now: int) -> str:
        """Tell since when."""
        told = f"unkillable: a kill took no effect, as was said{_said(self.said, now)}"
        return f"{told}; it ends by itself or with its worker"

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        return "stop its worker; for the next time, declare the task with isolate='process'"


class Overdue(Because, frozen=True, kw_only=True, tag="overdue"):
    """Something has run out, and a reconciler has not yet looked at it."""

    what: str
    """`lease`, `epoch`, `deadline`, `start_timeout`, `timer` or `signal`."""
    since: int | None
    not_before: int | None
    """Until then its own host may come back for it."""
    worker: str | None
    seen: Seen | None

    def say(self, now: int) -> str:
        """Tell what ran out."""
        since = "" if self.since is None else f" {when(self.since, now)}"
        told = f"{_OVERDUE[self.what]}{since}"
        if self.worker is not None:
            told += f" (owner {self.worker})"
        if self.not_before is not None and self.not_before > now:
            told += f"; its own host may take it back until {when(self.not_before, now)}"
        return f"{told}; waits for a reconciler{_silent(self.seen, now)}"

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        return "if this stays: start a worker, or holdfast reconcile"


_OVERDUE = {
    "lease": "its lease passed",
    "epoch": "it was claimed before the epoch was raised",
    "deadline": "its deadline passed",
    "start_timeout": "its time to start passed",
    "timer": "its wait ran out",
    "signal": "the signal it waits for has come",
    "children": "the children it waits for have ended",
}


class Waiting(Because, frozen=True, kw_only=True, tag="waiting"):
    """It is parked on a signal, a timer, or whichever comes first."""

    signal: str
    since: int | None
    until: int | None

    def say(self, now: int) -> str:
        """Tell what for."""
        since = "" if self.since is None else f" since {when(self.since, now)}"
        until = "without a limit" if self.until is None else f"until {when(self.until, now)}"
        what = "its sleep to end" if self.signal == SLEEP else _signals(self.signal)
        return f"waits for {what}{since}, {until}"

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        if self.signal.startswith(RESOLVE):
            resolve = _command("resolve", job_id, self.signal.removeprefix(RESOLVE))
            return f"find out if it took effect, then: {resolve} --happened or --not-happened"
        if self.signal == SLEEP:
            return None
        names = sorted(signals_of(self.signal))
        return ", or: ".join(_command("signal", job_id, name) for name in names)


class StepsDiffer(Because, frozen=True, kw_only=True, tag="step_mismatch"):
    """It is parked: the code that ran it does not have the steps that are recorded."""

    parked: Said | None
    """By which worker, when, and which step is missing."""
    until: int | None
    """When it looks again."""

    def say(self, now: int) -> str:
        """Name the step, and what to do."""
        what = (self.parked and self.parked.cause) or "its recorded steps are not in the code"
        by = "" if self.parked is None else f" by {self.parked.by} {when(self.parked.at, now)}"
        again = "" if self.until is None else f"; it looks again {when(self.until, now)}"
        return f"parked{by}, at no cost of a try: {what}{again}"

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        look = _command("signal", job_id, MISMATCH)
        return f"deploy code that has the step; to let it look now: {look}"


class ChildElsewhere(Because, frozen=True, kw_only=True, tag="child_elsewhere"):
    """It is parked until children of the job that it continues from have ended."""

    since: int | None
    until: int | None
    """When it looks again."""

    def say(self, now: int) -> str:
        """Tell for whom."""
        since = "" if self.since is None else f" since {when(self.since, now)}"
        again = "" if self.until is None else f"; it looks again {when(self.until, now)}"
        return f"waits{since} until children of the job that it resumes have ended{again}"


class WaitsForChildren(Because, frozen=True, kw_only=True, tag="waits_for_children"):
    """It is parked until children have ended."""

    live: int
    """How many have not."""
    more: bool
    """There are more than were counted."""
    children: tuple[Child, ...]
    """The first of them."""
    since: int | None

    def say(self, now: int) -> str:
        """Tell for whom."""
        since = "" if self.since is None else f" since {when(self.since, now)}"
        least = "more than " if self.more else ""
        number = "1 child" if self.live == 1 else f"{least}{self.live:,} children"
        named = ", ".join(f"{one.job_id} ({one.task}, {one.state})" for one in self.children)
        others = ", …" if self.live > len(self.children) else ""
        return f"waits for {number}{since}: {named}{others}"

    def advise(self, job_id: str) -> str | None:
        """Name the command."""
        return _command("why", self.children[0].job_id) if self.children else None


class Quarantined(Because, frozen=True, kw_only=True, tag="quarantined"):
    """It is damaged, and set aside: not claimed and not swept until it is repaired and released."""

    internal_id: JobId
    """What the commands of the quarantine take."""
    since: int
    damage: str

    def say(self, now: int) -> str:
        """Describe the damage."""
        return (
            f"quarantined since {when(self.since, now)}, so it is not claimed and not swept: "
            f"{self.damage}"
        )

    def advise(self, job_id: str) -> str | None:
        """Name the commands that look, repair and release."""
        return (
            "look with `holdfast verify`, repair it (`holdfast rebuild --yes` restores a row from "
            f"its events), then: {_command('quarantine', 'release', str(self.internal_id))}"
        )


class ClockSetBack(Because, frozen=True, kw_only=True, tag="clock_set_back"):
    """The machine's clock was set back; the store's goes on from where it was, and runs slower."""

    at: int
    by: int
    ahead: int

    def say(self, now: int) -> str:
        """Tell it in a sentence."""
        return (
            f"the clock of the store's machine was set back by {self.by // SECOND:,} s "
            f"{when(self.at, now)}; the store's clock went on, {self.ahead // SECOND:,} s ahead of "
            "it, and loses a tenth of the time until the two agree"
        )


class TimesAhead(Because, frozen=True, kw_only=True, tag="times_ahead"):
    """The job's times were set by a clock that was ahead of the store's present one."""

    by: int

    def say(self, now: int) -> str:
        """Tell it in a sentence."""
        return (
            f"its last event was written by a clock that was {span(self.by)} ahead, and so are "
            "its due time and its lease; run `holdfast reconcile --repair-times`"
        )


Reason: TypeAlias = (
    Ended
    | NewerVersion
    | AwaitsAdmission
    | Held
    | QueuePaused
    | NotDue
    | Backoff
    | NoWorker
    | NoCapableWorker
    | TaskUnknown
    | Ready
    | Claimed
    | Running
    | CancelRequested
    | Unkillable
    | Overdue
    | Waiting
    | WaitsForChildren
    | StepsDiffer
    | ChildElsewhere
    | Quarantined
    | ClockSetBack
    | TimesAhead
)


def tell(failure: Failure, now: int) -> str:
    """Tell a failure in half a sentence."""
    attempt = f"attempt {failure.attempt}"
    if failure.error_code is None:
        told = f"{attempt} was lost by {failure.by}{colon(failure.cause)}"
    else:
        told = f"{failure.error_code} in {attempt} by {failure.by}{colon(failure.error)}"
    return f"{told}, {when(failure.at, now)}"


def _command(*words: str) -> str:
    return shlex.join(["holdfast", *words])


def _said(said: Said | None, now: int) -> str:
    return "" if said is None else f" {when(said.at, now)} by {said.by}{colon(said.cause)}"


def _hold(hold: Hold, now: int) -> str:
    return f"{hold.name!r}, put{_said(hold.put, now)}" if hold.put else repr(hold.name)


def _seen(worker: Seen, now: int) -> str:
    if worker.stopped_at is not None:
        return f"{worker.name}, ended {when(worker.stopped_at, now)}"
    return f"{worker.name} on {worker.host}, silent since {when(worker.seen_at, now)}"


def _silent(worker: Seen | None, now: int) -> str:
    return "" if worker is None or worker.live else f"; its worker is gone: {_seen(worker, now)}"


def _signals(wait_for: str) -> str:
    names = ", ".join(repr(name) for name in sorted(signals_of(wait_for)))
    return f"the signal {names}" if names == repr(wait_for) else f"one of the signals {names}"
