"""What an observer of one job insists on, whoever acted and whatever a store guarded.

Nothing here asks `decide` or the transition table whether a write was allowed: the promises are
stated over the log, the record, and what actors were told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.lifecycle.commands import Command, Complete
from holdfast.lifecycle.derive import apply
from holdfast.lifecycle.invariants import broken_rules
from holdfast.lifecycle.log_checks import log_problems
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.states import OWNED, TERMINAL, EventType, Role, State

FINAL = (
    "state",
    "result_digest",
    "error_code",
    "attempt",
    "finished_at",
    "exit_code",
    "result_ptr",
)
"""What no write may change once a job has ended (resolution 10)."""


class Written(NamedTuple):
    """One accepted write: what stood before, what the store made of it, and who asked."""

    before: Job
    log: Sequence[LoggedEvent]
    """All events, the new one last."""
    after: Job
    command: Command
    now: int

    @property
    def event(self) -> LoggedEvent:
        """The one event of this write."""
        return self.log[-1]


class Memory(NamedTuple):
    """What an observer remembers of the log, so as not to read it again for each write."""

    derived: Job
    cancel_asked: bool = False
    received: frozenset[int] = frozenset()
    consumed: frozenset[int] = frozenset()

    def having_seen(self, event: LoggedEvent) -> Memory:
        """Take in one more event."""
        received, consumed = self.received, self.consumed
        if event.type is EventType.SIGNAL_RECEIVED:
            received |= {event.rev}
        if event.facts.consumed is not None:
            consumed |= {event.facts.consumed}
        return Memory(
            derived=apply(self.derived, event),
            cancel_asked=self.cancel_asked or event.type is EventType.CANCEL_REQUESTED,
            received=received,
            consumed=consumed,
        )


def broken_promise(written: Written, memory: Memory, seen: Memory) -> str | None:
    """Say which promise a write broke; `memory` is from before it, `seen` from after."""
    return (
        _fence_problem(written)
        or _takeover_problem(written)
        or _outcome_problem(written)
        or _cancel_problem(written, memory)
        or _signal_problem(written, memory, seen)
        or _log_problem(written)
        or _record_problem(written, seen)
    )


def _record_problem(written: Written, seen: Memory) -> str | None:
    if rules := broken_rules(written.after):
        return f"the record breaks {', '.join(rules)}"
    if written.after != seen.derived:
        return f"the events derive another {', '.join(differences(written.after, seen.derived))}"
    return None


def differences(left: Job, right: Job) -> list[str]:
    """Name the columns in which two records differ."""
    names = left.__struct_fields__
    return [name for name in names if getattr(left, name) != getattr(right, name)]


def _log_problem(written: Written) -> str | None:
    request = written.event.request_id
    if request and any(event.request_id == request for event in written.log[:-1]):
        return f"request {request} made two events"
    if problems := log_problems(written.log):
        return f"the log is illegal: {problems[0]}"
    return None


def _outcome_problem(written: Written) -> str | None:
    before, after = written.before, written.after
    if before.state in TERMINAL and any(
        getattr(before, name) != getattr(after, name) for name in FINAL
    ):
        return f"the outcome {before.state} was changed to {after.state}"
    return None


def _fence_problem(written: Written) -> str | None:
    """Nothing an owner writes is accepted unless it holds the job at that moment (B6)."""
    before, actor = written.before, written.command.actor
    if actor.role is not Role.OWNER:
        return None
    if (before.owner, before.attempt) != (actor.name, actor.attempt):
        return f"{actor.name} wrote into attempt {before.attempt}, held by {before.owner}"
    if before.lease_expires_at is None or before.lease_expires_at <= written.now:
        return f"{actor.name} wrote after its lease had passed"
    return None


def _takeover_problem(written: Written) -> str | None:
    """Only the host's lock gives a held job to another without a claim (D16)."""
    before, after, actor = written.before, written.after, written.command.actor
    moved = before.state in OWNED and after.state in OWNED and before.owner != after.owner
    if moved and actor.role is not Role.HOST:
        return f"{actor.role} {actor.name} took the job from {before.owner}"
    return None


def _cancel_problem(written: Written, memory: Memory) -> str | None:
    """After a requested cancel only the owner may end the job otherwise (resolution 11)."""
    before, event = written.before, written.event
    if not memory.cancel_asked:
        return None
    if event.type is EventType.CLAIMED:
        return "a job was claimed after its cancel was requested"
    if before.state in OWNED and event.to_state not in OWNED:
        if event.to_state not in TERMINAL:
            return f"a job became {event.to_state} after its cancel was requested"
        if event.actor != before.owner and event.to_state is not State.CANCELLED:
            return f"{event.actor} made it {event.to_state} after its cancel was requested"
    return None


def _signal_problem(written: Written, memory: Memory, seen: Memory) -> str | None:
    consumed = written.event.facts.consumed
    if consumed is not None:
        if consumed in memory.consumed:
            return f"the signal of rev {consumed} was consumed twice"
        if consumed not in memory.received:
            return f"a signal of rev {consumed} was consumed that never came"
    pending = {signal.rev for signal in written.after.signals}
    if pending != seen.received - seen.consumed:
        return f"signals {sorted(seen.received - seen.consumed)} came, {sorted(pending)} are kept"
    return None


def sleeping_through(job: Job) -> str | None:
    """A job must not go on waiting for a signal that is already there (E5)."""
    if job.state is State.WAITING and any(s.name == job.wait_for for s in job.signals):
        return f"it waits for {job.wait_for}, which is already there"
    return None


def false_acknowledgement(log: Sequence[LoggedEvent], command: Command) -> str | None:
    """Whoever is told that its write was accepted finds it in the log, once."""
    found = sum(event.request_id == command.request_id for event in log)
    return None if found == 1 else f"{command.request_id} was acknowledged and is there {found} ×"


def false_repeat(job: Job, command: Command) -> str | None:
    """Whoever is told that its result already stands finds that very result."""
    if isinstance(command, Complete) and job.result_digest != digest(command.body):
        return f"{command.actor.name} was told that its result stands, and it does not"
    return None


def two_holders(holders: Sequence[str]) -> str | None:
    """At most one worker may believe that its lease is live, and be right by the clock (B2)."""
    return f"{' and '.join(holders)} both hold a live lease" if len(holders) > 1 else None
