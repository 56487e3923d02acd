"""Lines of jobs' logs as rows: what may be kept of one, how it is written, and how it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from holdfast.lifecycle.job import JobId
from holdfast.lifecycle.payload import check_number, check_text
from holdfast.ports import HIGHEST_LEVEL, LOG_TEXT, LogEntry, LogLine

Row: TypeAlias = tuple[JobId, int, int, int, str]
TIME_LIMIT = 2**62


def log_row(entry: LogEntry) -> Row:
    """Write a line; refuse what cannot be kept."""
    check_number(entry.attempt, "attempt")
    check_number(entry.at, "at", low=0, high=TIME_LIMIT)
    check_number(entry.level, "level", low=0, high=HIGHEST_LEVEL)
    check_text(entry.message, "a line of a log", limit=LOG_TEXT, empty=True)
    return entry.id, entry.attempt, entry.at, entry.level, entry.message


def read_log(id: JobId, row: Sequence[Any]) -> LogLine:
    """Read a row of the statement `logs`."""
    position, attempt, at, level, message = row
    return LogLine(id=id, position=position, attempt=attempt, at=at, level=level, message=message)
