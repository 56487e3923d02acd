"""A plan is what `decide` returns for each job, decided once: never anything else."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, Policy
from holdfast.lifecycle.payload import Body, digest
from holdfast.lifecycle.plan import (
    Plan,
    end_by_plan,
    is_plain_success,
    plan_success,
    record_after,
)
from holdfast.lifecycle.record import NO_FACTS, Actor, Change, Job, JobId, KeptOutput
from holdfast.lifecycle.stamp import stamp
from holdfast.lifecycle.states import Kind, Link, Role, State
from holdfast.lifecycle.times import SECOND, After
from tests.lifecycle.factories import TERMS, life_in
from tests.lifecycle.histories import History, histories

OTHER = JobId(UUID(int=7))
POLICIES = (
    DEFAULT_POLICY,
    TERMS,
    Policy(idempotent=False, letter_on_fail=True, timeout=SECOND),
    Policy(heartbeat=10 * SECOND, timeout=5 * SECOND, start_timeout=SECOND),
)
BODIES = (b"null", Body(b'{"sent":1}'), b'"text"')


def owner_of(record: Job) -> Actor:
    """Return who may end a job."""
    return Actor(Role.OWNER, record.owner or "nobody", record.attempt)


def decided(record: Job, ago: int, body: bytes) -> tuple[Change, Change] | None:
    """Decide a start and a success on the record itself; None where one of them is refused."""
    actor = owner_of(record)
    start = decide(record, c.Start(actor=actor, ago=ago))
    if not isinstance(start, Change):
        return None
    success = decide(start.next, c.Complete(actor=actor, body=body))
    return (start, success) if isinstance(success, Change) else None


def is_plain(changes: tuple[Change, Change] | None, record: Job) -> bool:
    """Return whether a row and two events are all that these changes write."""
    if changes is None or record.key_kinds or record.link_kind in (Link.CHILD, Link.RETRY):
        return False
    return all(not one.submits and one.event.facts is NO_FACTS for one in changes)


def alike(record: Job, *, later: int) -> Job:
    """Return another job of the same kind: with another id and other times."""
    moved = {
        name: None if getattr(record, name) is None else getattr(record, name) + later
        for name in (
            *("created_at", "updated_at", "run_at", "deadline_at"),
            *("lease_expires_at", "timeout_at", "started_at"),
        )
    }
    return replace(record, id=OTHER, **moved)


def check_plan(plan: Plan, record: Job, ago: int, body: bytes) -> None:
    """Compare what a plan of another job like it writes for a job with what is decided for it."""
    changes = decided(record, ago, body)
    assert changes is not None
    start, success = changes
    granted = After(plan.granted - ago)
    end = end_by_plan(plan, record.id, body, ago=ago, floor=record.updated_at)
    assert start.event == replace(
        plan.start.event, id=record.id, at=After(-ago), lease_expires_at=granted
    )
    assert success.event == replace(
        plan.success.event,
        id=record.id,
        lease_expires_at=granted,
        body=end.body,
        digest=end.digest,
    )
    assert end.digest == digest(body)
    for now in (record.updated_at + ago + 5, record.updated_at - 5):
        written = record_after(end, record, now)
        assert written == stamp(success.next, now, record.updated_at)
        assert repr(written) == repr(stamp(success.next, now, record.updated_at))


@settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(histories(), st.integers(0, 10**12), st.sampled_from(BODIES))
def test_whatever_a_job_has_been_through_its_plan_is_what_is_decided(
    history: History, ago: int, body: bytes
) -> None:
    for record in history.records:
        plan = plan_success(alike(record, later=3 * SECOND))
        assert (plan is not None) == is_plain(decided(record, 1, b"null"), record)
        if plan is not None:
            check_plan(plan, record, ago, body)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ago", [0, 1, 90 * SECOND])
def test_a_claimed_job_has_a_plan(policy: Policy, ago: int) -> None:
    record = life_in(State.CLAIMED, policy=policy).record
    plan = plan_success(alike(record, later=SECOND))
    assert plan is not None
    check_plan(plan, record, ago, b'{"sent":1}')


@pytest.mark.parametrize("state", [state for state in State if state is not State.UNKNOWN])
def test_only_a_claimed_job_has_one(state: State) -> None:
    record = life_in(state).record
    assert (plan_success(record) is not None) == (state is State.CLAIMED)


@pytest.mark.parametrize(
    "turn",
    [
        {"key_kinds": 1},
        {"link_kind": Link.CHILD, "parent_id": OTHER},
        {"link_kind": Link.RETRY, "parent_id": OTHER},
        {"policy": Policy(compensates=True), "kind": Kind.COMMAND},
        {"kind": Kind.COMMAND},
        {"kind": Kind.AGENT},
        {"state": State.UNKNOWN},
    ],
)
def test_a_job_whose_end_concerns_more_than_itself_has_none(turn: dict[str, Any]) -> None:
    record = replace(life_in(State.CLAIMED, policy=DEFAULT_POLICY).record, **turn)
    assert plan_success(record) is None


MORE: tuple[dict[str, Any], ...] = (
    {"exit_code": 0},
    {"result_ptr": "s3://bucket/key"},
    {"execution_ms": 0},
    {"worker": "peer-7"},
    {"log": KeptOutput(digest="ab", bytes=1)},
    {"artifacts": KeptOutput(digest="ab", bytes=1)},
    {"reason": ""},
    {"request_id": "r-1"},
)
"""What a success may have beside its result."""


@pytest.mark.parametrize("more", MORE)
def test_a_success_with_more_than_a_result_is_not_planned(more: dict[str, Any]) -> None:
    actor = Actor(Role.OWNER, "w", 1)
    assert is_plain_success(c.Complete(actor=actor, body=b"1"))
    assert not is_plain_success(c.Complete(actor=actor, body=b"1", **more))


def test_nothing_but_a_success_is_planned() -> None:
    actor = Actor(Role.OWNER, "w", 1)
    assert not is_plain_success(c.Start(actor=actor))
    assert not is_plain_success(c.Fail(actor=actor, error_code="boom"))


@pytest.mark.parametrize("body", [b"{", b'{"a":1,"a":2}', "text", b"x" * (2**20 + 1)])
def test_a_bad_result_is_refused_in_the_words_of_the_law(body: Any) -> None:
    life = life_in(State.CLAIMED, policy=DEFAULT_POLICY)
    plan = plan_success(life.record)
    assert plan is not None
    with pytest.raises(BadData) as planned:
        end_by_plan(plan, life.record.id, body, ago=1, floor=0)
    with pytest.raises(BadData) as said:
        decided(life.record, 1, body)
    assert str(planned.value) == str(said.value)
