"""Rows that cannot be read: found one by one, and set aside so that they stop nobody else.

Pure; both stores use it. A batch is read at once, and row by row only where that fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.errors import JobUnreadable
from holdfast.lifecycle.record import JobId

R = TypeVar("R")
log = logging.getLogger(__name__)

UNREADABLE = (KeyError, ValueError, TypeError, AttributeError, msgspec.MsgspecError)
"""What reading a damaged row raises. Not a database error: that is not about the row."""
REASON_LIMIT = 500
"""Characters of a reason that are kept."""
MOST_SET_ASIDE = 1000
"""Damaged rows that one claim sets aside; the next claim continues."""
FIRST_EVENT_MISSING = "its first event is missing"
STRAY_EVENT = "its log is ahead of its row: there is an event at revision {rev} already"


def reason_of(error: BaseException) -> str:
    """Describe why a row could not be read or moved."""
    if isinstance(error, KeyError):
        text = f"it names policy or needs {error.args[0]}, which the store does not have"
    else:
        text = f"it cannot be read: {error}"
    return text[:REASON_LIMIT]


def unreadable(id: JobId, reason: str) -> JobUnreadable:
    """Make the error for a caller that asked for this one job."""
    error = JobUnreadable(
        f"job {id} is damaged, and quarantined once a claim or sweep meets it: {reason}; look with "
        "`holdfast verify`, repair it (`holdfast rebuild --yes` restores a row from its events), "
        f"then run `holdfast quarantine release {id}`",
        job_id=str(id),
    )
    error.damage = reason
    return error


def read_all(
    rows: Sequence[Any], read: Callable[[Any], R], id_of: Callable[[Any], JobId]
) -> list[R]:
    """Read rows; raise JobUnreadable for the first that is damaged."""
    try:
        return [read(row) for row in rows]
    except UNREADABLE as error:
        id_, reason = next(iter(read_undamaged(rows, read, id_of)[1].items()))
        raise unreadable(id_, reason) from error


def read_undamaged(
    rows: Sequence[Any], read: Callable[[Any], R], id_of: Callable[[Any], JobId]
) -> tuple[list[R], dict[JobId, str]]:
    """Read rows one by one; return what can be read, and why each of the others cannot."""
    found: list[R] = []
    bad: dict[JobId, str] = {}
    for row in rows:
        try:
            found.append(read(row))
        except UNREADABLE as error:
            bad[id_of(row)] = reason_of(error)
    return found, bad


def report_set_aside(bad: Mapping[JobId, str]) -> None:
    """Log what was set aside."""
    for id_, reason in bad.items():
        log.error("job %s was set aside, see `holdfast doctor`: %s", id_, reason)


def report_left_out(bad: Mapping[JobId, str]) -> None:
    """Log of which jobs events were left out of a list."""
    for id_, reason in bad.items():
        log.error("an event of job %s was left out, see `holdfast verify`: %s", id_, reason)


def report_refused(ids: Iterable[JobId], error: BaseException) -> None:
    """Log that the database refused even the mark: these rows are met again."""
    for id_ in ids:
        log.error("job %s is damaged and could not be set aside: %s", id_, error)
