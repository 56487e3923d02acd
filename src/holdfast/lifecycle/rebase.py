"""After a lost compare-and-set: had my write landed, may I decide again, or am I fenced?"""

from __future__ import annotations

from typing import Any

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.commands import Command
from holdfast.lifecycle.decide import Decision, decide, is_owner, may_turn, turned_reason
from holdfast.lifecycle.job import UNKILLABLE, Change, Job, LoggedEvent, Refusal
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.states import EventType, Role
from holdfast.lifecycle.times import After, Time, resolve
from holdfast.lifecycle.transitions import TABLE

REBASES = 5
"""How often one command is decided anew before it gives up."""


def has_landed(
    change: Change, event: LoggedEvent | None, *, batch_request: str | None = None
) -> bool:
    """Whether `event`, found at the revision the change was to have, is the change itself.

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
    """Whether `event`, written under the command's request_id, is what the command asks for.

    The record it was decided on is gone, so the command's own words are compared, one by one.
    """
    if event.type is EventType.CANCELLED and may_turn(command):
        return event.reason == turned_reason(command)
    body = getattr(command, "body", None)
    return (
        event.type in _wished_types(command)
        and event.digest == (None if body is None else digest(body))
        and _same_time(event, command)
        and all(getattr(event.facts, name) == said for name, said in _wished_facts(command))
    )


def _wished_types(command: Command) -> set[EventType]:
    match command:
        case c.Step():
            return {c.step_event(command)}
        case c.Heartbeat(by_handler=by_handler):
            return {c.BEAT_EVENT[by_handler]}
        case _:
            return {
                kind for row in TABLE if row.operation is command.operation for kind in row.events
            }


def _same_time(event: LoggedEvent, command: Command) -> bool:
    wished: Time | None
    match command:
        case c.Reschedule(run_at=time) | c.Requeue(run_at=time) | c.Wait(until=time):
            wished = time
        case c.Retry(retry_in=int(delay)):
            wished = After(delay)
        case _:
            return True
    return event.run_at == resolve(wished, event.at)


def _wished_facts(command: Command) -> list[tuple[str, Any]]:
    """List the facts that a command brings by itself."""
    match command:
        case c.Hold(hold=hold):
            return [("held", hold)]
        case c.Unhold(hold=hold):
            return [("unheld", hold)]
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
        # A redrive's link is minted anew by whoever repeats it: the first one stands.
        case c.Discarded() | c.Redriven():
            return []
        case c.LateResult(state=state):
            return [("late_state", state), *_named_alike(command)]
        case _:
            return _named_alike(command)


_ALIKE = ("rule", "error_code", "exit_code", "result_ptr", "execution_ms", "stage", "link")
"""Facts that bear the name of the command's field."""


def _named_alike(command: Command) -> list[tuple[str, Any]]:
    return [(name, getattr(command, name)) for name in _ALIKE if hasattr(command, name)]


def still_mine(current: Job, command: Command) -> bool:
    """Whether an owner's command may be decided anew: owner and attempt are unchanged.

    Everyone else's may always: whoever holds no lease has none to lose.
    """
    return command.actor.role is not Role.OWNER or is_owner(current, command.actor)


def rebase(current: Job, command: Command) -> Decision:
    """Decide the same command on the record as it is now, if it is still the sender's to give."""
    if not still_mine(current, command):
        decision = decide(current, command)
        # A repeat of what already holds is success; anything else is a fenced owner.
        return decision if not isinstance(decision, Change) else _fenced(current, command)
    return decide(current, command)


def _fenced(current: Job, command: Command) -> Refusal:
    return Refusal(
        code="lease_lost",
        message=f"job {current.public_id} is no longer held by {command.actor.name}",
    )
