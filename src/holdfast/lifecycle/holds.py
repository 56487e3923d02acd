"""Under which holds a job is listed: those in `held_by`, and one for what is not admitted yet."""

from __future__ import annotations

from holdfast.lifecycle.record import Record
from holdfast.lifecycle.states import State
from holdfast.lifecycle.times import T

UPLOAD_HOLD = "upload:"
"""How the hold of a job starts that waits for an upload; its id follows."""
NOT_ADMITTED = ""
"""The hold of a pending job, which waits for its admission; no other has an empty name."""

UNADMITTED = frozenset({State.PENDING})
"""States in which a job waits for its admission."""


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
