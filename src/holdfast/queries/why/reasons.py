"""The reasons why a job is in its state: a closed set, each with its facts and a sentence.

Times are the store's microseconds. `queries.why.why` finds the reason; nothing here reads a store.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from holdfast.lifecycle.record import MISMATCH, RESOLVE, SLEEP, JobId
from holdfast.lifecycle.routes import (
    ADAPTER_PREFIX,
    AGENT_PREFIX,
    COMMAND_QUEUES,
    RUNNER_PREFIX,
    is_runner_need,
)
from holdfast.lifecycle.signals import signals_of
from holdfast.lifecycle.states import CancelMode, Letter, State
from holdfast.lifecycle.times import SECOND
from holdfast.queries.why.facts import (
    Act,
    FailedAttempt,
    LiveChild,
    PlacedHold,
    SeenWorker,
    act_text,
    again_text,
    command,
    failure_text,
    seen_text,
    silent_text,
)
from holdfast.queries.why.phrases import (
    colon,
    count,
    cpu_text,
    describe_span,
    describe_time,
    memory_text,
    since,
)

ANSWER_FORM = '"…"'
"""The answer, in advice: it is JSON."""


class ReasonBase(Struct, frozen=True, kw_only=True, tag_field="code"):
    """One reason. Its code is stable, its sentence is for a person."""

    @property
    def code(self) -> str:
        return str(self.__struct_config__.tag)

    def sentence(self, now: int) -> str:
        """Describe it, as of the store's clock."""
        raise NotImplementedError

    def advice(self, job_id: str) -> str | None:
        """Return what to do about it, with the command; None where waiting is right."""
        return None


class Ended(ReasonBase, frozen=True, kw_only=True, tag="ended"):
    """It has its outcome; nothing more happens to it."""

    state: State
    at: int
    ended: Act | None
    cancelled: Act | None
    """Who asked for the cancel that its owner carried out."""
    rule: str | None
    """The rule that denied it."""
    error_code: str | None
    error: str | None
    attempts: int
    stage: str | None
    kill: str | None
    last_owner: str | None
    letter: Letter | None
    settled: Act | None
    """Who redrove or discarded the dead letter last."""
    redriven_as: str | None
    retried_as: str | None = None
    """The new job that is the next try of this one (A16)."""
    undone_by: str | None = None
    """The job that undoes it, or has undone it (B28)."""
    undoing: State | None = None
    """The state of that job; None if it is gone."""
    undone: Act | None = None

    def sentence(self, now: int) -> str:
        parts = [f"{self.state}{act_text(self.ended, now)}"]
        if self.cancelled is not None:
            parts.append(f"its cancel was requested{act_text(self.cancelled, now)}")
        if self.rule is not None:
            parts.append(f"rule {self.rule!r}")
        if self.error_code is not None:
            stage = f" at stage {self.stage}" if self.stage else ""
            parts.append(f"error {self.error_code}{stage}{colon(self.error)}")
        parts.append(f"after {count(self.attempts, 'attempt')}")
        if self.kill == "unconfirmed":
            lost = "a bus cannot kill what it sent"
            if self.last_owner is not None:
                lost = f"its owner {self.last_owner} was lost"
            parts.append(f"{lost}, so its kill is unconfirmed")
        if self.letter is not None:
            made = f" as {self.redriven_as}" if self.redriven_as else ""
            parts.append(f"its dead letter is {self.letter}{made}{act_text(self.settled, now)}")
        if self.retried_as is not None:
            parts.append(f"tried again as {self.retried_as}")
        if self.undone is not None:
            parts.append(f"undone by {self.undone_by}{act_text(self.undone, now)}")
        elif self.undone_by is not None:
            parts.append(f"its compensation {self.undone_by} is {self.undoing or 'gone'}")
        return "; ".join(parts)

    def advice(self, job_id: str) -> str | None:
        if self.letter is Letter.OPEN:
            return f"fix the cause, then: {command('redrive', job_id)}"
        if self.error_code == "address_blocked":
            return "if this address may be called: serve with --webhooks-allow NETWORK"
        return None


class NewerVersion(ReasonBase, frozen=True, kw_only=True, tag="newer_version"):
    """A newer Holdfast wrote its state."""

    def sentence(self, now: int) -> str:
        return "its state was written by a newer version of Holdfast; upgrade to read it"

    def advice(self, job_id: str) -> str | None:
        return "upgrade Holdfast here"


class AwaitsAdmission(ReasonBase, frozen=True, kw_only=True, tag="awaits_admission"):
    """It is accepted and not yet admitted to its queue."""

    since: int

    def sentence(self, now: int) -> str:
        return f"waits for admission by a scheduler, submitted {describe_time(self.since, now)}"


class AwaitsApproval(ReasonBase, frozen=True, kw_only=True, tag="awaits_approval"):
    """A rule admits it only once people have approved it."""

    rule: str
    missing: int
    """How many people still have to approve it."""
    roles: tuple[str, ...]
    approved: tuple[Act, ...]
    """Who has."""
    since: int
    until: int | None
    """When it is too late; None: never."""

    def sentence(self, now: int) -> str:
        parts = [f"rule {self.rule!r} asks for {count(self.missing, 'more approval')}"]
        parts += [f"approved{act_text(one, now)}" for one in self.approved]
        if self.until is not None:
            parts.append(f"until {describe_time(self.until, now)}")
        return ", ".join(parts)

    def advice(self, job_id: str) -> str | None:
        roles = " or ".join(self.roles)
        return f"someone with role {roles} who did not submit it approves or denies it"


class AwaitsDecision(ReasonBase, frozen=True, kw_only=True, tag="awaits_decision"):
    """The rules have not decided on it: they ask an external kernel, or read the clock."""

    rule: str | None
    since: int
    kernel: str | None
    """The kernel that does not answer; None if it does, or none is asked."""
    first_failed_at: int | None
    tries: int
    error: str | None

    def sentence(self, now: int) -> str:
        if self.kernel is None:
            return f"waits for the decision of a scheduler by rule {self.rule!r}"
        since = describe_time(self.first_failed_at or self.since, now)
        return (
            f"waits for the policy kernel at {self.kernel}, which has not answered since {since}, "
            f"after {count(self.tries, 'request')}{colon(self.error)}"
        )

    def advice(self, job_id: str) -> str | None:
        return None if self.kernel is None else "see to the kernel, or change the policy"


class WaitsForUpload(ReasonBase, frozen=True, kw_only=True, tag="waits_for_upload"):
    """The upload that it names is not finalized."""

    upload: str
    state: str | None
    """None: there is no such upload."""
    since: int
    until: int | None
    """When the upload expires unless more is written; the job then ends."""

    def sentence(self, now: int) -> str:
        waits = f"waits for upload {self.upload}"
        if self.state is None:
            return f"{waits}, which is not there; the job is about to end"
        if self.until is None:
            return f"{waits}, which is {self.state}; the job is about to move"
        expires = describe_time(self.until, now)
        return f"{waits}, which is {self.state} and expires at {expires} unless more is written"

    def advice(self, job_id: str) -> str | None:
        if self.until is None:
            return None
        return f"finalize the upload (POST /v1/uploads/{self.upload}/finalize)"


class HeldJob(ReasonBase, frozen=True, kw_only=True, tag="held"):
    """Holds keep it from being claimed."""

    holds: tuple[PlacedHold, ...]

    def sentence(self, now: int) -> str:
        holds = [
            f"{hold.name!r}, put{act_text(hold.put, now)}" if hold.put else repr(hold.name)
            for hold in self.holds
        ]
        return f"held by {', and by '.join(holds)}"

    def advice(self, job_id: str) -> str | None:
        return "; ".join(command("unhold", job_id, "--name", one.name) for one in self.holds)


class QueuePaused(ReasonBase, frozen=True, kw_only=True, tag="queue_paused"):
    """No job of its queue is claimed."""

    queue: str
    paused: Act

    def sentence(self, now: int) -> str:
        return f"queue {self.queue!r} was paused{act_text(self.paused, now)}"

    def advice(self, job_id: str) -> str | None:
        return command("queues", "resume", self.queue)


class NotDue(ReasonBase, frozen=True, kw_only=True, tag="not_due"):
    """Its time has not come."""

    until: int
    set: Act | None

    def sentence(self, now: int) -> str:
        by = f", as set{act_text(self.set, now)}" if self.set else ""
        return f"not due until {describe_time(self.until, now)}{by}"

    def advice(self, job_id: str) -> str | None:
        return f"to run it now: {command('reschedule', job_id, '--in', '0')}"


class BacksOff(ReasonBase, frozen=True, kw_only=True, tag="backoff"):
    """An attempt failed, and the next one waits."""

    until: int
    failure: FailedAttempt
    failures: int
    max_attempts: int

    def sentence(self, now: int) -> str:
        which = f"failure {self.failures} of at most {self.max_attempts}"
        failure = failure_text(self.failure, now)
        return f"backs off until {describe_time(self.until, now)} after {which}: {failure}"

    def advice(self, job_id: str) -> str | None:
        return f"to try it now: {command('reschedule', job_id, '--in', '0')}"


class NoWorker(ReasonBase, frozen=True, kw_only=True, tag="no_worker"):
    """No live worker serves its queue."""

    queue: str
    last_seen: tuple[SeenWorker, ...]
    """Workers that did, the most recently seen first."""

    def sentence(self, now: int) -> str:
        none = f"no live worker serves queue {self.queue!r}"
        if not self.last_seen:
            return f"{none}, and none did in the last week"
        return f"{none}; last seen: {', '.join(seen_text(one, now) for one in self.last_seen)}"

    def advice(self, job_id: str) -> str | None:
        return f"start one: {command('worker', 'MODULE:APP', '--queues', self.queue)}"


class NoCapableWorker(ReasonBase, frozen=True, kw_only=True, tag="no_capable_worker"):
    """Workers serve its queue, but none has all it needs."""

    queue: str
    needs: tuple[str, ...]
    missing: tuple[str, ...]
    """What the closest of them lacks."""
    closest: str
    workers: int

    def sentence(self, now: int) -> str:
        there = f"queue {self.queue!r} has {count(self.workers, 'live worker')}"
        lacks = f"{self.closest} comes closest and lacks {', '.join(map(_need_text, self.missing))}"
        needs = ", ".join(map(_need_text, self.needs))
        return f"{there}, none with all it needs ({needs}); {lacks}"

    def advice(self, job_id: str) -> str | None:
        adapters = [one.removeprefix(ADAPTER_PREFIX) for one in self.needs if _is_adapter(one)]
        others = [one for one in self.needs if not _is_adapter(one)]
        flags = ["--capabilities", ",".join(others)] if others else []
        flags += ["--adapter", ",".join(adapters)] if adapters else []
        return f"start one: {command('worker', 'MODULE:APP', '--queues', self.queue, *flags)}"


class NoTopicWorker(ReasonBase, frozen=True, kw_only=True, tag="no_topic_worker"):
    """It was submitted by topic, and no live worker serves that topic."""

    topic: str
    queue: str
    """The queue of its pool; on a bus, the topic itself."""
    bus: bool = False
    """Its pool is a bus, which the bridge of that bus sends it to."""
    workers: int
    """Live workers of the queue; they do not have the task of that name."""
    last_seen: tuple[SeenWorker, ...] = ()
    """Workers that served it, the most recently seen first, if none does now."""

    def sentence(self, now: int) -> str:
        return f"no worker serves topic {self.topic!r}: {self._cause(now)}"

    def _cause(self, now: int) -> str:
        if self.workers:
            has = count(self.workers, "live worker")
            return f"queue {self.queue!r} has {has}, none with the task of that name"
        none = f"queue {self.queue!r} has no live worker"
        if self.bus:
            none = "no live bridge or worker of its bus has announced it"
        if not self.last_seen:
            return none
        return f"{none}; last seen: {', '.join(seen_text(one, now) for one in self.last_seen)}"

    def advice(self, job_id: str) -> str | None:
        if self.bus:
            return f"start the bridge of its bus, and a worker that subscribes to {self.topic}"
        start = command("worker", "MODULE:APP", "--queues", self.queue)
        return f"start one whose app has the task {self.topic!r}: {start}"


class NoCommandWorker(ReasonBase, frozen=True, kw_only=True, tag="no_command_worker"):
    """It is a command or an agent, and no live worker of its queue has a runner for it."""

    queue: str
    agent: bool = False
    """It is an agent, which needs a host that has its profile."""
    missing: tuple[str, ...]
    """What the closest worker lacks of what it needs; all of it where there is no worker."""
    workers: int
    """Live workers of the queue."""
    last_seen: tuple[SeenWorker, ...] = ()
    """Workers that served it, the most recently seen first, if none does now."""

    def sentence(self, now: int) -> str:
        there = f"queue {self.queue!r} has {count(self.workers, 'live worker')}"
        more = self._lacking(RUNNER_PREFIX)
        more += [f"profile {name!r}" for name in self._lacking(AGENT_PREFIX)]
        what = "agents" if self.agent else "commands"
        none = f"{there}, none that runs {what}{' with ' if more else ''}{' and '.join(more)}"
        if not self.last_seen:
            return none
        return f"{none}; last seen: {', '.join(seen_text(one, now) for one in self.last_seen)}"

    def advice(self, job_id: str) -> str | None:
        runners = self._lacking(RUNNER_PREFIX) or ["auto"]
        others = [name for name in self.missing if not is_runner_need(name)]
        flags = ["--commands", runners[0]]
        if self.queue not in COMMAND_QUEUES.values():
            flags += ["--command-queues", self.queue]
        if others:
            flags += ["--capabilities", ",".join(others)]
        start = command("worker", *flags)
        if profiles := self._lacking(AGENT_PREFIX):
            table = f"[agents.{profiles[0]}]"
            return f"start one on a host whose holdfast.toml has {table}: {start}"
        return f"start one: {start}"

    def _lacking(self, prefix: str) -> list[str]:
        return [one.removeprefix(prefix) for one in self.missing if one.startswith(prefix)]


class NoRoom(ReasonBase, frozen=True, kw_only=True, tag="no_room"):
    """It asks for more than any host that runs such jobs has, or has free."""

    cpus: int | None
    """What it asks for, of what there is too little."""
    memory_mb: int | None
    host: str
    """The host that comes closest."""
    host_cpus: int
    host_memory_mb: int
    """What that host has free; or in all, if no host is large enough."""
    ever: bool
    """Whether a host is large enough."""

    def sentence(self, now: int) -> str:
        there = []
        if self.cpus is not None:
            there.append(
                str(self.host_cpus) if self.memory_mb is None else cpu_text(self.host_cpus)
            )
        if self.memory_mb is not None:
            there.append(memory_text(self.host_memory_mb))
        needs, has = self._asked(), " and ".join(there)
        if self.ever:
            return f"needs {needs}, host {self.host} has {has} free"
        return f"needs {needs}; the largest host, {self.host}, has {has}"

    def _asked(self) -> str:
        asked = [cpu_text(self.cpus)] if self.cpus is not None else []
        asked += [memory_text(self.memory_mb)] if self.memory_mb is not None else []
        return " and ".join(asked)

    def advice(self, job_id: str) -> str | None:
        if self.ever:
            return None
        return f"start a worker on a host that has {self._asked()}"


class TaskUnknown(ReasonBase, frozen=True, kw_only=True, tag="task_unknown"):
    """Workers serve its queue, but none has its task registered, or none in its version."""

    queue: str
    task: str
    version: str | None = None
    """The version that the job was submitted with."""
    versions: tuple[str, ...] = ()
    """In which other versions live workers have the task."""
    workers: tuple[str, ...]

    def sentence(self, now: int) -> str:
        what = f"task {self.task!r}" + (f" version {self.version!r}" if self.version else "")
        there = f" (there is version {', '.join(self.versions)})" if self.versions else ""
        code = "with that version of the code" if self.version else "whose app registers it"
        return (
            f"no live worker of queue {self.queue!r} has {what}{there}: start one {code}; "
            f"live workers of the queue: {', '.join(self.workers)}"
        )

    def advice(self, job_id: str) -> str | None:
        return f"start a worker whose app has the task {self.task!r}"


class ReadyToClaim(ReasonBase, frozen=True, kw_only=True, tag="ready"):
    """It is due and workers are there: one claims it as soon as it has room."""

    since: int | None
    workers: tuple[str, ...]
    slots: int
    under_way: int
    """Jobs of its queue that are claimed or running now."""
    others: int
    """Other jobs of its queue that could go first: an upper bound."""
    cpus: int | None
    memory_mb: int | None
    of_tenant: bool = False
    """Only its tenant's jobs were counted; others' may go before it, too."""

    def sentence(self, now: int) -> str:
        asks = [cpu_text(self.cpus)] if self.cpus else []
        asks += [memory_text(self.memory_mb)] if self.memory_mb else []
        needs = f"; it asks for {' and '.join(asks)}" if asks else ""
        whose = " of its tenant" if self.of_tenant else ""
        return (
            f"due{since(self.since, now)}; its queue has {count(len(self.workers), 'live worker')} "
            f"with {count(self.slots, 'slot')}, {count(self.under_way, 'job')}{whose} under way "
            f"and at most {count(self.others, 'job')}{whose} that could go first{needs}"
        )


class NotStarted(ReasonBase, frozen=True, kw_only=True, tag="claimed"):
    """A worker has claimed it and has not reported its start."""

    worker: str
    since: int | None
    until: int
    start_by: int | None
    seen: SeenWorker | None

    def sentence(self, now: int) -> str:
        limit = f", must start by {describe_time(self.start_by, now)}" if self.start_by else ""
        lease = f"until {describe_time(self.until, now)}{limit}, not started"
        return f"held by {self.worker}{since(self.since, now)} {lease}{silent_text(self.seen, now)}"


class Running(ReasonBase, frozen=True, kw_only=True, tag="running"):
    """Its handler runs."""

    worker: str
    since: int
    lease_until: int
    time_out_at: int | None
    seen: SeenWorker | None
    network: str | None = None
    """The network that its box has, if any."""

    def sentence(self, now: int) -> str:
        runs = f"runs under {self.worker}{since(self.since, now)}"
        if self.network is not None:
            runs += f" with the network {self.network!r}"
        limit = ""
        if self.time_out_at is not None:
            passed = "passed, its owner must end it" if self.time_out_at <= now else "at"
            limit = f"; time limit {passed} {describe_time(self.time_out_at, now)}"
        until = describe_time(self.lease_until, now)
        return f"{runs}, lease until {until}{limit}{silent_text(self.seen, now)}"


class AsksQuestion(ReasonBase, frozen=True, kw_only=True, tag="asks_question"):
    """Its agent runs, and has asked a question that nobody has answered."""

    signal: str
    """What answers it."""
    question: str
    choices: tuple[str, ...] = ()
    since: int

    def sentence(self, now: int) -> str:
        choices = f" ({' / '.join(self.choices)})" if self.choices else ""
        return f"asks{since(self.since, now)}: {self.question}{choices}"

    def advice(self, job_id: str) -> str | None:
        return f"answer it: {command('signal', job_id, self.signal, '--payload', ANSWER_FORM)}"


class CancelRequested(ReasonBase, frozen=True, kw_only=True, tag="cancel_requested"):
    """Its owner was asked to end it and has not done so yet."""

    mode: CancelMode
    asked: Act | None
    worker: str

    def sentence(self, now: int) -> str:
        asked = f"a {self.mode} cancel was requested{act_text(self.asked, now)}"
        return f"{asked}; {self.worker} has not ended it yet"

    def advice(self, job_id: str) -> str | None:
        return f"if it does not stop: {command('cancel', job_id, '--hard')}"


class Unkillable(ReasonBase, frozen=True, kw_only=True, tag="unkillable"):
    """A kill had no effect: it runs until it ends by itself."""

    said: Act

    def sentence(self, now: int) -> str:
        reported = f"unkillable: a kill had no effect, reported{act_text(self.said, now)}"
        return f"{reported}; it ends by itself or with its worker"

    def advice(self, job_id: str) -> str | None:
        return "stop its worker; for the next time, declare the task with isolate='process'"


class Overdue(ReasonBase, frozen=True, kw_only=True, tag="overdue"):
    """A lease, a deadline or a wait is over, and no reconciler has handled it yet."""

    what: str
    """`lease`, `epoch`, `deadline`, `start_timeout`, `timer`, `signal` or `children`."""
    since: int | None
    not_before: int | None
    """Until then it is left to its own host or bus."""
    worker: str | None
    seen: SeenWorker | None

    def sentence(self, now: int) -> str:
        passed = _OVERDUE[self.what]
        if self.since is not None:
            passed += f" {describe_time(self.since, now)}"
        if self.worker is not None:
            passed += f" (owner {self.worker})"
        if self._is_left(now):
            until = describe_time(self.not_before or 0, now)
            silent = silent_text(self.seen, now)
            return f"{passed}; its own host or bus may take it back until {until}{silent}"
        return f"{passed}; waits for a reconciler{silent_text(self.seen, now)}"

    def _is_left(self, now: int) -> bool:
        return self.not_before is not None and self.not_before > now

    def advice(self, job_id: str) -> str | None:
        if self.not_before is not None:
            return "start its worker on the same host again; without it, a reconciler ends the job"
        return "if this stays: start a worker, or holdfast reconcile"


_OVERDUE = {
    "lease": "its lease expired",
    "epoch": "it was claimed before the epoch was raised",
    "deadline": "its deadline passed",
    "start_timeout": "its time to start passed",
    "timer": "its time to wait passed",
    "signal": "the signal that it waits for has arrived",
    "children": "the children that it waits for have ended",
}


class Waiting(ReasonBase, frozen=True, kw_only=True, tag="waiting"):
    """It waits for a signal, a timer, or whichever comes first."""

    signal: str
    since: int | None
    until: int | None

    def sentence(self, now: int) -> str:
        until = (
            "without a limit" if self.until is None else f"until {describe_time(self.until, now)}"
        )
        what = "its sleep to end" if self.signal == SLEEP else _signals(self.signal)
        return f"waits for {what}{since(self.since, now)}, {until}"

    def advice(self, job_id: str) -> str | None:
        if self.signal.startswith(RESOLVE):
            resolve = command("resolve", job_id, self.signal.removeprefix(RESOLVE))
            return f"find out if it took effect, then: {resolve} --happened or --not-happened"
        if self.signal == SLEEP:
            return None
        names = sorted(signals_of(self.signal))
        return ", or: ".join(command("signal", job_id, name) for name in names)


class StepsDiffer(ReasonBase, frozen=True, kw_only=True, tag="step_mismatch"):
    """It waits: the code that ran it does not have the steps that are recorded."""

    parked: Act | None
    """By which worker, when, and which step is missing."""
    until: int | None
    """When it is checked again."""

    def sentence(self, now: int) -> str:
        what = (self.parked and self.parked.cause) or "its recorded steps are not in the code"
        by = (
            ""
            if self.parked is None
            else f" by {self.parked.by} {describe_time(self.parked.at, now)}"
        )
        return f"suspended{by}, without using a try: {what}{again_text(self.until, now)}"

    def advice(self, job_id: str) -> str | None:
        check = command("signal", job_id, MISMATCH)
        return f"deploy code that has the step; to check it now: {check}"


class ChildElsewhere(ReasonBase, frozen=True, kw_only=True, tag="child_elsewhere"):
    """It waits until children of the job that it continues from have ended."""

    since: int | None
    until: int | None
    """When it is checked again."""

    def sentence(self, now: int) -> str:
        waits = (
            f"waits{since(self.since, now)} until children of the job that it resumes have ended"
        )
        return f"{waits}{again_text(self.until, now)}"


class WaitsForChildren(ReasonBase, frozen=True, kw_only=True, tag="waits_for_children"):
    """It waits until children have ended."""

    live: int
    """How many have not."""
    more: bool
    """There are more than were counted."""
    children: tuple[LiveChild, ...]
    """The first of them."""
    since: int | None

    def sentence(self, now: int) -> str:
        least = "more than " if self.more else ""
        number = "1 child" if self.live == 1 else f"{least}{self.live:,} children"
        named = ", ".join(f"{one.job_id} ({one.task}, {one.state})" for one in self.children)
        others = ", …" if self.live > len(self.children) else ""
        return f"waits for {number}{since(self.since, now)}: {named}{others}"

    def advice(self, job_id: str) -> str | None:
        return command("why", self.children[0].job_id) if self.children else None


class SetAside(ReasonBase, frozen=True, kw_only=True, tag="quarantined"):
    """It is damaged: not claimed and not swept until it is repaired and released."""

    internal_id: JobId
    """What the commands of the quarantine take."""
    since: int
    damage: str

    def sentence(self, now: int) -> str:
        aside = f"quarantined{since(self.since, now)}, so it is not claimed and not swept"
        return f"{aside}: {self.damage}"

    def advice(self, job_id: str) -> str | None:
        return (
            "look with `holdfast verify`, repair it (`holdfast rebuild --yes` restores a row from "
            f"its events), then: {command('quarantine', 'release', str(self.internal_id))}"
        )


class ClockSetBack(ReasonBase, frozen=True, kw_only=True, tag="clock_set_back"):
    """The machine's clock was set back; the store's clock was not, and runs slower for a time."""

    at: int
    by: int
    ahead: int

    def sentence(self, now: int) -> str:
        return (
            f"the clock of the store's machine was set back by {self.by // SECOND:,} s "
            f"{describe_time(self.at, now)}; the store's clock is {self.ahead // SECOND:,} s "
            "ahead of it and loses a tenth of the time until the two agree"
        )


class TimesAhead(ReasonBase, frozen=True, kw_only=True, tag="times_ahead"):
    """The job's times were set by a clock that was ahead of the store's present one."""

    by: int

    def sentence(self, now: int) -> str:
        return (
            f"its last event was written by a clock that was {describe_span(self.by)} ahead, "
            "and so are its due time and its lease; run `holdfast reconcile --repair-times`"
        )


Reason: TypeAlias = (
    Ended
    | NewerVersion
    | AwaitsAdmission
    | AwaitsApproval
    | AwaitsDecision
    | WaitsForUpload
    | HeldJob
    | QueuePaused
    | NotDue
    | BacksOff
    | NoWorker
    | NoCapableWorker
    | NoTopicWorker
    | NoCommandWorker
    | NoRoom
    | TaskUnknown
    | ReadyToClaim
    | NotStarted
    | Running
    | AsksQuestion
    | CancelRequested
    | Unkillable
    | Overdue
    | Waiting
    | WaitsForChildren
    | StepsDiffer
    | ChildElsewhere
    | SetAside
    | ClockSetBack
    | TimesAhead
)


def _is_adapter(need: str) -> bool:
    return need.startswith(ADAPTER_PREFIX)


def _need_text(need: str) -> str:
    return f"adapter {need.removeprefix(ADAPTER_PREFIX)}" if _is_adapter(need) else need


def _signals(wait_for: str) -> str:
    names = ", ".join(repr(name) for name in sorted(signals_of(wait_for)))
    return f"the signal {names}" if names == repr(wait_for) else f"one of the signals {names}"
