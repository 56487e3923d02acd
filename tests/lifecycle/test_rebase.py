"""After a lost compare-and-set: it had landed, it may be decided anew, or its sender is fenced."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.rebase import has_landed, rebase, still_mine
from holdfast.lifecycle.record import Change, LoggedEvent, Refusal, Unchanged
from holdfast.lifecycle.states import EventType, State
from tests.lifecycle.factories import (
    CONTROL,
    HOST,
    RECONCILER,
    Life,
    asked_to_cancel,
    life_in,
    owner,
)


def landed(**differently: Any) -> tuple[Change, LoggedEvent]:
    """A change, and the event that the store keeps of it."""
    life = life_in(State.RUNNING)
    change = life.do(c.Complete(actor=life.owner, body=b"1", request_id="r-1"))
    return change, replace(life.events[-1], **differently)


@pytest.mark.req("B5", "C6")
def test_a_change_is_recognised_by_its_request_in_the_event_it_was_to_make() -> None:
    assert has_landed(*landed())


@pytest.mark.parametrize(
    "differently",
    [
        {"request_id": "r-2"},
        {"request_id": None},
        {"type": EventType.FAILED},
        {"actor": "w2"},
        {"digest": b"other"},
    ],
    ids=lambda columns: next(iter(columns)),
)
def test_another_event_in_its_place_is_not_the_change(differently: dict[str, Any]) -> None:
    assert not has_landed(*landed(**differently))


def test_what_is_not_there_or_bears_no_request_has_not_landed() -> None:
    change, event = landed()
    nameless = replace(change, event=replace(change.event, request_id=None))

    assert not has_landed(change, None)
    assert not has_landed(nameless, replace(event, request_id=None))
    assert has_landed(nameless, replace(event, request_id="batch-1"), batch_request="batch-1")


def taken_over() -> Life:
    """A job that w1 lost and w2 holds."""
    life = life_in(State.RUNNING)
    life.do(c.Stall(actor=RECONCILER, as_of=life.lapsed))
    return life.claim("w2").start()


@pytest.mark.req("B6", "C4")
def test_a_fenced_owner_is_told_so_and_writes_nothing() -> None:
    life = taken_over()
    for command in (
        c.Heartbeat(actor=owner()),
        c.Complete(actor=owner()),
        c.Retry(actor=owner(), error_code="boom"),
    ):
        assert not still_mine(life.record, command)
        decision = rebase(life.record, command)
        assert isinstance(decision, Refusal)
        assert decision.code == "lease_lost"


def test_an_adopted_job_is_no_longer_its_old_owners_though_the_attempt_is_the_same() -> None:
    life = life_in(State.RUNNING)
    life.do(c.Adopt(actor=HOST))

    assert isinstance(rebase(life.record, c.Complete(actor=owner())), Refusal)
    assert isinstance(rebase(life.record, c.Complete(actor=owner(1, "w2"))), Change)


def test_an_owner_that_still_holds_the_job_decides_anew_on_what_has_changed() -> None:
    life = asked_to_cancel(life_in(State.RUNNING))
    decision = rebase(life.record, c.Retry(actor=owner(), error_code="boom"))

    assert isinstance(decision, Change)
    assert decision.record.rev == life.record.rev
    assert decision.next.state is State.CANCELLED


@pytest.mark.req("C6")
def test_an_owner_whose_outcome_already_stands_is_told_success() -> None:
    life = life_in(State.SUCCEEDED)

    assert isinstance(rebase(life.record, c.Complete(actor=owner(), body=b"1")), Unchanged)
    assert isinstance(rebase(life.record, c.Complete(actor=owner(), body=b"2")), Refusal)


def test_a_sweep_with_a_stale_snapshot_does_not_touch_a_finished_job() -> None:
    life = life_in(State.RUNNING)
    stale = c.Stall(actor=RECONCILER, as_of=life.lapsed)
    assert isinstance(decide(life.record, stale), Change)
    life.do(c.Complete(actor=life.owner))

    decision = rebase(life.record, stale)

    assert isinstance(decision, Refusal)
    assert decision.code == "terminal"


def test_a_sweep_with_a_stale_clock_does_not_take_a_renewed_lease() -> None:
    life = life_in(State.RUNNING)
    lease = life.record.lease_expires_at
    assert lease is not None
    stale = c.Stall(actor=RECONCILER, as_of=lease)
    life.do(c.Adopt(actor=HOST))

    decision = rebase(life.record, stale)

    assert isinstance(decision, Refusal)
    assert decision.code == "lease_live"


def test_who_holds_no_lease_has_none_to_lose() -> None:
    life = taken_over()

    assert isinstance(rebase(life.record, c.SignalJob(actor=CONTROL, name="go")), Change)
