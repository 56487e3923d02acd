"""What every operation uses: named statements, and rows read as records."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias, TypeVar
from uuid import UUID, SafeUUID

import apsw
import msgspec

from holdfast.lifecycle.job import Job, JobId, LoggedEvent
from holdfast.lifecycle.policy import read_policy
from holdfast.lifecycle.states import EventType
from holdfast.ports import Limits
from holdfast.stores.columns import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    Dictionary,
    created_keys,
    read_event,
    read_job,
)
from holdfast.stores.quarantine import UNREADABLE, all_of, sift
from holdfast.stores.tenant_limits import read_limits
from holdfast.stores.text import blocks

R = TypeVar("R")
SQL = blocks("holdfast.stores.sqlite")
Row: TypeAlias = tuple[Any, ...]
Parameters: TypeAlias = Sequence[Any] | dict[str, Any]
_PARENT = JOB_COLUMNS.index("parent_id")
_POLICY, _NEEDS = JOB_COLUMNS.index("policy"), JOB_COLUMNS.index("needs")
_TYPE, _DATA = EVENT_COLUMNS.index("type"), EVENT_COLUMNS.index("data")


@cache
def fragment(name: str, **parts: str) -> str:
    """Put a statement together: the named block without its comment, `:words` filled in."""
    text = _COMMENT.sub("", SQL[name])
    for word, part in parts.items():
        text = text.replace(f":{word}", part)
    return text


_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


_VALUES = re.compile(r"VALUES (\([?, 0-9]+\))")


@cache
def is_set_based(sql: str) -> bool:
    """Whether a statement can write several rows in one run: it names them by VALUES."""
    return _VALUES.search(sql) is not None


@cache
def for_rows(sql: str, rows: int) -> str:
    """Write a statement for so many rows: its VALUES repeated."""
    match = _VALUES.search(sql)
    if match is None or rows == 1:
        return sql
    return sql[: match.start(1)] + ", ".join([match[1]] * rows) + sql[match.end(1) :]


class Session:
    """A connection inside a transaction, and the dictionary of this process."""

    def __init__(self, connection: apsw.Connection, seen: Dictionary) -> None:
        """Use a connection for one operation."""
        self.connection = connection
        self.seen = seen
        self.bad: dict[JobId, str] = {}
        """Jobs that were left out because they are damaged, and why."""

    def rows(self, name: str, parameters: Parameters = ()) -> list[Row]:
        """Run a named statement and read all it returns."""
        return self.connection.execute(SQL[name], parameters).fetchall()

    def row(self, name: str, parameters: Parameters = ()) -> Row | None:
        """Run a named statement and read its first row."""
        return self.connection.execute(SQL[name], parameters).fetchone()

    def jobs(self, name: str, parameters: Parameters = ()) -> list[Job]:
        """Run a named statement that returns job rows; raise JobUnreadable if one is damaged."""
        return all_of(self.rows(name, parameters), self.job, _id_of)

    def readable_jobs(self, rows: Sequence[Row]) -> list[Job]:
        """Make records out of job rows; leave damaged ones out, and note them in `bad`."""
        return self._readable(rows, self.job)

    def events(self, name: str, parameters: Parameters = ()) -> list[LoggedEvent]:
        """Run a named statement that returns event rows; raise JobUnreadable if one is damaged."""
        return all_of(self.rows(name, parameters), self.event, _id_of)

    def readable_events(self, rows: Sequence[Row]) -> list[LoggedEvent]:
        """Make events out of rows; leave damaged ones out, and note their jobs in `bad`."""
        return self._readable(rows, self.event)

    def _readable(self, rows: Sequence[Row], read: Callable[[Row], R]) -> list[R]:
        try:
            return [read(row) for row in rows]
        except UNREADABLE:
            found, bad = sift(rows, read, _id_of)
            self.bad |= bad
            return found

    def meta(self) -> dict[str, str]:
        """Read the epoch and whether events are sealed."""
        return {key: value for key, value in self.rows("meta")}  # noqa: C416  rows of two

    def limits(self) -> Limits:
        """Read the limits."""
        return read_limits(self.meta())

    def get(self, id: bytes, *, signals: bool = True) -> Job | None:
        """Read one job row."""
        row = self.row("get" if signals else "get_unread", (id,))
        return None if row is None else all_of([row], self.job, _id_of)[0]

    def job(self, row: Sequence[Any]) -> Job:
        """Make a record out of a job row."""
        values = list(row)
        values[0] = job_id(values[0])
        if values[_PARENT] is not None:
            values[_PARENT] = job_id(values[_PARENT])
        self.learn(values[_POLICY], values[_NEEDS])
        return read_job(values, self.seen)

    def event(self, row: Sequence[Any]) -> LoggedEvent:
        """Make an event out of an event row."""
        values = list(row)
        values[0] = job_id(values[0])
        if values[_TYPE] == EventType.CREATED.code:
            self.learn_created(values[_DATA])
        return read_event(values, self.seen)

    def learn_created(self, text: str) -> None:
        """Look up what a first event names."""
        self.learn(*created_keys(text))

    def learn(self, policy: int, needs: int) -> None:
        """Look up a policy and needs that this process has not seen."""
        if not self.seen.missing(policy, needs):
            return
        for key, body in self.rows("policy", (policy,)):
            self.seen.policies[key] = read_policy(body)
        self.learn_needs(needs)

    def learn_needs(self, needs: int) -> None:
        """Look up a set of needs."""
        for key, body in self.rows("need", (needs,)):
            self.seen.needs[key] = frozenset(msgspec.json.decode(body))


def job_id(id: bytes) -> JobId:
    """Read an id as it is stored.

    UUID(bytes=...) looks at all the ways in which one can be made, which takes a claim as long as
    reading the rest of the job.
    """
    made = JobId(_new(UUID))
    _set(made, "int", int.from_bytes(id, "big"))
    _set(made, "is_safe", _UNKNOWN)
    return made


def _id_of(row: Row) -> JobId:
    """The id of a job or event row: the first column of both."""
    return job_id(row[0])


_new = object.__new__
_set, _UNKNOWN = object.__setattr__, SafeUUID.unknown
