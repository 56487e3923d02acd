"""Claim: give due jobs to an owner under lease, in the order of the claim index.

differs from postgres: the writer is alone, so it reads what is due, decides what to take, and then
writes; SQLite merges a few ranges lazily by itself.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import apsw
from msgspec.structs import replace

from holdfast.errors import JobUnreadable
from holdfast.lifecycle.claim_order import DEFAULT_TENANT
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.lease import is_live
from holdfast.lifecycle.record import NO_FACTS, Facts
from holdfast.lifecycle.routes import offered_routes
from holdfast.lifecycle.seal import seal
from holdfast.lifecycle.transitions import CLAIM_EVENT, CLAIM_TARGET
from holdfast.ports.models import Claimed, ClaimRequest, claimed_as
from holdfast.stores.capacity import Candidate, choose_fitting, subtract_room
from holdfast.stores.claim_ranges import Range
from holdfast.stores.columns import facts_text, read_claimed_jobs, read_created_text
from holdfast.stores.cursors import NEVER
from holdfast.stores.outcomes import check_repeated_claim
from holdfast.stores.quarantine import (
    FIRST_EVENT_MISSING,
    MOST_SET_ASIDE,
    REASON_LIMIT,
    UNREADABLE,
    reason_of,
    unreadable,
)
from holdfast.stores.sqlite.rows import Row, fragment, job_id
from holdfast.stores.sqlite.turn import CHUNKS, Turn, repeat_values

MERGED = 8
"""Ranges that SQLite merges itself, by a statement of its own for each number of them."""


def claim(turn: Turn, request: ClaimRequest) -> list[Claimed]:
    """Give up to `limit` due jobs to `owner`."""
    held = _answer_repeated(turn, request)
    if held is not None:
        return held
    rows = _read_due(turn, request)
    if not rows:
        return []
    taken, soonest = _apply_claim(turn, request, rows)
    _record_claim(turn, request, rows, soonest)
    return taken


def claim_carefully(turn: Turn, request: ClaimRequest) -> list[Claimed]:
    """Do the same row by row, and set those aside that cannot be read or moved."""
    held = _answer_repeated(turn, request)
    if held is not None:
        return held
    sieve = Sieve(turn, request)
    while sieve.goes_on:
        sieve.take(_read_due(turn, sieve.wanted))
    return sieve.record_taken()


def _apply_claim(
    turn: Turn, request: ClaimRequest, rows: Sequence[Row]
) -> tuple[list[Claimed], int]:
    """Apply the edge to each row, and write the event and the summaries.

    Also return when the first of the leases may have passed.
    """
    now, epoch = turn.now, turn.epoch
    alike: dict[_Move, list[bytes]] = {}
    jobs = []
    for row in rows:
        (id_, created, body, correlation, rev, attempt, failures, releases, state, policy, run_at,
         deadline, created_at, updated_at, pending) = row[:15]  # fmt: skip
        at = now if now > updated_at else updated_at
        alike.setdefault((state, rev, attempt, policy, at), []).append(id_)
        jobs.append(
            (job_id(id_), created, body, correlation, rev + 1, attempt + 1, failures, releases,
             epoch, run_at, deadline, created_at, at, pending, policy)
        )  # fmt: skip
    # Before anything is written: what cannot be read is not claimed.
    taken = _read_claimed(turn, jobs, request.owner)
    soonest = min(_write_moves(turn, request, move, ids) for move, ids in alike.items())
    for (state, tenant, queue), number in Counter(map(_COUNTED, rows)).items():
        turn.count(tenant, queue, state, -number)
        turn.count(tenant, queue, CLAIM_TARGET.code, number)
    return taken, soonest


_Move: TypeAlias = tuple[int, int, int, int, int]
"""What rows share that are claimed alike: state, revision, attempt and policy before, and when."""


def _write_moves(turn: Turn, request: ClaimRequest, move: _Move, ids: Sequence[bytes]) -> int:
    """Write the edge and its event for rows alike; return when the first lease may have passed."""
    state, rev, attempt, policy, at = move
    terms, epoch, owner = _find_terms(turn, policy, ids[0]), turn.epoch, request.owner
    lease = at + terms.lease
    timeout = None if terms.start_timeout is None else at + terms.start_timeout
    moved = (rev + 1, attempt + 1, owner, epoch, lease, timeout, at)
    turn.write("claim", [(id_,) for id_ in ids], moved)
    data = facts_text(Facts(epoch=epoch) if epoch != 1 else NO_FACTS)
    event = (rev + 1, state, at, attempt + 1, lease, owner, request.request_id, data)
    seals = _seal_events(turn, event, ids) if turn.sealing else [None] * len(ids)
    turn.write("claim_event", list(zip(ids, seals, strict=True)), event)
    # A start grants its own, shorter lease: look again when even that may have passed.
    return min(lease, at + terms.running_lease)


def _find_terms(turn: Turn, policy: int, id: bytes) -> Policy:
    if policy not in turn.seen.policies:
        turn.learn([(policy, 0)])
    try:
        return turn.seen.policies[policy]
    except KeyError as error:
        raise unreadable(job_id(id), reason_of(error)) from error


def _record_claim(turn: Turn, request: ClaimRequest, rows: Sequence[Row], soonest: int) -> None:
    """Write down what the claim took."""
    ids = b"".join([row[0] for row in rows])
    entry = (request.request_id, turn.now, soonest, turn.epoch, request.owner, ids)
    turn.write("add_claim", [entry])


class Sieve:
    """Takes jobs one by one, each in a savepoint, and sets those aside that cannot be taken."""

    def __init__(self, turn: Turn, request: ClaimRequest) -> None:
        self.goes_on = True
        self._turn = turn
        self._request = request
        self._taken: list[Claimed] = []
        self._rows: list[Row] = []
        self._soonest = NEVER
        self._bad: set[bytes] = set()

    @property
    def wanted(self) -> ClaimRequest:
        """What to read next: as many more as damaged rows may still be in the way."""
        # The database may have refused the mark of some.
        request, more = self._request, len(self._bad)
        room = request.capacity
        if room is not None:
            room = subtract_room(room, (one.job for one in self._taken))
        limit, lookahead = request.limit + more, request.lookahead + more
        return replace(request, limit=limit, lookahead=lookahead, capacity=room)

    def take(self, due: Sequence[Row]) -> None:
        """Take what is still wanted of these."""
        left = self._request.limit - len(self._taken)
        rows = [row for row in due if row[0] not in self._bad][:left]
        bad = {job_id(row[0]): why for row in rows if (why := self._try_to_take(row)) is not None}
        self._turn.set_aside(bad)
        self._bad |= {id_.bytes for id_ in bad}
        self.goes_on = (
            bool(bad) and len(self._taken) < self._request.limit and len(self._bad) < MOST_SET_ASIDE
        )

    def _try_to_take(self, row: Row) -> str | None:
        """Take one; return why it cannot be taken."""
        try:
            with self._turn.in_savepoint():
                taken, soonest = _apply_claim(self._turn, self._request, [row])
        except JobUnreadable as error:
            return error.damage
        except apsw.ConstraintError as error:
            return f"it cannot be claimed: {error}"[:REASON_LIMIT]
        self._taken += taken
        self._rows.append(row)
        self._soonest = min(self._soonest, soonest)
        return None

    def record_taken(self) -> list[Claimed]:
        """Write the claim down, and return what it took."""
        if self._rows:
            _record_claim(self._turn, self._request, self._rows, self._soonest)
        return self._taken


_COUNTED = itemgetter(8, 15, 16)
"""State, tenant and queue of a due row."""
_RUN_AT = 10
"""When a due row became due."""


def _read_claimed(turn: Turn, rows: Sequence[Row], owner: str) -> list[Claimed]:
    try:
        return read_claimed_jobs(rows, owner, turn.seen)
    except UNREADABLE:
        return [_learn_and_read_claimed(turn, row, owner) for row in rows]


def _learn_and_read_claimed(turn: Turn, row: Row, owner: str) -> Claimed:
    """Read it again, now that what it names was looked up; or report that it is damaged."""
    if row[1] is None:
        raise unreadable(row[0], FIRST_EVENT_MISSING)
    try:
        turn.learn_created(row[1])
        return read_claimed_jobs([row], owner, turn.seen)[0]
    except UNREADABLE as error:
        raise unreadable(row[0], reason_of(error)) from error


def _seal_events(turn: Turn, event: Row, ids: Sequence[bytes]) -> list[bytes]:
    """Seal the same event of each of these jobs."""
    rev, state, at, attempt, lease, owner, request_id, data = event
    common = (
        rev, CLAIM_EVENT.code, state, CLAIM_TARGET.code, at, attempt, 0, lease, None, None, 1,
        owner, request_id, None, None, data, None,
    )  # fmt: skip
    return [seal(turn.last_seal(id_), (id_, *common)) for id_ in ids]


def _answer_repeated(turn: Turn, request: ClaimRequest) -> list[Claimed] | None:
    """Answer a request that took something before; None if it never did."""
    known = turn.row("claim_of", request.request_id)
    if known is None:
        return None
    owner, ids = known
    held = []
    for start in range(0, len(ids), 16):
        for attempt, data, body, correlation_id, *row in turn.rows(
            "claimed_under", ids[start : start + 16], request.request_id
        ):
            for job in turn.readable_jobs([tuple(row)])[0]:
                is_held = job.owner == owner and job.attempt == attempt
                if is_held and is_live(job, turn.now, turn.epoch):
                    with contextlib.suppress(*UNREADABLE):  # a damaged one is not given out again
                        created = read_created_text(data, turn.seen)
                        text = None if body is None else body.encode()
                        held.append(claimed_as(job, created, text, correlation_id))
    check_repeated_claim(request, owner, bool(held))
    return held


class DueRange(NamedTuple):
    """A range that has a due job, and where its first job is in the order of all."""

    head: int
    id: bytes
    range: Range


def _list_due_ranges(turn: Turn, request: ClaimRequest) -> list[DueRange]:
    """List the ranges that have a due job, that this worker can serve and that are not paused."""
    paused = {name for (name,) in turn.rows("paused")}
    queues = [queue for queue in dict.fromkeys(request.queues) if queue not in paused]
    routes = None if request.tasks is None else offered_routes(request.tasks)
    live = [
        one
        for queue in queues
        for one in _walk_live_ranges(turn, queue, routes, _find_indexed_tenant(request))
    ]
    due = [one for one in live if one.head <= turn.now + one.range.ageing]
    needs, offered = turn.seen.needs, request.capabilities
    unknown = list({one.range.needs for one in due if one.range.needs not in needs})
    if unknown:
        turn.seen.learn_needs(turn.rows("needs", unknown))
    any_tenant = request.tenant != DEFAULT_TENANT
    # A set that is missing here is damage: its jobs wait, and verify names them.
    return [
        one
        for one in due
        if one.range.needs in needs
        and needs[one.range.needs] <= offered
        and (any_tenant or one.range.of_default)
    ]


def _find_indexed_tenant(request: ClaimRequest) -> str | None:
    """Return the tenant whose index is read; the default one's jobs have lanes of their own."""
    return None if request.tenant == DEFAULT_TENANT else request.tenant


def _walk_live_ranges(
    turn: Turn, queue: str, routes: Sequence[str] | None, tenant: str | None
) -> Iterator[DueRange]:
    """Go through the ranges of a queue that have jobs, from one to the next.

    Routes that the worker does not serve are jumped over, and so are those it serves that have
    none: the number of steps is that of the fewer.
    """
    name, of_tenant = ("next_range", ()) if tenant is None else ("next_range_of", (tenant,))
    served = None if routes is None else frozenset(routes)
    at = _find_next_served(routes, "")
    while at is not None:
        row = turn.row(name, queue, *at, *of_tenant)
        if row is None:
            return
        route, lane, head, id_ = row
        if served is None or route in served:
            yield DueRange(head, id_, Range(queue, route, lane))
            at = route, lane
        else:
            at = _find_next_served(routes, route)


def _find_next_served(routes: Sequence[str] | None, route: str) -> tuple[str, int] | None:
    """Return where to look for the first served route from this one on."""
    if routes is None:
        return route, -1
    number = bisect_left(routes, route)
    return (routes[number], -1) if number < len(routes) else None


def _read_due(turn: Turn, request: ClaimRequest) -> list[Row]:
    """Read what is due, in order: as many as are wanted, or as fit within the look-ahead."""
    if request.limit < 1:
        return []
    due = _list_due_ranges(turn, request)
    limit = request.limit if request.capacity is None else request.lookahead
    tenant = _find_indexed_tenant(request)
    if len(due) <= MERGED:
        rows = _read_merged_ranges(turn, due, limit, tenant) if due else []
    else:
        due.sort()
        rows = _read_places(turn, _find_first_jobs(turn, due[:limit], limit, tenant))
    if request.capacity is None:
        return rows
    candidates = [Candidate(row[-2], row[-1], turn.now - row[_RUN_AT]) for row in rows]
    chosen = choose_fitting(candidates, request.capacity, request.limit)
    return [rows[i] for i in chosen]


@cache
def _merge_sql(arm: str, arms: int) -> str:
    merged = " UNION ALL ".join([fragment(arm)] * arms)
    return fragment("claim_ranges", claimable=fragment("claimable"), arms=merged)


def _read_merged_ranges(
    turn: Turn, due: Sequence[DueRange], limit: int, tenant: str | None
) -> list[Row]:
    """Read a few ranges, merged by SQLite."""
    arguments: list[Any] = []
    arm, of_tenant = _choose_arm(tenant)
    for *_, one in due:
        arguments += (*one, turn.now + one.ageing, *of_tenant)
    return turn.connection.execute(_merge_sql(arm, len(due)), [*arguments, limit]).fetchall()


def _find_first_jobs(
    turn: Turn, due: Sequence[DueRange], limit: int, tenant: str | None
) -> list[Row]:
    """Merge many ranges: return the first jobs of all, as place in the order and id.

    As many heads as are wanted show where the merge ends at the latest; of fewer ranges a sample
    does, a few jobs of each. No range is read beyond that.
    """
    arm, of_tenant = _choose_arm(tenant)
    sql = fragment("claim_heads", arm=fragment(arm))

    def read(one: Range, most: int, end: int) -> list[Row]:
        bound = min(turn.now + one.ageing, end)
        return turn.connection.execute(sql, (*one, bound, *of_tenant, most)).fetchall()

    few = 1 + 2 * limit // len(due)
    found = [read(one, few, NEVER) for *_, one in due]
    sample = sorted(row for rows in found for row in rows)
    end = NEVER if len(sample) <= limit else sample[limit - 1][0]
    for number, (*_, one) in enumerate(due):
        rows = found[number]
        if len(rows) == few and rows[-1][0] <= end:
            found[number] = read(one, limit, end)
    return sorted(row for rows in found for row in rows)[:limit]


def _read_places(turn: Turn, first: Sequence[Row]) -> list[Row]:
    """Read the jobs of these places in the order."""
    sql = fragment("claim_ids", claimable=fragment("claimable"))
    rows: list[Row] = []
    for size in CHUNKS:
        whole = len(first) - (len(first) - len(rows)) % size
        for start in range(len(rows), whole, size):
            some = chain(*first[start : start + size])
            rows += turn.connection.execute(repeat_values(sql, size), list(some)).fetchall()
    return rows


def _choose_arm(tenant: str | None) -> tuple[str, tuple[str, ...]]:
    return ("claim_arm", ()) if tenant is None else ("claim_arm_of", (tenant,))
