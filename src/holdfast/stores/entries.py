"""The ledger's entries: rows of jobs, events and keys put together by job, damage reported."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from holdfast.lifecycle.job import Job, JobId, LoggedEvent
from holdfast.lifecycle.policy import content_key, needs_key_of, read_policy
from holdfast.lifecycle.seal import SEALED, Switches, must_be_sealed, seal
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
    *,
    switches: Switches = (),
    unclaimed: Collection[UUID] = (),
    quarantined: Mapping[Any, str | None] = {},
    purged: Collection[UUID] = (),
) -> list[LedgerEntry]:
    """Put rows of one snapshot together, by id. A row that cannot be read is said, not raised."""
    by_id: dict[UUID, tuple[list[Any], list[Any], list[Any]]] = {}
    for part, rows in enumerate((jobs, events, keys)):
        for row in rows:
            by_id.setdefault(row[0], ([], [], []))[part].append(row)
    return [
        _entry(
            id_,
            *by_id[id_],
            seen,
            switches=switches,
            unclaimed=id_ in unclaimed,
            quarantined=quarantined[id_] or "" if id_ in quarantined else None,
            purged=id_ in purged,
        )
        for id_ in sorted(by_id, key=lambda id_: id_.bytes)
    ]


def dictionary_problems(rows: Sequence[Sequence[Any]]) -> list[str]:
    """Judge policies and needs, each given as: what it is, its key, its text, spans read off it."""
    return [f"{what} {key} is not what was written" for what, key, *row in rows
            if not _is_as_written(what, key, *row)]  # fmt: skip


def _is_as_written(what: str, key: int, body: str, *spans: int | None) -> bool:
    if what == "needs":
        return key == (needs_key_of(body.encode()) if body != "[]" else 0)
    if key != content_key(body.encode()):
        return False
    policy = read_policy(body)
    lease, start = policy.lease, policy.start_timeout
    # SQLite keeps no running lease beside the text.
    return spans in ((lease, start), (lease, policy.running_lease, start))


def named(jobs: Sequence[Sequence[Any]], events: Sequence[Sequence[Any]]) -> set[tuple[int, int]]:
    """List the policies and needs that rows name: a job row may be missing, its events not."""
    found = {(row[_POLICY], row[_NEEDS]) for row in jobs}
    for row in events:
        if row[_TYPE] == EventType.CREATED.code:
            with contextlib.suppress(msgspec.MsgspecError, TypeError):  # said by `entries`
                found.add(created_keys(row[_DATA]))
    return found


def _entry(
    id_: UUID,
    jobs: list[Any],
    events: list[Any],
    keys: list[Any],
    seen: Dictionary,
    *,
    switches: Switches,
    unclaimed: bool,
    quarantined: str | None,
    purged: bool,
) -> LedgerEntry:
    problems: list[str] = []
    rows: list[Job] = _read(jobs, lambda row: read_job(row, seen), "job row", problems)
    log: list[LoggedEvent] = _read(events, lambda row: read_event(row, seen), "event", problems)
    problems += _seal_problems(events, switches)
    return LedgerEntry(
        id=JobId(id_),
        row=rows[0] if rows else None,
        unreadable="; ".join(problems) or None,
        events=log,
        keys=[
            KeyRow(tenant=row[1], kind=KeyKind.of(row[2]), key=row[3], digest=row[4])
            for row in keys
        ],
        unclaimed=unclaimed,
        quarantined=quarantined,
        purged=purged,
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
_REV, _AT = EVENT_COLUMNS.index("rev"), EVENT_COLUMNS.index("at")
_SEALED = [EVENT_COLUMNS.index(name) for name in SEALED]
_BEAT_CODES = {kind.code for kind in BEATS}


def _seal_problems(rows: Sequence[Any], switches: Switches) -> list[str]:
    """Compare each seal with what it should be. While sealing is off there is none, and the chain
    begins anew with the next."""
    problems = []
    previous: bytes | None = None
    for row in rows:
        found = None if row[_SEAL] is None else bytes(row[_SEAL])
        if found is None:
            told_late = row[_TYPE] == EventType.STARTED.code
            if must_be_sealed(switches, row[_AT], told_late=told_late):
                problems.append(f"rev {row[_REV]}: has no seal though sealing was on")
        elif found != seal(previous, [row[i] for i in _SEALED]):
            problems.append(f"rev {row[_REV]}: the seal is broken")
        if row[_TYPE] not in _BEAT_CODES:
            previous = found
    return problems
