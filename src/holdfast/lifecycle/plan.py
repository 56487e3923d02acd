"""Plans: what the law makes of the plain start and success of a job, decided once for all alike.

Jobs that were claimed alike differ in nothing that `decide` looks at: only in their ids and times,
and in what they return. So it is asked once, and what it returned is written for each of them. As
soon as anything about a job is not plain (a step, an error, a cancel, a lost write, a record other
than the claim's), the plan does not apply to it, and `decide` is asked again.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TypeGuard

from msgspec import Struct
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import Decision, decide
from holdfast.lifecycle.family import KIN
from holdfast.lifecycle.payload import digest, sound_body
from holdfast.lifecycle.record import NO_FACTS, Actor, Change, Job, JobId
from holdfast.lifecycle.stamp import stamp
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.times import After


class Plan(Struct, frozen=True, eq=False):
    """The start of a claimed job and its success, as decided for one of many.

    Each job has started at another time: what the start grants counts from there.
    """

    start: Change
    success: Change

    @property
    def granted(self) -> int:
        """The lease that the start grants, in microseconds."""
        at, lease = self.start.event.at, self.start.event.lease_expires_at
        assert isinstance(at, After)
        assert isinstance(lease, After)
        return lease.micros - at.micros


class PlannedEnd(Struct, frozen=True, gc=False):
    """The start and the success of one job, by a plan. A store writes both, or neither."""

    plan: Plan
    id: JobId
    ago: int
    """How long ago it was started, in microseconds."""
    floor: int
    """When it was claimed: no event is earlier than the one before it."""
    body: bytes
    digest: bytes


def plan_success(record: Job) -> Plan | None:
    """Decide the plain start and success of a claimed job; None where more than that follows.

    Its keys are freed with its end, its parent is marked: what depends on one job is not planned.
    """
    if record.owner is None or record.key_kinds or record.link_kind in KIN:
        return None
    actor = Actor(Role.OWNER, record.owner, record.attempt)
    # Dated before the write, as every start is: so it has a time of its own.
    start = decide(record, c.Start(actor=actor, ago=1))
    if not _is_plain_change(start):
        return None
    success = decide(start.next, c.Complete(actor=actor))
    return Plan(start, success) if _is_plain_change(success) else None


def end_by_plan(plan: Plan, id: JobId, body: bytes, *, ago: int, floor: int) -> PlannedEnd:
    """Return how a job of this plan ends that returned `body`; raise BadData if it is not kept."""
    sound = sound_body(body, "body")
    return PlannedEnd(plan, id, ago, floor, sound, digest(sound))


def record_after(end: PlannedEnd, claimed: Job, now: int) -> Job:
    """Return the record of a job whose planned end was written at `now`, by the store's clock."""
    after = replace(
        end.plan.success.next,
        id=end.id,
        created_at=claimed.created_at,
        run_at=claimed.run_at,
        deadline_at=claimed.deadline_at,
        started_at=After(-end.ago),
        result_digest=end.digest,
    )
    return stamp(after, now, end.floor)


def is_plain_success(command: c.Command) -> TypeGuard[c.Complete]:
    """Return whether a command is a success of which nothing but the result is recorded."""
    return type(command) is c.Complete and _other_fields(command) == _NOTHING_MORE


def _is_plain_change(decision: Decision) -> TypeGuard[Change]:
    return type(decision) is Change and not decision.submits and decision.event.facts is NO_FACTS


_other_fields = attrgetter(
    *(name for name in c.Complete.__struct_fields__ if name not in ("actor", "body"))
)
_NOTHING_MORE = _other_fields(c.Complete(actor=Actor(Role.OWNER, "")))
