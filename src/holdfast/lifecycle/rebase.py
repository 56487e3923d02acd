"""After a lost compare-and-set: had my write landed, may I decide again, or am I fenced?"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.commands import Command
from holdfast.lifecycle.decide import Decision, decide
from holdfast.lifecycle.decide.endings import may_turn, turned_reason
from holdfast.lifecycle.lease import is_owner
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.record import UNKILLABLE, Change, Job, LoggedEvent, Refusal
from holdfast.lifecycle.states import EventType, Role
from holdfast.lifecycle.times import After, Time, resolve

REBASES = 5
"""How often a command is decided again on a newer revision before it fails."""


def has_landed(
    change: Change, event: LoggedEvent | None, *, batch_request: str | None = None
) -> bool:
    """Return whether `event`, found at the revision the change was to have, is the change itself.

    A change without a request_id of its own is written under that of its batch.
    """
    mine = change.event
    request_id = mine.request_id or batch_request
    return (
        event is not None
        and request_id is not None
        and event.request_id == request_id
        and event.type is mine.type
        and event.actor == mine.actor
        and event.digest == mine.digest
        and event.facts.kill == mine.facts.kill
    )


def same_request(event: LoggedEvent, command: Command) -> bool:
    """Return whether `event`, written under the command's request_id, is what the command asks for.

    The record that it was decided on is gone, so what the command itself fixes is compared.
    """
    if event.type is EventType.CANCELLED and may_turn(command):
        return event.reason == turned_reason(command)
    body = getattr(command, "body", None)
    return (
        event.type in _requested_types(command)
        and event.digest == (None if body is None else digest(body))
        and _same_time(event, command)
        and all(getattr(event.facts, name) == fact for name, fact in _requested_facts(command))
    )


def _requested_types(command: Command) -> Set[EventType]:
    match command:
        case c.Step():
            return {c.step_event(command)}
        case c.Heartbeat(by_handler=by_handler):
            return {c.BEAT_EVENT[by_handler]}
        case _:
            return command.events()


def _same_time(event: LoggedEvent, command: Command) -> bool:
    requested: Time | None
    match command:
        case c.Reschedule(run_at=time) | c.Requeue(run_at=time) | c.Wait(until=time):
            requested = time
        case c.Retry(retry_in=int(delay)):
            requested = After(delay)
        case _:
            return True
    return event.run_at == resolve(requested, event.at)


def _requested_facts(command: Command) -> list[tuple[str, Any]]:
    """Return the facts that a command fixes by itself."""
    match command:
        case c.Hold(hold=hold):
            return [("held", hold)]
        case c.Unhold(hold=hold):
            return [("unheld", hold)]
        case c.Approve(approved=approved):
            # Not the hold: a repetition may name the next one, and the first counts.
            return [("approved", approved)]
        case c.RequestCancel(mode=mode):
            return [("cancel", mode)]
        case c.CorrectTerms(policy=policy):
            return [("policy", policy)]
        case c.Wait(signal=signal):
            return [("wait_for", signal)]
        case c.SignalJob(name=name):
            return [("signal", name)]
        case c.Progress(unkillable=unkillable):
            return [("kill", UNKILLABLE if unkillable else None)]
        case c.Step(name=name, use=use):
            return [("step", name), ("step_use", use)]
        # A repeated redrive brings a new link: the first one stays.
        case c.Discarded() | c.Redriven():
            return []
        case c.LateResult(state=state):
            return [("late_state", state), *_named_alike(command)]
        case _:
            return _named_alike(command)


_ALIKE = ("rule", "rules", "error_code", "stage", "link", *c.LEFT_BY_RUN)
"""Facts with the name of the command's field."""


def _named_alike(command: Command) -> list[tuple[str, Any]]:
    return [(name, getattr(command, name)) for name in _ALIKE if hasattr(command, name)]


def still_mine(current: Job, command: Command) -> bool:
    """Return whether a command may be decided again: its owner and attempt are unchanged.

    The command of any other actor always may be: an actor without a lease cannot lose it.
    """
    return command.actor.role is not Role.OWNER or is_owner(current, command.actor)


def rebase(current: Job, command: Command) -> Decision:
    """Decide the same command on the record as it is now, if its sender may still act."""
    if not still_mine(current, command):
        decision = decide(current, command)
        # A repeat of what already holds is success; anything else is a fenced owner.
        return decision if not isinstance(decision, Change) else _refuse_fenced(current, command)
    return decide(current, command)


def _refuse_fenced(current: Job, command: Command) -> Refusal:
    return Refusal(
        code="lease_lost",
        message=f"job {current.public_id} is no longer held by {command.actor.name}",
    )
