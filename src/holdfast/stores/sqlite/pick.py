"""Which jobs a claim takes: the due ones of the ranges that a worker can serve, in their order."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from holdfast.lifecycle.routes import offered_routes
from holdfast.ports import ClaimRequest
from holdfast.stores.fit import fit
from holdfast.stores.law import DEFAULT_TENANT
from holdfast.stores.ranges import Range
from holdfast.stores.sqlite.rows import Row
from holdfast.stores.sqlite.session import for_rows, fragment
from holdfast.stores.sqlite.turn import CHUNKS, Turn

EVER = 2**62
MERGED = 8
"""How many ranges SQLite merges itself, in a statement of its own for each number of them."""


class Due(NamedTuple):
    """A range that has a due job, and where its first job is in the order of all."""

    head: int
    id: bytes
    range: Range


def _due(turn: Turn, request: ClaimRequest) -> list[Due]:
    """List the ranges that have a due job, that this worker can serve and that are not paused."""
    paused = {name for (name,) in turn.rows("paused")}
    queues = [queue for queue in dict.fromkeys(request.queues) if queue not in paused]
    routes = None if request.tasks is None else offered_routes(request.tasks)
    live = [one for queue in queues for one in _live(turn, queue, routes, _bound(request))]
    due = [one for one in live if one.head <= turn.now + one.range.ageing]
    needs, offered = turn.seen.needs, request.capabilities
    for key in {one.range.needs for one in due if one.range.needs not in needs}:
        turn.learn_needs(key)
    any_tenant = request.tenant != DEFAULT_TENANT
    # A set that is missing here is damage: its jobs wait, and verify names them.
    return [
        one
        for one in due
        if one.range.needs in needs
        and needs[one.range.needs] <= offered
        and (any_tenant or one.range.of_default)
    ]


def _bound(request: ClaimRequest) -> str | None:
    """Return the tenant whose index is read; the default one's jobs have lanes of their own."""
    return None if request.tenant == DEFAULT_TENANT else request.tenant


def _live(
    turn: Turn, queue: str, routes: Sequence[str] | None, tenant: str | None
) -> Iterator[Due]:
    """Go through the ranges of a queue that have jobs, from one to the next.

    Routes that the worker does not serve are jumped over, and so are those it serves that have
    none: the number of steps is that of the fewer.
    """
    name, of_tenant = ("next_range", ()) if tenant is None else ("next_range_of", (tenant,))
    served = None if routes is None else frozenset(routes)
    at = _from(routes, "")
    while at is not None:
        row = turn.row(name, (queue, *at, *of_tenant))
        if row is None:
            return
        route, lane, head, id_ = row
        if served is None or route in served:
            yield Due(head, id_, Range(queue, route, lane))
            at = route, lane
        else:
            at = _from(routes, route)


def _from(routes: Sequence[str] | None, route: str) -> tuple[str, int] | None:
    """Return where to look for the first served route from this one on."""
    if routes is None:
        return route, -1
    number = bisect_left(routes, route)
    return (routes[number], -1) if number < len(routes) else None


def pick(turn: Turn, request: ClaimRequest) -> list[Row]:
    """Read what is due, in order: as many as are wanted, or as fit within the look-ahead."""
    if request.limit < 1:
        return []
    due = _due(turn, request)
    limit = request.limit if request.capacity is None else request.lookahead
    tenant = _bound(request)
    if len(due) <= MERGED:
        rows = _merge(turn, due, limit, tenant) if due else []
    else:
        due.sort()
        rows = _read(turn, _first(turn, due[:limit], limit, tenant))
    if request.capacity is None:
        return rows
    chosen = fit([(row[-2], row[-1]) for row in rows], request.capacity, request.limit)
    return [rows[i] for i in chosen]


@cache
def _merge_sql(arm: str, arms: int) -> str:
    merged = " UNION ALL ".join([fragment(arm)] * arms)
    return fragment("claim_ranges", claimable=fragment("claimable"), arms=merged)


def _merge(turn: Turn, due: Sequence[Due], limit: int, tenant: str | None) -> list[Row]:
    """Have SQLite merge a few ranges."""
    arguments: list[Any] = []
    arm, of_tenant = _arm(tenant)
    for *_, one in due:
        arguments += (*one, turn.now + one.ageing, *of_tenant)
    return turn.connection.execute(_merge_sql(arm, len(due)), [*arguments, limit]).fetchall()


def _first(turn: Turn, due: Sequence[Due], limit: int, tenant: str | None) -> list[Row]:
    """Merge many ranges: tell the first jobs of all, as place in the order and id.

    As many heads as are wanted say where the merge ends at the latest; of fewer ranges a sample
    does, a few jobs of each. No range is read beyond that.
    """
    arm, of_tenant = _arm(tenant)
    sql = fragment("claim_heads", arm=fragment(arm))

    def read(one: Range, most: int, end: int) -> list[Row]:
        bound = min(turn.now + one.ageing, end)
        return turn.connection.execute(sql, (*one, bound, *of_tenant, most)).fetchall()

    few = 1 + 2 * limit // len(due)
    found = [read(one, few, EVER) for *_, one in due]
    sample = sorted(row for rows in found for row in rows)
    end = EVER if len(sample) <= limit else sample[limit - 1][0]
    for number, (*_, one) in enumerate(due):
        rows = found[number]
        if len(rows) == few and rows[-1][0] <= end:
            found[number] = read(one, limit, end)
    return sorted(row for rows in found for row in rows)[:limit]


def _read(turn: Turn, picked: Sequence[Row]) -> list[Row]:
    """Read the jobs that were picked."""
    sql = fragment("claim_ids", claimable=fragment("claimable"))
    rows: list[Row] = []
    for size in CHUNKS:
        whole = len(picked) - (len(picked) - len(rows)) % size
        for start in range(len(rows), whole, size):
            some = chain(*picked[start : start + size])
            rows += turn.connection.execute(for_rows(sql, size), list(some)).fetchall()
    return rows


def _arm(tenant: str | None) -> tuple[str, tuple[str, ...]]:
    return ("claim_arm", ()) if tenant is None else ("claim_arm_of", (tenant,))
