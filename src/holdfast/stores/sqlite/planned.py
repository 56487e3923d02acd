"""Planned ends: the starts and successes of jobs alike, written together.

differs from postgres: each part is a statement of its own, made of the rows that the generic commit
would write: what all jobs have in common is bound once, and only the rest for each job.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from msgspec import Struct

from holdfast.lifecycle.plan import Plan, PlannedEnd
from holdfast.lifecycle.record import DraftEvent, JobId
from holdfast.lifecycle.stamp import stamp
from holdfast.ports.models import PlannedOutcome
from holdfast.stores.columns import EVENT_COLUMNS
from holdfast.stores.sqlite.connections import DATA_ERRORS
from holdfast.stores.sqlite.rows import (
    ORDINARY_COLUMNS,
    Row,
    fragment,
    make_event_row,
    make_touched_columns,
)
from holdfast.stores.sqlite.turn import Turn


class _EndMissed(Exception):
    """Some compare-and-set missed, or these ends cannot be written together."""


class _Alike(Struct, frozen=True):
    """A statement for rows that have all but some columns in common."""

    text: str
    common: tuple[int, ...]
    """Where a whole row has the values that are bound once."""

    def pick(self, row: Sequence[Any]) -> list[Any]:
        """Return the values of a whole row that all rows have in common."""
        return [row[i] for i in self.common]


def commit_planned(turn: Turn, ends: Sequence[PlannedEnd]) -> PlannedOutcome:
    """Write planned ends; of one plan all or none."""
    missed: list[JobId] = []
    by_plan: dict[int, list[PlannedEnd]] = {}
    for end in ends:
        by_plan.setdefault(id(end.plan), []).append(end)
    for alike in by_plan.values():
        missed += _write_or_miss(turn, alike)
    return PlannedOutcome(turn.now, missed)


def _write_or_miss(turn: Turn, ends: Sequence[PlannedEnd]) -> list[JobId]:
    """Write the ends of one plan that can be written; return the others."""
    try:
        with turn.in_savepoint():
            _write_alike(turn, ends[0].plan, ends)
    except _EndMissed:
        # One that has changed meanwhile must not hold up a thousand that have not.
        ids, plan = [end.id for end in ends], ends[0].plan
        fence = (plan.start.record.rev, turn.now, turn.epoch)
        found = {row[0] for row in turn.rows("still_claimed", ids, *fence)}
        writable: list[PlannedEnd] = []
        left: list[JobId] = []
        for end in ends:
            if end.id.bytes in found and end.floor <= turn.now:
                writable.append(end)
            else:
                left.append(end.id)
        if turn.sealing or not left or not writable:
            return ids
        return left + _write_or_miss(turn, writable)
    except DATA_ERRORS:
        return [end.id for end in ends]
    return []


def _write_alike(turn: Turn, plan: Plan, ends: Sequence[PlannedEnd]) -> None:
    """Write the ends of one plan; raises if any compare-and-set missed."""
    now = turn.now
    if turn.sealing or max(end.floor for end in ends) > now:
        # A seal continues that of the event before, and no event is earlier than the one before.
        raise _EndMissed
    ids = [end.id.bytes for end in ends]
    started = [max(now - end.ago, end.floor) for end in ends]
    leases = [now - end.ago + plan.granted for end in ends]
    digests = [end.digest for end in ends]
    _update_rows(turn, plan, list(zip(ids, started, digests, strict=True)))
    _append_events(turn, plan.start.event, _START, list(zip(ids, started, leases, strict=True)))
    bodies = [end.body.decode() for end in ends]
    rows = list(zip(ids, leases, bodies, digests, strict=True))
    _append_events(turn, plan.success.event, _SUCCESS, rows)
    before, after = plan.start.record, plan.success.next
    turn.count(before.tenant, before.queue, before.state.code, -len(ends))
    turn.count(before.tenant, before.queue, after.state.code, len(ends))


def _update_rows(turn: Turn, plan: Plan, rows: Sequence[Row]) -> None:
    update, columns = _make_update(), make_touched_columns(ORDINARY_COLUMNS)
    whole = columns.row(stamp(plan.success.next, turn.now, turn.now), b"", 0)
    common = (*update.pick(whole), plan.start.record.rev, turn.now, turn.epoch)
    if turn.write_text(update.text, rows, common) != len(rows):
        raise _EndMissed


def _append_events(turn: Turn, event: DraftEvent, own: tuple[str, ...], rows: list[Row]) -> None:
    insert = _make_insert(own)
    whole = make_event_row(event, b"", turn.now, turn.now)
    turn.write_text(insert.text, rows, insert.pick(whole))


_START = ("id", "at", "lease_expires_at")
_SUCCESS = ("id", "lease_expires_at", "body", "digest")


@cache
def _make_update() -> _Alike:
    own = ("started_at", "result_digest")
    # A whole row starts with the id and the revision that it is set from.
    names = ("id", "expected", "rev", "updated_at", *ORDINARY_COLUMNS)
    text = fragment(
        "commit_planned",
        own=", ".join(own),
        marks=", ".join("?" * len(own)),
        columns=", ".join(
            f"{name} = d.{name}" if name in own else f"{name} = ?" for name in names[2:]
        ),
    )
    return _Alike(text, tuple(i for i, n in enumerate(names) if i >= 2 and n not in own))


@cache
def _make_insert(own: tuple[str, ...]) -> _Alike:
    text = fragment(
        "planned_event",
        own=", ".join(own),
        marks=", ".join("?" * len(own)),
        values=", ".join(name if name in own else "?" for name in EVENT_COLUMNS),
    )
    return _Alike(text, tuple(i for i, n in enumerate(EVENT_COLUMNS) if n not in own))
