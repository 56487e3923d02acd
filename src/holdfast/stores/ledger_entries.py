"""The ledger's entries: rows of jobs, events and keys put together by job, damage reported."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.lifecycle.execution_policy import content_key, needs_key_of, read_policy
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.seal import SEALED, Switches, must_be_sealed, seal
from holdfast.lifecycle.states import BEATS, EventType, KeyKind
from holdfast.lifecycle.transitions import BACKDATED, SUBMIT_EVENT
from holdfast.ports.models import KeyRow, LedgerEntry
from holdfast.stores.columns import DATA, EVENT_COLUMNS, NEEDS, POLICY, TYPE, created_keys
from holdfast.stores.statements import Statements

R = TypeVar("R")


def build_entries(
    jobs: Sequence[Sequence[Any]],
    events: Sequence[Sequence[Any]],
    keys: Sequence[Sequence[Any]],
    reader: Statements,
    *,
    switches: Switches = (),
    holds: Mapping[JobId, set[str]] = {},
    unclaimed: Collection[JobId] = (),
    quarantined: Mapping[JobId, str | None] = {},
    purged: Collection[JobId] = (),
) -> list[LedgerEntry]:
    """Put rows of one snapshot together, by id. An unreadable row is reported, not raised."""
    by_id: dict[JobId, tuple[list[Any], list[Any], list[Any]]] = {}
    for part, rows in enumerate((jobs, events, keys)):
        for row in rows:
            by_id.setdefault(reader.id(row[0]), ([], [], []))[part].append(row)
    return [
        _build_entry(
            id_,
            *by_id[id_],
            reader,
            switches=switches,
            holds=frozenset(holds.get(id_, ())),
            unclaimed=id_ in unclaimed,
            quarantined=quarantined[id_] or "" if id_ in quarantined else None,
            purged=id_ in purged,
        )
        for id_ in sorted(by_id)
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


def list_named(
    jobs: Sequence[Sequence[Any]], events: Sequence[Sequence[Any]]
) -> set[tuple[int, int]]:
    """List the policies and needs that rows name: a job row may be missing, its events not."""
    found = {(row[POLICY], row[NEEDS]) for row in jobs}
    for row in events:
        if row[TYPE] == SUBMIT_EVENT.code:
            with contextlib.suppress(
                msgspec.MsgspecError, TypeError
            ):  # reported by `build_entries`
                found.add(created_keys(row[DATA]))
    return found


def _build_entry(
    id: JobId,
    jobs: list[Any],
    events: list[Any],
    keys: list[Any],
    reader: Statements,
    *,
    switches: Switches,
    holds: frozenset[str],
    unclaimed: bool,
    quarantined: str | None,
    purged: bool,
) -> LedgerEntry:
    problems: list[str] = []
    rows = _read_rows(jobs, reader.job, "job row", problems)
    log = _read_rows(events, reader.event, "event", problems)
    problems += _seal_problems(events, switches)
    return LedgerEntry(
        id=id,
        row=rows[0] if rows else None,
        unreadable="; ".join(problems) or None,
        events=log,
        keys=[
            KeyRow(tenant=row[1], kind=KeyKind.of(row[2]), key=row[3], digest=row[4])
            for row in keys
        ],
        holds=holds,
        unclaimed=unclaimed,
        quarantined=quarantined,
        purged=purged,
    )


def _read_rows(
    rows: Sequence[Any], read: Callable[[Any], R], what: str, problems: list[str]
) -> list[R]:
    found = []
    for row in rows:
        try:
            found.append(read(row))
        except Exception as error:  # noqa: BLE001 - whatever damage did to it, verify must continue
            problems.append(f"a {what} cannot be read: {error}")
    return found


_SEAL = EVENT_COLUMNS.index("seal")
_REV, _AT = EVENT_COLUMNS.index("rev"), EVENT_COLUMNS.index("at")
_SEALED = [EVENT_COLUMNS.index(name) for name in SEALED]
_BEAT_CODES = {kind.code for kind in BEATS}


def _seal_problems(rows: Sequence[Any], switches: Switches) -> list[str]:
    """Compare each seal with what it should be. While sealing is off there is none, and the chain
    starts again with the next."""
    problems = []
    previous: bytes | None = None
    for row in rows:
        found = None if row[_SEAL] is None else bytes(row[_SEAL])
        if found is None:
            backdated = EventType.of(row[TYPE]) in BACKDATED
            if must_be_sealed(switches, row[_AT], backdated=backdated):
                problems.append(f"rev {row[_REV]}: has no seal though sealing was on")
        elif found != seal(previous, [row[i] for i in _SEALED]):
            problems.append(f"rev {row[_REV]}: the seal is broken")
        if row[TYPE] not in _BEAT_CODES:
            previous = found
    return problems
