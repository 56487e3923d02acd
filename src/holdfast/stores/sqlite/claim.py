"""Claim: give due jobs to an owner under lease, in the order of the claim index."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import apsw
from msgspec.structs import replace

from holdfast.errors import JobUnreadable, LeaseConflictError, RequestIdReused
from holdfast.lifecycle.job import NO_FACTS, Facts
from holdfast.lifecycle.seal import seal
from holdfast.lifecycle.states import EventType, State
from holdfast.ports import Claimed, ClaimRequest
from holdfast.stores.columns import claimed_job, facts_text, read_created_text
from holdfast.stores.quarantine import (
    FIRST_EVENT_MISSING,
    MOST_SET_ASIDE,
    REASON_LIMIT,
    UNREADABLE,
    reason_of,
    unreadable,
)
from holdfast.stores.sqlite.pick import pick
from holdfast.stores.sqlite.rows import Row
from holdfast.stores.sqlite.session import job_id
from holdfast.stores.sqlite.turn import Turn

_CLAIMED = State.CLAIMED.code
EVER = 2**62


def claim(turn: Turn, request: ClaimRequest) -> list[Claimed]:
    """Give up to `limit` due jobs to `owner`."""
    held = _repeated(turn, request)
    if held is not None:
        return held
    picked = pick(turn, request)
    return _take(turn, request, picked) if picked else []


def claim_carefully(turn: Turn, request: ClaimRequest) -> list[Claimed]:
    """Do the same row by row, and set those aside that cannot be read or moved."""
    held = _repeated(turn, request)
    if held is not None:
        return held
    sieve = Sieve(turn, request)
    while sieve.goes_on:
        sieve.take(pick(turn, sieve.wanted))
    return sieve.entered()


def _take(turn: Turn, request: ClaimRequest, rows: Sequence[Row]) -> list[Claimed]:
    """Apply the edge to each row, and write the event, the summaries and the claim."""
    taken, soonest = _apply(turn, request, rows)
    _enter(turn, request, rows, soonest)
    return taken


def _apply(turn: Turn, request: ClaimRequest, rows: Sequence[Row]) -> tuple[list[Claimed], int]:
    """Apply the edge to each row; also return when the first of the leases may have passed."""
    owner, request_id, epoch, now = request.owner, request.request_id, turn.epoch, turn.now
    data = facts_text(Facts(epoch=epoch) if epoch != 1 else NO_FACTS)
    policies, soonest = turn.seen.policies, EVER
    updates, events, jobs = [], [], []
    for row in rows:
        (id_, created, body, correlation, rev, attempt, failures, releases, state, policy, run_at,
         deadline, created_at, updated_at, pending) = row[:15]  # fmt: skip
        if policy not in policies:
            turn.learn(policy, 0)
        try:
            terms = policies[policy]
        except KeyError as error:
            raise unreadable(job_id(id_), reason_of(error)) from error
        at = now if now > updated_at else updated_at
        lease = at + terms.lease
        timeout = None if terms.start_timeout is None else at + terms.start_timeout
        # A start grants its own, shorter lease: look again when even that may have passed.
        soonest = min(soonest, lease, at + terms.running_lease)
        rev, attempt = rev + 1, attempt + 1
        updates.append((id_, rev, attempt, lease, timeout, at))
        events.append((id_, rev, state, at, attempt, lease, None))
        jobs.append(
            (id_, created, body, correlation, rev, attempt, failures, releases, epoch, lease,
             timeout, run_at, deadline, created_at, at, pending, policy)
        )  # fmt: skip
    # Before anything is written: what cannot be read is not claimed.
    taken = [_claimed(turn, row, owner) for row in jobs]
    turn.write("claim", updates, (owner, epoch))
    shared = (owner, request_id, data)
    if turn.sealing:
        events = _sealed(turn, events, shared)
    turn.write("claim_event", events, shared)
    for (state, tenant, queue), number in Counter(map(_COUNTED, rows)).items():
        turn.count(tenant, queue, state, -number)
        turn.count(tenant, queue, _CLAIMED, number)
    return taken, soonest


def _enter(turn: Turn, request: ClaimRequest, rows: Sequence[Row], soonest: int) -> None:
    """Write down what the claim took."""
    ids = b"".join([row[0] for row in rows])
    entry = (request.request_id, turn.now, soonest, turn.epoch, request.owner, ids)
    turn.write("claimed", [entry])


class Sieve:
    """Takes jobs one by one, each in a savepoint, and sets those aside that cannot be taken."""

    def __init__(self, turn: Turn, request: ClaimRequest) -> None:
        """Begin with nothing taken."""
        self.goes_on = True
        self._turn = turn
        self._request = request
        self._taken: list[Claimed] = []
        self._rows: list[Row] = []
        self._soonest = EVER
        self._bad: set[bytes] = set()

    @property
    def wanted(self) -> ClaimRequest:
        """What to pick next: as many more as damaged rows may still be in the way."""
        # The database may have refused the mark of some.
        request, more = self._request, len(self._bad)
        return replace(request, limit=request.limit + more, lookahead=request.lookahead + more)

    def take(self, picked: Sequence[Row]) -> None:
        """Take what is still wanted of these."""
        left = self._request.limit - len(self._taken)
        rows = [row for row in picked if row[0] not in self._bad][:left]
        bad = {job_id(row[0]): why for row in rows if (why := self._try(row)) is not None}
        self._turn.set_aside(bad)
        self._bad |= {id_.bytes for id_ in bad}
        self.goes_on = (
            bool(bad) and len(self._taken) < self._request.limit and len(self._bad) < MOST_SET_ASIDE
        )

    def _try(self, row: Row) -> str | None:
        """Take one; tells why it cannot be taken."""
        try:
            with self._turn.alone():
                taken, soonest = _apply(self._turn, self._request, [row])
        except JobUnreadable as error:
            return error.damage
        except apsw.ConstraintError as error:
            return f"it cannot be claimed: {error}"[:REASON_LIMIT]
        self._taken += taken
        self._rows.append(row)
        self._soonest = min(self._soonest, soonest)
        return None

    def entered(self) -> list[Claimed]:
        """Write the claim down, and return what it took."""
        if self._rows:
            _enter(self._turn, self._request, self._rows, self._soonest)
        return self._taken


_COUNTED = itemgetter(8, 15, 16)
"""State, tenant and queue of a picked row."""


def _claimed(turn: Turn, row: Row, owner: str) -> Claimed:
    try:
        return claimed_job(row, job_id(row[0]), owner, turn.seen)
    except UNREADABLE:
        return _learned(turn, row, owner)


def _learned(turn: Turn, row: Row, owner: str) -> Claimed:
    """Read it again, now that what it names was looked up; or report that it is damaged."""
    id_ = job_id(row[0])
    if row[1] is None:
        raise unreadable(id_, FIRST_EVENT_MISSING)
    try:
        turn.learn_created(row[1])
        return claimed_job(row, id_, owner, turn.seen)
    except UNREADABLE as error:
        raise unreadable(id_, reason_of(error)) from error


def _sealed(turn: Turn, events: Sequence[Row], shared: Row) -> list[Row]:
    owner, request_id, data = shared
    rows = []
    for row in events:
        id_, rev, state, at, attempt, lease, _ = row
        values = (
            id_, rev, EventType.CLAIMED.code, state, _CLAIMED, at, attempt, 0, lease, None, None, 1,
            owner, request_id, None, None, data, None,
        )  # fmt: skip
        rows.append((*row[:-1], seal(turn.last_seal(id_), values)))
    return rows


def _repeated(turn: Turn, request: ClaimRequest) -> list[Claimed] | None:
    """Answer a request that took something before; None if it never did."""
    known = turn.row("claim_of", (request.request_id,))
    if known is None:
        return None
    owner, ids = known
    if owner != request.owner:
        raise RequestIdReused(
            f"claim request {request.request_id!r} was made by {owner}; use a new request_id"
        )
    held = []
    for start in range(0, len(ids), 16):
        for attempt, data, body, correlation_id, *row in turn.rows(
            "claimed_under", (ids[start : start + 16], request.request_id)
        ):
            for job in turn.readable_jobs([tuple(row)]):
                if job.owner == owner and job.attempt == attempt and _is_live(turn, job):
                    with contextlib.suppress(*UNREADABLE):  # a damaged one is not given out again
                        created = read_created_text(data, turn.seen)
                        text = None if body is None else body.encode()
                        held.append(
                            Claimed(
                                job=job, created=created, body=text, correlation_id=correlation_id
                            )
                        )
    if not held:
        raise LeaseConflictError(
            f"claim request {request.request_id!r} was answered before, and nothing of it is "
            "held any more; claim with a new request_id"
        )
    return held


def _is_live(turn: Turn, job: Any) -> bool:
    return (job.lease_expires_at or 0) > turn.now and job.epoch == turn.epoch
