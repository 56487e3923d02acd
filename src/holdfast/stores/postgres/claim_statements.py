"""The statements of a claim: how they are put together, and what each is given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypedDict
from uuid import UUID

import msgspec

from holdfast.lifecycle.routes import is_storable
from holdfast.ports import ClaimRequest
from holdfast.stores.fit import fit
from holdfast.stores.law import DEFAULT_TENANT
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.postgres.entering import Wanted, at_their_beginnings
from holdfast.stores.ranges import Range
from holdfast.stores.text import blocks

PACKAGE = "holdfast.stores.postgres"


@cache
def claim_sql(*, of_tenant: bool = False, of_tasks: bool = True) -> str:
    """Write the claim from ranges, of one tenant or all, of some tasks or all."""
    sql = blocks(PACKAGE)
    picked = sql["claim_ranges"].replace(":due", _due())
    return _filled(sql["claim"].replace(":picked", picked), of_tenant, of_tasks, tenant=15)


@cache
def due_sql(name: str, *, of_tenant: bool = False, of_tasks: bool = True) -> str:
    """Write a statement about the ranges that have a due job, such as `claim_firsts`."""
    sql = blocks(PACKAGE)
    due = _due()
    # The same ranges as in the claim, which has three parameters before them.
    for number in range(4, 15):
        due = due.replace(f"${number}::", f"${number - 3}::")
    text = sql[name].replace(":due", due)
    return _filled(text, of_tenant, of_tasks, tenant=12 if name == "claim_firsts" else 13)


def _due() -> str:
    sql = blocks(PACKAGE)
    return sql["claim_due"].replace(":served", sql["claim_served"])


def _filled(text: str, of_tenant: bool, of_tasks: bool, *, tenant: int) -> str:
    sql = blocks(PACKAGE)
    up_to_the_cut = sql["claim_range"].replace(
        ":within", "AND j.claim_order <= (SELECT last FROM cut)"
    )
    text = text.replace(":next", sql["claim_next" if of_tasks else "claim_next_of_all"])
    text = text.replace(":cut_range", up_to_the_cut)
    text = text.replace(":range", sql["claim_range"].replace(":within", ""))
    whose = sql["claim_whose"].replace(":tenant", f"${tenant}") if of_tenant else ""
    return text.replace(":whose", whose)


@cache
def claim_ids_sql() -> str:
    """Write the claim of rows that are locked already."""
    sql = blocks(PACKAGE)
    return sql["claim"].replace(":picked", sql["claim_ids"])


def range_arrays(request: ClaimRequest, wanted: Wanted) -> list[Any]:
    """Return the arguments for the ranges, and for what the worker can serve of them."""
    return [
        *([one[i] for one in wanted.search] for i in range(5)),
        *([one[i] for one, _ in wanted.known] for i in range(3)),
        [start for _, start in wanted.known],
        msgspec.json.encode(sorted(filter(is_storable, request.capabilities))).decode(),
        request.tenant == DEFAULT_TENANT,
    ]


class _Of(TypedDict):
    of_tenant: bool
    of_tasks: bool


def _of(request: ClaimRequest) -> _Of:
    """Return which statement a request needs.

    The default tenant's jobs have lanes of their own, so only other tenants have an index.
    """
    of_tenant = request.tenant not in (None, DEFAULT_TENANT)
    return {"of_tenant": of_tenant, "of_tasks": request.tasks is not None}


def _whose(request: ClaimRequest) -> list[str]:
    return [request.tenant] if request.tenant and _of(request)["of_tenant"] else []


async def claim_ranges(connection: Connection, request: ClaimRequest, wanted: Wanted) -> list[Any]:
    """Claim from ranges in one statement."""
    rows: list[Any] = await connection.fetch(
        claim_sql(**_of(request)),
        request.request_id,
        request.limit,
        request.owner,
        *range_arrays(request, wanted),
        *_whose(request),
    )
    return rows


async def claim_fitting(connection: Connection, request: ClaimRequest, wanted: Wanted) -> list[Any]:
    """Lock a bounded look-ahead of candidates and claim those that fit, in their order."""
    assert request.capacity is not None
    async with connection.transaction():
        candidates = await lock_due(connection, request, wanted, request.lookahead)
        candidates.sort(key=lambda row: (row[0], row[1].bytes))
        nearest = candidates[: request.lookahead]
        chosen = fit([(row[2], row[3]) for row in nearest], request.capacity, request.limit)
        if not chosen:
            return []
        return await claim_locked(connection, request, [nearest[i][1] for i in chosen])


async def claim_greedily(
    connection: Connection, request: ClaimRequest, heads: Sequence[Range]
) -> list[Any]:
    """Claim what is due and not locked, range by range, when others hold what the merge gave.

    The order is kept within a range only; so it is only called when a claim came back empty.
    """
    async with connection.transaction():
        rows = await connection.fetch(
            due_sql("lock_some", **_of(request)),
            *range_arrays(request, at_their_beginnings(heads)),
            request.limit,
            *_whose(request),
        )
        return await claim_locked(connection, request, [row[0] for row in rows]) if rows else []


async def lock_due(
    connection: Connection, request: ClaimRequest, wanted: Wanted, limit: int
) -> list[Any]:
    """Lock up to a number of due jobs of each range that others have not locked."""
    rows: list[Any] = await connection.fetch(
        due_sql("fitting", **_of(request)),
        *range_arrays(request, wanted),
        limit,
        *_whose(request),
    )
    return rows


async def claim_locked(
    connection: Connection, request: ClaimRequest, ids: Sequence[UUID]
) -> list[Any]:
    """Claim jobs that this transaction has locked."""
    rows: list[Any] = await connection.fetch(
        claim_ids_sql(), request.request_id, request.limit, request.owner, list(ids)
    )
    return rows


async def heads_of(connection: Connection, request: ClaimRequest, wanted: Wanted) -> list[Range]:
    """Return the ranges that have a due job, locked or not."""
    rows = await connection.fetch(
        due_sql("claim_firsts", **_of(request)),
        *range_arrays(request, wanted),
        *_whose(request),
    )
    return [Range(*row) for row in rows]
