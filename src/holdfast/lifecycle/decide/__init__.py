"""decide(record, command): what the law makes of a command. Pure; the store commits or refuses it.

The order of the questions is the order of the answers that a caller needs: may this role do it at
all, does the caller own the job, is there such an edge, does a requested cancel turn it, is the
operation's own condition met.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import admission, afterwards, attempt, endings
from holdfast.lifecycle.decide.change import Decision, refuse
from holdfast.lifecycle.decide.endings import may_turn
from holdfast.lifecycle.lease import is_owner
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.record import Actor, Draft, Refusal, Unchanged
from holdfast.lifecycle.states import TERMINAL, Operation, Retention, Role, State
from holdfast.lifecycle.transitions import REPEATED_IN, ROLES, Row, find_row

__all__ = ["Decision", "decide"]

# Named once: reading a member off an enum's class costs as much as a call (Python 3.11).
_UNKNOWN, _CLEANED, _OWNER = State.UNKNOWN, Retention.CLEANED, Role.OWNER


def decide(record: Draft, command: c.Command) -> Decision:
    """Return the change that a command makes, "that already holds", or a refusal."""
    if record.state is _UNKNOWN:
        return refuse("unknown_state", record, "was written by a newer version; upgrade first")
    actor, operation = command.actor, command.operation
    if actor.role not in ROLES[operation]:
        return refuse("role_not_allowed", record, f"{actor.role} may not {operation}")
    if actor.role is _OWNER and not is_owner(record, actor):
        return _recognise_repeat(record, command) or _lost(record, actor)
    row = find_row(operation, record.state, actor.role)
    if row is None:
        return _recognise_repeat(record, command) or _illegal(record, command)
    if record.retention is _CLEANED:
        return _recognise_repeat(record, command) or refuse(
            "cleaned", record, "is cleaned; nothing follows"
        )
    if record.cancel_requested is not None and may_turn(command):
        return endings.cancel_instead(record, command)
    return _RULES[operation](record, row, command)


def _recognise_repeat(record: Draft, command: c.Command) -> Unchanged | None:
    """Recognise a command whose effect already holds (A14, resolution 9)."""
    if command.operation is Operation.CLEANED and record.retention is Retention.CLEANED:
        return Unchanged(record)
    if record.state is not REPEATED_IN.get(command.operation):
        return None
    actor = command.actor
    if actor.role is _OWNER and record.attempt != actor.attempt:
        return None
    if actor.role is _OWNER and record.owned and record.owner != actor.name:
        return None
    match command:
        case c.Complete(body=body) if record.result_digest != digest(body):
            return None
        case c.Failing(error_code=code) if record.terminal and record.error_code != code:
            return None
        case c.Wait(signal=signal) if record.wait_for != signal:
            return None
    return Unchanged(record)


def _lost(record: Draft, actor: Actor) -> Refusal:
    owner = f"held by {record.owner}" if record.owner else "held by nobody"
    text = f"is at attempt {record.attempt}, {owner}; {actor.name} lost attempt {actor.attempt}"
    return refuse("lease_lost", record, text)


def _illegal(record: Draft, command: c.Command) -> Refusal:
    code = "terminal" if record.state in TERMINAL else "illegal_transition"
    return refuse(code, record, f"does not allow {command.operation} by {command.actor.role}")


_RULES: dict[Operation, Callable[[Draft, Row, Any], Decision]] = {
    Operation.ADMIT: admission.admit,
    Operation.DENY: admission.deny,
    Operation.APPROVE: admission.approve,
    Operation.HOLD: admission.hold,
    Operation.UNHOLD: admission.unhold,
    Operation.RESCHEDULE: admission.reschedule,
    Operation.REQUEUE: admission.reschedule,
    Operation.CLAIM: admission.claim,
    Operation.CORRECT_TERMS: attempt.correct_terms,
    Operation.START: attempt.start,
    Operation.HEARTBEAT: attempt.heartbeat,
    Operation.ADOPT: attempt.adopt,
    Operation.STEP: attempt.step,
    Operation.PROGRESS: attempt.progress,
    Operation.WAIT: attempt.wait,
    Operation.RESUME: attempt.resume,
    Operation.SIGNAL: attempt.signal,
    Operation.REQUEST_CANCEL: attempt.request_cancel,
    Operation.COMPLETE: endings.complete,
    Operation.FAIL: endings.fail,
    Operation.LOSE: endings.lose,
    Operation.RETRY: endings.retry,
    Operation.RELEASE: endings.release,
    Operation.STALL: endings.stall,
    Operation.CANCEL: endings.cancel,
    Operation.TIME_OUT: endings.time_out,
    Operation.DEAD_LETTER: endings.dead_letter,
    Operation.LATE_RESULT: afterwards.late_result,
    Operation.COMPENSATED: afterwards.compensated,
    Operation.REDRIVEN: afterwards.redriven,
    Operation.DISCARDED: afterwards.discarded,
    Operation.CLEAN: afterwards.clean,
    Operation.CLEANED: afterwards.cleaned,
}
