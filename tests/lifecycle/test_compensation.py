"""B28: whoever ends a job without success, its compensation comes with that end, once."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, policy_text
from holdfast.lifecycle.linked import compensation_id, linked
from holdfast.lifecycle.record import Change, JobId, NewJob
from holdfast.lifecycle.states import Link, Operation, Role, State
from tests.lifecycle.factories import CONTROL, RECONCILER, TERMS, Life, life_in
from tests.lifecycle.test_matrix import ALL, STATES, favourable_command, favourable_life

UNDONE = {State.FAILED, State.CANCELLED, State.TIMED_OUT, State.DEAD_LETTERED}
UNDOABLE = replace(TERMS, compensates=True)


def undoable(life: Life, **terms: Any) -> Life:
    """Let a life be one whose end is undone."""
    policy = replace(life.record.policy, compensates=True, **terms)
    life.record = replace(life.record, policy=policy)
    return life


def undoing(change: Change) -> list[NewJob]:
    return [one for one in change.submits if one.record.link_kind is Link.COMPENSATION]


def all_changes() -> list[tuple[Operation, State, Role, Life, Change]]:
    """Every change that the law allows, on jobs whose end is undone."""
    found: list[tuple[Operation, State, Role, Life, Change]] = []
    for operation in ALL:
        for state in STATES:
            for role in Role:
                life = undoable(favourable_life(operation, state))
                decision = decide(life.record, favourable_command(operation, life, role))
                if isinstance(decision, Change):
                    found.append((operation, state, role, life, decision))
    return found


@pytest.mark.req("B28")
def test_every_way_to_end_without_success_brings_the_compensation_and_nothing_else_does() -> None:
    ways = set()
    for operation, state, role, life, change in all_changes():
        ends = change.next.state in UNDONE and state not in UNDONE
        wanted = ends and life.record.attempt > 0
        assert len(undoing(change)) == wanted, (operation, state, role)
        ways |= {(operation.value, role.value)} if wanted else set()

    assert ways == {
        ("fail", "owner"),
        ("lose", "reconciler"),
        ("lose", "host"),
        ("cancel", "owner"),
        ("cancel", "control"),
        ("cancel", "reconciler"),
        ("time_out", "owner"),
        ("time_out", "reconciler"),
        ("dead_letter", "owner"),
        ("dead_letter", "reconciler"),
        ("dead_letter", "scheduler"),
    }


@pytest.mark.req("B28")
@pytest.mark.parametrize("operation", ["stall", "retry", "release", "wait", "lose", "dead_letter"])
def test_a_way_out_that_a_requested_cancel_turns_brings_it_too(operation: str) -> None:
    life = undoable(favourable_life(Operation(operation), State.RUNNING))
    life.do(c.RequestCancel(actor=CONTROL))
    role = Role.OWNER if operation in ("retry", "release", "wait") else Role.RECONCILER
    change = life.do(favourable_command(Operation(operation), life, role))

    assert change.next.state is State.CANCELLED
    assert len(undoing(change)) == 1


@pytest.mark.req("B28")
@pytest.mark.parametrize("state", [State.PENDING, State.QUEUED])
def test_what_was_never_claimed_has_nothing_to_undo(state: State) -> None:
    life = undoable(life_in(state))

    assert life.do(c.Cancel(actor=CONTROL)).submits == ()


@pytest.mark.req("B28")
def test_a_success_is_not_undone() -> None:
    life = undoable(life_in(State.RUNNING))

    assert life.do(c.Complete(actor=life.owner, body=b"1")).submits == ()


@pytest.mark.req("B28")
@pytest.mark.parametrize("first", ["owner", "reconciler"])
def test_two_that_end_a_job_at_once_bring_the_same_compensation(first: str) -> None:
    """Both decide on the same record; the store takes one of them, by its revision."""
    life = undoable(life_in(State.RUNNING))
    ends: dict[str, c.Command] = {
        "owner": c.Fail(actor=life.owner, error_code="boom"),
        "reconciler": c.TimeOut(actor=RECONCILER, as_of=life.lapsed),
    }
    decided = {who: decide(life.record, command) for who, command in ends.items()}
    one, other = decided["owner"], decided["reconciler"]
    assert isinstance(one, Change)
    assert isinstance(other, Change)
    assert undoing(one)[0].record.id == undoing(other)[0].record.id

    life.do(ends.pop(first))

    assert not isinstance(life.ask(ends.popitem()[1]), Change)


@pytest.mark.req("B28")
def test_a_compensation_carries_the_link_and_runs_under_terms_of_its_own() -> None:
    terms = {"idempotent": False, "max_attempts": 1, "on_exhausted": "fail", "on_silence": "lose"}
    life = undoable(life_in(State.RUNNING, queue="money", workflow_id="w"), **terms)
    [new] = undoing(life.do(c.Fail(actor=life.owner, error_code="boom")))
    record, policy = new.record, new.record.policy

    assert (record.task, record.queue, record.workflow_id) == ("greet", "money", "w")
    assert (record.parent_id, record.state) == (life.record.id, State.QUEUED)
    assert new.event.body == b"null"
    assert new.keys == ()
    assert record.deadline_at is None
    assert policy.idempotent
    assert not policy.compensates
    assert (policy.on_exhausted, policy.on_silence) == ("dead_letter", "stall")
    assert policy.max_attempts == DEFAULT_POLICY.max_attempts
    assert (policy.timeout, policy.start_timeout) == (TERMS.timeout, None)


@pytest.mark.req("B28")
def test_a_compensation_is_not_itself_undone() -> None:
    undone = life_in(State.QUEUED).record
    new = linked(undone, Link.COMPENSATION, CONTROL, id=JobId(uuid4()), policy=UNDOABLE)
    life = Life(new).claim().start()

    assert life.do(c.Fail(actor=life.owner, error_code="boom")).submits == ()


def test_the_name_of_a_compensation_keeps_the_time_of_its_job_and_nothing_else() -> None:
    ids = [JobId(uuid4()) for _ in range(1000)]
    names = {compensation_id(id_) for id_ in ids}

    assert len(names | set(ids)) == 2000
    assert all(compensation_id(id_).int >> 62 == id_.int >> 62 for id_ in ids)
    assert compensation_id(ids[0]) == compensation_id(ids[0])


def test_a_policy_that_undoes_nothing_is_written_as_before() -> None:
    assert policy_text(TERMS) == policy_text(replace(UNDOABLE, compensates=False))
    assert b"compensates" not in policy_text(TERMS)
    assert b'"compensates":true' in policy_text(UNDOABLE)
