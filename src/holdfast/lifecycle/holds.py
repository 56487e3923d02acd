"""Under which holds a job is listed: those in `held_by`, and one for what is not admitted yet."""

from __future__ import annotations

from msgspec import Struct

from holdfast.lifecycle.record import Record
from holdfast.lifecycle.states import Role, State
from holdfast.lifecycle.times import SECOND, T

UPLOAD_HOLD = "upload:"
"""How the hold of a job starts that waits for an upload; its id follows."""
DENIED_HOLD = "denied:"
"""How the hold of a job starts that a rule denied; the rule's id follows. It is denied soon."""
APPROVAL_HOLD = "approval:"
"""How the holds of a job start that people must approve: see `approval_holds`."""
POLICY_HOLD = "policy"
"""The hold of a job that the rules have not decided on yet."""
PERSON_HOLD = "policy-hold:"
"""How the hold of a job starts that a rule holds until a person lifts it; the rule's id follows."""
NOT_ADMITTED = ""
"""The hold of a pending job, which waits for its admission; no other has an empty name."""
_GATES = (UPLOAD_HOLD, DENIED_HOLD, APPROVAL_HOLD, PERSON_HOLD)
"""How the holds start, beside `POLICY_HOLD`, that an admission has to wait for."""

UNADMITTED = frozenset({State.PENDING})
"""States in which a job waits for its admission."""


class ApprovalHold(Struct, frozen=True, kw_only=True):
    """The parts of an approval's hold."""

    rule: str
    slot: int
    """How many approvals are missing while this hold is the highest."""
    seconds: int
    """How long after the job's birth the approval expires; 0: never."""


def approval_holds(rule: str, count: int, seconds: int) -> tuple[str, ...]:
    """Return the holds of a job that `count` people must approve, the one lifted first first."""
    return tuple(f"{APPROVAL_HOLD}{rule}/{slot}/{seconds}" for slot in range(count, 0, -1))


def read_approval(hold: str) -> ApprovalHold | None:
    """Return the parts of an approval's hold; None for any other hold."""
    if not hold.startswith(APPROVAL_HOLD):
        return None
    match hold.removeprefix(APPROVAL_HOLD).rsplit("/", 2):
        case [rule, slot, seconds] if rule and _is_number(slot) and _is_number(seconds):
            return ApprovalHold(rule=rule, slot=int(slot), seconds=int(seconds))
    return None


def is_policy_hold(hold: str) -> bool:
    """Return whether a hold is of a verdict of the rules."""
    return hold == POLICY_HOLD or hold.startswith((DENIED_HOLD, APPROVAL_HOLD, PERSON_HOLD))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def upload_hold(upload: str) -> str:
    """Return the hold of the jobs that wait for an upload."""
    return UPLOAD_HOLD + upload


def awaited_upload(record: Record[T]) -> str | None:
    """Return the upload that a job waits for; None if it waits for none."""
    held = (hold for hold in record.held_by if hold.startswith(UPLOAD_HOLD))
    return next((hold.removeprefix(UPLOAD_HOLD) for hold in held), None)


def listed_holds(record: Record[T]) -> frozenset[str]:
    """Return the holds that a job is found by."""
    pending = {NOT_ADMITTED} if record.state in UNADMITTED else set()
    return frozenset(record.held_by) | pending


def gates(record: Record[T]) -> tuple[str, ...]:
    """Return the holds of a job that its admission has to wait for."""
    return tuple(filter(is_gate, record.held_by))


def is_gate(hold: str) -> bool:
    """Return whether an admission has to wait until this hold is lifted."""
    return hold == POLICY_HOLD or hold.startswith(_GATES)


def is_lifted_otherwise(hold: str, role: Role) -> bool:
    """Return whether a role may not place or lift a hold, because a gate of policies does.

    The scheduler decides what the rules left open; approvals and denials are lifted by nobody.
    """
    if hold.startswith((APPROVAL_HOLD, DENIED_HOLD)):
        return True
    return hold == POLICY_HOLD and role is not Role.SCHEDULER


def approvals(record: Record[T]) -> list[tuple[str, ApprovalHold]]:
    """Return the approvals that a job awaits, the one that is lifted first first."""
    found = [(hold, read) for hold in record.held_by if (read := read_approval(hold)) is not None]
    return sorted(found, key=lambda one: -one[1].slot)


def next_approval(record: Record[T]) -> tuple[str, ApprovalHold] | None:
    """Return the approval that the next person's approval lifts; None if it awaits none."""
    return next(iter(approvals(record)), None)


def expires_at(record: Record[T], approval: ApprovalHold) -> int | None:
    """Return when an approval expires that a stored job awaits; None if it does not."""
    born = record.created_at
    return born + approval.seconds * SECOND if approval.seconds and isinstance(born, int) else None


def is_expired(record: Record[T], approval: ApprovalHold, as_of: int | None) -> bool:
    """Return whether the time of an approval has passed, as far as the sender's clock proves it."""
    end = expires_at(record, approval)
    return end is not None and as_of is not None and end <= as_of
