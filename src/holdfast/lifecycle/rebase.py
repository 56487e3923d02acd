"""After a lost compare-and-set: had my write landed, may I decide again, or am I fenced?"""

from __future__ import annotations

from holdfast.lifecycle.commands import Command
from holdfast.lifecycle.decide import Decision, decide, is_owner
from holdfast.lifecycle.job import Change, Job, LoggedEvent, Refusal
from holdfast.lifecycle.states import Role

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
    )


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
