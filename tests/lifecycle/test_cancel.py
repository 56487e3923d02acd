"""Cancel: at once without an owner, by request with one; a request is sticky (resolution 11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.invariants import broken_rules
from holdfast.lifecycle.states import (
    OWNED,
    CancelMode,
    EventType,
    State,
)
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.factories import (
    CONTROL,
    RECONCILER,
    TERMS,
    Life,
    asked_to_cancel,
    dead_letter,
    life_in,
    refused,
)

Wish = Callable[[Life], c.Command]


OWNED_STATES = sorted(OWNED)


@pytest.mark.parametrize("state", OWNED_STATES)
def test_an_owner_cancels_only_what_it_was_asked_to_cancel(state: State) -> None:
    life = life_in(state)
    assert refused(life, c.Cancel(actor=life.owner)) == "no_cancel_request"

    asked_to_cancel(life).do(c.Cancel(actor=life.owner, exit_code=143))

    assert (life.record.state, life.record.error_code) == (State.CANCELLED, "cancelled")
    assert (life.record.exit_code, life.events[-1].facts.kill) == (143, "confirmed")


@pytest.mark.parametrize("state", OWNED_STATES)
def test_nobody_cancels_over_the_head_of_an_owner(state: State) -> None:
    life = life_in(state)

    assert refused(life, c.Cancel(actor=CONTROL)) == "illegal_transition"


PARKED = [State.PENDING, State.QUEUED, State.WAITING, State.RETRYING, State.STALLED]


@pytest.mark.req("A18")
@pytest.mark.parametrize("state", PARKED)
def test_a_job_without_an_owner_is_cancelled_at_once(state: State) -> None:
    life = life_in(state)
    life.do(c.Cancel(actor=CONTROL))

    assert life.record.state is State.CANCELLED
    assert life.events[-1].facts.kill is None


@pytest.mark.parametrize("state", PARKED)
def test_a_sweep_cancels_a_job_without_an_owner_only_after_its_parent(state: State) -> None:
    life = life_in(state)
    assert refused(life, c.Cancel(actor=RECONCILER, as_of=life.lapsed)) == "parent_lives"

    life.do(c.Cancel(actor=RECONCILER, parent_cancelled=True))


def test_a_hard_cancel_replaces_a_soft_one_and_never_the_reverse() -> None:
    life = asked_to_cancel(life_in(State.RUNNING))
    life.repeat(c.RequestCancel(actor=CONTROL, mode=CancelMode.SOFT))

    life.do(c.RequestCancel(actor=CONTROL, mode=CancelMode.HARD))

    life.repeat(c.RequestCancel(actor=CONTROL, mode=CancelMode.HARD))
    life.repeat(c.RequestCancel(actor=CONTROL, mode=CancelMode.SOFT))
    assert life.record.cancel_requested is CancelMode.HARD


STICKY_BY_OWNER: list[Any] = [
    pytest.param(lambda life: c.Retry(actor=life.owner, error_code="boom"), id="retry"),
    pytest.param(lambda life: c.Release(actor=life.owner), id="release"),
    pytest.param(lambda life: c.Wait(actor=life.owner, signal="go"), id="wait"),
]


STICKY_BY_SWEEP: list[Any] = [
    pytest.param(lambda life: c.Stall(actor=RECONCILER, as_of=life.lapsed), id="stall"),
    pytest.param(
        lambda life: c.Lose(actor=RECONCILER, as_of=life.lapsed, error_code="lost"), id="lose"
    ),
    pytest.param(lambda life: dead_letter(RECONCILER, as_of=life.lapsed), id="dead_letter"),
    pytest.param(lambda life: c.TimeOut(actor=RECONCILER, as_of=life.lapsed), id="time_out"),
]


@pytest.mark.parametrize("wish", STICKY_BY_OWNER)
def test_a_requested_cancel_turns_the_owners_ways_out_into_cancel(wish: Wish) -> None:
    life = asked_to_cancel(life_in(State.RUNNING))
    life.do(wish(life))

    event = life.events[-1]
    assert (life.record.state, life.record.error_code) == (State.CANCELLED, "cancelled")
    assert (event.type, event.facts.kill) == (EventType.CANCELLED, "confirmed")
    assert event.reason is not None
    assert "after a cancel request" in event.reason
    assert broken_rules(life.record) == []


@pytest.mark.req("B5")
def test_what_was_turned_into_cancel_keeps_its_request_its_reason_and_its_exit_code() -> None:
    """Without its request_id, a lost reply could not be settled."""
    life = asked_to_cancel(life_in(State.RUNNING))
    retry = c.Retry(
        actor=life.owner, error_code="boom", request_id="r-1", reason="deploy", exit_code=143
    )
    life.do(retry)

    event = life.events[-1]
    assert (event.request_id, event.reason, life.record.exit_code) == ("r-1", "deploy", 143)


@pytest.mark.parametrize("state", OWNED_STATES)
def test_a_turned_sweep_takes_a_claim_of_an_older_epoch_whatever_its_lease(state: State) -> None:
    life = asked_to_cancel(life_in(state))
    life.do(c.Stall(actor=RECONCILER, as_of=life.now, epoch=2))

    assert life.record.state is State.CANCELLED


@pytest.mark.parametrize("state", OWNED_STATES)
@pytest.mark.parametrize("wish", STICKY_BY_SWEEP)
def test_a_requested_cancel_turns_what_a_sweep_does_into_an_unconfirmed_cancel(
    wish: Wish, state: State
) -> None:
    life = asked_to_cancel(life_in(state))
    life.do(wish(life))

    event = life.events[-1]
    assert life.record.state is State.CANCELLED
    assert (event.type, event.facts.kill) == (EventType.CANCELLED, "unconfirmed")
    assert event.facts.last_owner == "w1"


@pytest.mark.parametrize("wish", STICKY_BY_SWEEP[:3])
def test_a_turned_sweep_still_needs_a_passed_lease(wish: Wish) -> None:
    life = asked_to_cancel(life_in(State.RUNNING))
    command = replace(wish(life), as_of=life.now)

    assert refused(life, command) == "lease_live"


@pytest.mark.parametrize("state", OWNED_STATES)
def test_a_time_limit_ends_a_job_that_ignores_its_cancel_and_keeps_its_lease(state: State) -> None:
    """Turned into cancel, a time_out asks for what a time_out asks for: that its time has come."""
    life = asked_to_cancel(life_in(state, policy=replace(TERMS, timeout=SECOND, start_timeout=3)))
    limit, lease = life.record.timeout_at, life.record.lease_expires_at
    assert limit is not None
    assert lease is not None
    assert limit < lease

    assert refused(life, c.TimeOut(actor=RECONCILER, as_of=limit - 1)) == "lease_live"
    life.do(c.TimeOut(actor=RECONCILER, as_of=limit))

    assert (life.record.state, life.events[-1].facts.kill) == (State.CANCELLED, "unconfirmed")


@pytest.mark.parametrize(
    ("wish", "state"),
    [
        (lambda life: c.Complete(actor=life.owner, body=b"1"), State.SUCCEEDED),
        (lambda life: c.Fail(actor=life.owner, error_code="boom"), State.FAILED),
        (lambda life: dead_letter(life.owner), State.DEAD_LETTERED),
        (lambda life: c.TimeOut(actor=life.owner), State.TIMED_OUT),
    ],
)
def test_an_end_that_the_owner_tells_first_wins_over_a_requested_cancel(
    wish: Wish, state: State
) -> None:
    life = asked_to_cancel(life_in(State.RUNNING))
    life.do(wish(life))

    assert life.record.state is state
    assert life.record.cancel_requested is CancelMode.SOFT
