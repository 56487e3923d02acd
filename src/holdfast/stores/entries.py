"""The ledger's entries: rows of jobs, events and keys put together by job, damage reported."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from holdfast.lifecycle.job import Job, JobId, LoggedEvent
from holdfast.lifecycle.seal import SEALED, seal
from holdfast.lifecycle.states import BEATS, EventType, KeyKind
from holdfast.ports import KeyRow, LedgerEntry
from holdfast.stores.columns import (
    EVENT_COLUMNS,
    JOB_COLUMNS,
    Dictionary,
    created_keys,
    read_event,
    read_job,
)

R = TypeVar("R")


def entries(
    jobs: Sequence[Sequence[Any]],
    events: Sequence[Sequence[Any]],
    keys: Sequence[Sequence[Any]],
    seen: Dictionary,
) -> list[LedgerEntry]:
    """Put rows of one snapshot together, by id. A row that cannot be read is said, not raised."""
    by_id: dict[UUID, tuple[list[Any], list[Any], list[Any]]] = {}
    for part, rows in enumerate((jobs, events, keys)):
        for row in rows:
            by_id.setdefault(row[0], ([], [], []))[part].append(row)
    return [_entry(id_, *by_id[id_], seen) for id_ in sorted(by_id, key=lambda id_: id_.bytes)]


def named(jobs: Sequence[Sequence[Any]], events: Sequence[Sequence[Any]]) -> set[tuple[int, int]]:
    """List the policies and needs that rows name: a job row may be missing, its events not."""
    found = {(row[_POLICY], row[_NEEDS]) for row in jobs}
    for row in events:
        if row[_TYPE] == EventType.CREATED.code:
            with contextlib.suppress(msgspec.MsgspecError, TypeError):  # said by `entries`
                found.add(created_keys(row[_DATA]))
    return found


def _entry(
    id_: UUID, jobs: list[Any], events: list[Any], keys: list[Any], seen: Dictionary
) -> LedgerEntry:
    problems: list[str] = []
    rows: list[Job] = _read(jobs, lambda row: read_job(row, seen), "job row", problems)
    log: list[LoggedEvent] = _read(events, lambda row: read_event(row, seen), "event", problems)
    problems += _seal_problems(events)
    return LedgerEntry(
        id=JobId(id_),
        row=rows[0] if rows else None,
        unreadable="; ".join(problems) or None,
        events=log,
        keys=[
            KeyRow(tenant=row[1], kind=KeyKind.of(row[2]), key=row[3], digest=row[4])
            for row in keys
        ],
    )


def _read(rows: Sequence[Any], read: Callable[[Any], R], what: str, problems: list[str]) -> list[R]:
    found = []
    for row in rows:
        try:
            found.append(read(row))
        except Exception as error:  # noqa: BLE001 - whatever damage did to it, verify must go on
            problems.append(f"a {what} cannot be read: {error}")
    return found


_POLICY, _NEEDS = JOB_COLUMNS.index("policy"), JOB_COLUMNS.index("needs")
_SEAL = EVENT_COLUMNS.index("seal")
_TYPE, _DATA = EVENT_COLUMNS.index("type"), EVENT_COLUMNS.index("data")
_REV = EVENT_COLUMNS.index("rev")
_SEALED = [EVENT_COLUMNS.index(name) for name in SEALED]
_BEAT_CODES = {kind.code for kind in BEATS}


def _seal_problems(rows: Sequence[Any]) -> list[str]:
    """Compare each seal with what it should be; events from before sealing have none."""
    problems = []
    previous: bytes | None = None
    for row in rows:
        found = row[_SEAL]
        if found is None:
            if previous is not None:
                problems.append(f"rev {row[_REV]}: has no seal though the one before it has")
            continue
        expected = seal(previous, [row[i] for i in _SEALED])
        if bytes(found) != expected:
            problems.append(f"rev {row[_REV]}: the seal is broken")
        if row[_TYPE] not in _BEAT_CODES:
            previous = bytes(found)
    return problems
