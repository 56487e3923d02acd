"""Claim: the ranges of a worker, merged; or, with bounded resources, a first fit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from holdfast.lifecycle.claim_order import DEFAULT_TENANT
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.routes import is_storable
from holdfast.ports.models import Claimed, ClaimRequest, claimed_as
from holdfast.stores.capacity import Candidate, choose_fitting
from holdfast.stores.claim_ranges import Range
from holdfast.stores.columns import read_claimed_jobs, read_created_text, read_job
from holdfast.stores.outcomes import check_repeated_claim
from holdfast.stores.postgres.claim_start import ClaimStarts, Entries, at_their_start, list_searches
from holdfast.stores.postgres.session import SQL, PostgresSession
from holdfast.stores.postgres.submit import DATA_ERRORS
from holdfast.stores.quarantine import (
    FIRST_EVENT_MISSING,
    MOST_SET_ASIDE,
    REASON_LIMIT,
    UNREADABLE,
    read_undamaged,
)
from holdfast.stores.sql_files import without_comment
from holdfast.stores.statements import Row

_PENDING = 13
"""Where a claimed row has the number of pending signals."""


class _Tried(Exception):
    """Undoes a claim that was only tried."""

    def __init__(self, bad: dict[JobId, str]) -> None:
        super().__init__()
        self.bad = bad


async def claim(
    session: PostgresSession, request: ClaimRequest, starts: ClaimStarts
) -> list[Claimed]:
    """Give due jobs to an owner under lease; `starts` is where claims of this store enter."""
    rows = await _claim_unless_repeated(session, request, starts)
    jobs: list[Claimed] = []
    if rows:
        jobs, bad = await _read_claimed(session, rows, request.owner)
        # What cannot be read is set aside: its claim is committed.
        await session.set_aside(bad)
    if request.tenant is None:
        # From one tenant's jobs nothing follows for where those of all start.
        starts.learn(jobs, request.limit)
    return jobs or await _answer_repeated(session, request) or []


async def _claim_unless_repeated(
    session: PostgresSession, request: ClaimRequest, starts: ClaimStarts
) -> Sequence[Row]:
    """Claim; nothing if the request took something before."""
    of_all = request.tenant is None
    search = list_searches(request.queues, request.tasks)
    heard = session.wake.number
    hinted = starts.hinted.choose(request, session.wake) if starts.are_cheap else None
    if hinted is not None:
        entries = at_their_start([hinted])
    else:
        entries = starts.choose_entries(search) if of_all else Entries(search=search)

    async def work(session: PostgresSession, tries: int) -> Sequence[Row]:
        if request.capacity is not None:
            return await _claim_fitting(session, request, entries)
        if hinted is not None:
            return await _claim_known(session, request, hinted)
        rows = await _claim_ranges(session, request, entries)
        heads = [] if rows else await _list_due_ranges(session, request, entries)
        return rows or (await _claim_greedily(session, request, heads) if heads else [])

    started = time.monotonic()
    try:
        rows = await session.run(work, keep=DATA_ERRORS)
    except DATA_ERRORS as error:
        if _is_repeated_request(error):
            return []
        return await _claim_carefully(session, request, entries)
    if of_all:
        starts.note_claim_time(entries, time.monotonic() - started, len(rows))
    starts.hinted.note_claim(request, hinted, heard=heard, is_full=len(rows) >= request.limit)
    return rows


async def _claim_carefully(
    session: PostgresSession, request: ClaimRequest, entries: Entries
) -> Sequence[Row]:
    """Claim by halves until the damaged rows are found; set them aside, take the others."""

    async def work(session: PostgresSession, tries: int) -> Sequence[Row]:
        async with session.transaction():
            good: list[UUID] = []
            for one in await _list_due_ranges(session, request, entries):
                good += await _set_aside_from_range(session, request, one, len(good))
                # Each range is chosen from by itself: two would share the room that is there once.
                if len(good) >= request.limit or (good and request.capacity is not None):
                    break
            return await claim_locked(session, request, good) if good else []

    try:
        return await session.run(work, keep=(asyncpg.UniqueViolationError,))
    except asyncpg.UniqueViolationError:
        # Another try of the same request came first; `claim` asks what it took.
        return []


async def _set_aside_from_range(
    session: PostgresSession, request: ClaimRequest, one: Range, found: int
) -> list[UUID]:
    """Lock what is due of a range; set aside what cannot be claimed, until there is enough."""
    known: dict[JobId, str] = {}
    while True:
        # As far again as damaged rows are in the way: the mark of some may be refused.
        limit = (request.lookahead if request.capacity else request.limit) + len(known)
        rows = await _lock_due(session, request, at_their_start([one]), limit)
        ids = _choose_fitting_ids([row for row in rows if row[1] not in known], request)
        bad = await _find_unclaimable(session, request, ids)
        await session.set_aside(bad)
        known |= bad
        good = [id_ for id_ in ids if id_ not in bad]
        if not bad or len(good) + found >= request.limit or len(known) >= MOST_SET_ASIDE:
            return good


async def _find_unclaimable(
    session: PostgresSession, request: ClaimRequest, ids: Sequence[UUID]
) -> dict[JobId, str]:
    """Try to claim locked jobs, and undo it; return which cannot be claimed, and why."""
    if not ids:
        return {}
    try:
        async with session.transaction():
            rows = await claim_locked(session, request, ids)
            _, bad = await _read_claimed(session, rows, request.owner)
            raise _Tried(bad)
    except _Tried as tried:
        return tried.bad
    except DATA_ERRORS as error:
        if _is_repeated_request(error):
            raise
        if len(ids) == 1:
            reason = str(error).partition("\n")[0]
            return {JobId(ids[0]): f"it cannot be claimed: {reason}"[:REASON_LIMIT]}
    half = len(ids) // 2
    first = await _find_unclaimable(session, request, ids[:half])
    return first | await _find_unclaimable(session, request, ids[half:])


def _is_repeated_request(error: BaseException) -> bool:
    """Return whether a claim was refused because its request took something before.

    Any other key that is taken is a damaged job's: an event that is ahead of its row.
    """
    return isinstance(error, asyncpg.UniqueViolationError) and error.table_name == "claims"


async def _read_claimed(
    session: PostgresSession, rows: Sequence[Row], owner: str
) -> tuple[list[Claimed], dict[JobId, str]]:
    """Read claimed rows, and why some cannot be read."""
    await session.learn_created({row[1] for row in rows})
    await session.learn((policy, 0) for policy in {row[-1] for row in rows})
    rows = await _add_signals(session, rows)
    try:
        return read_claimed_jobs(rows, owner, session.seen), {}
    except UNREADABLE:
        return read_undamaged(
            rows, lambda row: _read_one(session, row, owner), lambda row: JobId(row[0])
        )


def _read_one(session: PostgresSession, row: Row, owner: str) -> Claimed:
    if row[1] is None:
        raise ValueError(FIRST_EVENT_MISSING)
    return read_claimed_jobs([row], owner, session.seen)[0]


async def _add_signals(session: PostgresSession, rows: Sequence[Row]) -> Sequence[Row]:
    """Add the names of pending signals to claimed rows; most have none."""
    ids = [row[0] for row in rows if row[_PENDING] is not None]
    if not ids:
        return rows
    found: dict[Any, Any] = dict(map(tuple, await session.rows("claimed_signals", ids)))
    return [
        row if row[_PENDING] is None else (*row[:_PENDING], found.get(row[0]), *row[_PENDING + 1 :])
        for row in map(tuple, rows)
    ]


async def _answer_repeated(session: PostgresSession, request: ClaimRequest) -> list[Claimed] | None:
    """Answer a request that took something before; None if it never did."""
    rows = await session.rows("claim_of", request.request_id)
    if not rows:
        return None
    # The same attempt must not be given out again after a failover.
    await session.await_standby()
    check_repeated_claim(request, rows[0][0], any(row[1] for row in rows))
    held = [row for row in rows if row[1]]
    await session.learn_created(row[3] for row in held)
    seen = session.seen

    def read(row: Row) -> Claimed:
        return claimed_as(
            read_job(row[6:], seen),
            read_created_text(row[3], seen),
            None if row[4] is None else row[4].encode(),
            row[5],
        )

    jobs, bad = read_undamaged(held, read, lambda row: JobId(row[2]))
    await session.set_aside(bad)
    return jobs


@cache
def claim_sql(*, of_tenant: bool = False, of_tasks: bool = True) -> str:
    """Write the claim from ranges, of one tenant or all, of some tasks or all."""
    picked = _part("claim_ranges").replace(":due", _due())
    return _fill_ranges(SQL["claim"].replace(":picked", picked), of_tenant, of_tasks, tenant=15)


@cache
def _due_sql(name: str, *, of_tenant: bool = False, of_tasks: bool = True) -> str:
    """Write a statement about the ranges that have a due job, such as `claim_firsts`."""
    due = _due()
    # The same ranges as in the claim, which has three parameters before them.
    for number in range(4, 15):
        due = due.replace(f"${number}::", f"${number - 3}::")
    text = SQL[name].replace(":due", due)
    return _fill_ranges(text, of_tenant, of_tasks, tenant=12 if name == "claim_firsts" else 13)


@cache
def claim_known_sql() -> str:
    """Write the claim from one range that is known."""
    # As in the claim from ranges, which has more parameters before these two.
    served = _part("claim_served").replace("$13", "$7").replace("$14", "$8")
    picked = _part("claim_known").replace(":served", served).replace(":open", _part("claim_open"))
    return _fill_ranges(SQL["claim"].replace(":picked", picked), False, True, tenant=0)


def _part(name: str) -> str:
    return without_comment(SQL[name])


def _due() -> str:
    text = _part("claim_due").replace(":served", _part("claim_served"))
    return text.replace(":open", _part("claim_open"))


def _fill_ranges(text: str, of_tenant: bool, of_tasks: bool, *, tenant: int) -> str:
    up_to_the_cut = _part("claim_range").replace(
        ":within", "AND j.claim_order <= (SELECT last FROM cut)"
    )
    text = text.replace(":next", _part("claim_next" if of_tasks else "claim_next_of_all"))
    text = text.replace(":cut_range", up_to_the_cut)
    text = text.replace(":range", _part("claim_range").replace(":within", ""))
    whose = _part("claim_whose").replace(":tenant", f"${tenant}") if of_tenant else ""
    return text.replace(":whose", whose)


@cache
def _claim_ids_sql() -> str:
    """Write the claim of rows that are locked already."""
    return SQL["claim"].replace(":picked", _part("claim_ids"))


def _choose_statement(request: ClaimRequest) -> dict[str, bool]:
    """Return which statement a request needs.

    The default tenant's jobs have lanes of their own, so only other tenants have an index.
    """
    of_tenant = request.tenant not in (None, DEFAULT_TENANT)
    return {"of_tenant": of_tenant, "of_tasks": request.tasks is not None}


def _build_range_arrays(request: ClaimRequest, entries: Entries) -> list[Any]:
    """Return the arguments for the ranges, and for what the worker can serve of them."""
    return [
        *([one[i] for one in entries.search] for i in range(5)),
        *([one[i] for one, _ in entries.known] for i in range(3)),
        [start for _, start in entries.known],
        *_served(request),
    ]


def _served(request: ClaimRequest) -> tuple[str, bool]:
    """Return the arguments for what the worker can serve."""
    capabilities = msgspec.json.encode(sorted(filter(is_storable, request.capabilities)))
    return capabilities.decode(), request.tenant == DEFAULT_TENANT


def _whose(request: ClaimRequest) -> list[str]:
    return [request.tenant] if request.tenant and _choose_statement(request)["of_tenant"] else []


async def _claim_ranges(
    session: PostgresSession, request: ClaimRequest, entries: Entries
) -> Sequence[Row]:
    """Claim from ranges in one statement."""
    return await session.fetch(
        claim_sql(**_choose_statement(request)),
        request.request_id,
        request.limit,
        request.owner,
        *_build_range_arrays(request, entries),
        *_whose(request),
    )


async def _claim_known(
    session: PostgresSession, request: ClaimRequest, one: Range
) -> Sequence[Row]:
    """Claim from one range."""
    return await session.fetch(
        claim_known_sql(),
        request.request_id,
        request.limit,
        request.owner,
        *one,
        *_served(request),
    )


async def _claim_fitting(
    session: PostgresSession, request: ClaimRequest, entries: Entries
) -> Sequence[Row]:
    """Lock a bounded look-ahead of candidates and claim those that fit, in their order."""
    async with session.transaction():
        rows = await _lock_due(session, request, entries, request.lookahead)
        nearest = sorted(rows, key=lambda row: (row[0], row[1].bytes))[: request.lookahead]
        chosen = _choose_fitting_ids(nearest, request)
        return await claim_locked(session, request, chosen) if chosen else []


def _choose_fitting_ids(rows: Sequence[Row], request: ClaimRequest) -> list[UUID]:
    """Return the ids of the candidates that a worker has room for."""
    if request.capacity is None:
        return [row[1] for row in rows]
    candidates = [Candidate(*row[2:]) for row in rows]
    chosen = choose_fitting(candidates, request.capacity, request.limit)
    return [rows[i][1] for i in chosen]


async def _claim_greedily(
    session: PostgresSession, request: ClaimRequest, heads: Sequence[Range]
) -> Sequence[Row]:
    """Claim what is due and not locked, range by range, when others hold what the merge gave.

    The order is kept within a range only, so it is called only after a claim found nothing.
    """
    async with session.transaction():
        rows = await session.fetch(
            _due_sql("lock_some", **_choose_statement(request)),
            *_build_range_arrays(request, at_their_start(heads)),
            request.limit,
            *_whose(request),
        )
        return await claim_locked(session, request, [row[0] for row in rows]) if rows else []


async def _lock_due(
    session: PostgresSession, request: ClaimRequest, entries: Entries, limit: int
) -> Sequence[Row]:
    """Lock up to a number of due jobs of each range that others have not locked."""
    return await session.fetch(
        _due_sql("lock_due", **_choose_statement(request)),
        *_build_range_arrays(request, entries),
        limit,
        *_whose(request),
    )


async def claim_locked(
    session: PostgresSession, request: ClaimRequest, ids: Sequence[UUID]
) -> Sequence[Row]:
    """Claim jobs that this transaction has locked."""
    return await session.fetch(
        _claim_ids_sql(), request.request_id, request.limit, request.owner, list(ids)
    )


async def _list_due_ranges(
    session: PostgresSession, request: ClaimRequest, entries: Entries
) -> list[Range]:
    """Return the ranges that have a due job, locked or not."""
    rows = await session.fetch(
        _due_sql("claim_firsts", **_choose_statement(request)),
        *_build_range_arrays(request, entries),
        *_whose(request),
    )
    return [Range(*row) for row in rows]
