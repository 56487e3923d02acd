"""The events are the authority: the record is what they derive, also with words yet unknown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.derive import apply, born, derive, derive_status
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.log_checks import log_problems
from holdfast.lifecycle.record import Created, Facts, LoggedEvent
from holdfast.lifecycle.states import BEATS, EventType, Kind, Role, State
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.factories import CONTROL, HOST, RECONCILER, SCHEDULER, Life, life_in, owner
from tests.lifecycle.histories import random_histories

STATES = [state for state in State if state is not State.UNKNOWN]


@pytest.mark.req("E1", "E2", "E6", "E7")
@pytest.mark.parametrize("state", STATES)
def test_the_record_is_what_its_events_derive(state: State) -> None:
    life = life_in(state)

    assert derive(life.events) == life.record
    assert derive_status(life.events) is state


@pytest.mark.req("E1", "E6", "E7")
def test_at_every_point_of_many_lives_the_record_is_what_the_events_so_far_derive() -> None:
    for history in random_histories(200, seed=7):
        record = born(history.events[0])
        for event, stored in zip(history.events, history.records, strict=True):
            record = record if event.rev == 1 else apply(record, event)
            assert record == stored
        assert derive(history.events) == history.job


def test_no_events_derive_nothing() -> None:
    assert derive([]) is None
    assert derive_status([]) is None


def test_a_first_event_that_says_nothing_of_the_job_cannot_be_a_birth() -> None:
    event = replace(Life().events[0], created=None)

    with pytest.raises(ValueError, match="does not contain what was submitted"):
        derive([event])


@pytest.mark.req("E4", "B27")
def test_the_last_event_that_bears_a_known_state_decides() -> None:
    events = life_in(State.RUNNING).events
    newer = replace(
        events[-1], rev=4, type=EventType.UNKNOWN, from_state=State.RUNNING, to_state=State.UNKNOWN
    )

    assert derive_status([*events, newer]) is State.RUNNING
    assert derive_status([newer]) is None
    record = derive([*events, newer])
    assert record is not None
    assert (record.state, record.rev, record.owner) == (State.RUNNING, 4, "w1")


@pytest.mark.req("B27")
def test_an_event_of_a_newer_version_that_grants_no_lease_takes_none_away() -> None:
    life = life_in(State.RUNNING)
    noted = replace(
        life.events[-1],
        rev=4,
        type=EventType.UNKNOWN,
        from_state=State.RUNNING,
        lease_expires_at=None,
    )

    record = derive([*life.events, noted])

    assert record is not None
    assert (record.lease_expires_at, record.owner) == (life.record.lease_expires_at, "w1")


@pytest.mark.req("E8", "B27")
def test_an_event_of_unknown_type_moves_the_job_by_the_state_it_stores() -> None:
    """Some newer version parks a job in its own way; that it is stalled now, this one can read."""
    life = life_in(State.RUNNING)
    parked = replace(
        life.events[-1],
        rev=4,
        type=EventType.UNKNOWN,
        from_state=State.RUNNING,
        to_state=State.STALLED,
        run_at=life.now,
    )

    record = derive([*life.events, parked])

    assert record is not None
    assert (record.state, record.owner, record.lease_expires_at) == (State.STALLED, None, None)
    assert record.claimable


@pytest.mark.req("E8")
@pytest.mark.parametrize("state", [State.WAITING, State.FAILED, State.QUEUED, State.CLAIMED])
def test_the_stored_state_beats_what_the_type_suggests(state: State) -> None:
    events = life_in(State.SUCCEEDED).events
    misnamed = replace(events[-1], to_state=state)
    assert misnamed.type is EventType.SUCCEEDED

    record = derive([*events[:-1], misnamed])

    assert record is not None
    assert record.state is state
    assert derive_status([*events[:-1], misnamed]) is state


@pytest.mark.req("B27")
def test_fields_and_words_of_a_newer_version_are_passed_over() -> None:
    facts = msgspec.json.decode(b'{"failures": 2, "colour": "red", "deep": {"a": 1}}', type=Facts)
    created = msgspec.json.decode(b'{"task": "t", "shard": [1, 2]}', type=Created)

    assert (facts.failures, created.task) == (2, "t")
    assert State.of(99) is State.UNKNOWN
    assert EventType.of(99) is EventType.UNKNOWN
    assert Kind.of(99) is Kind.UNKNOWN
    assert State.of(0) is State.UNKNOWN


@pytest.mark.req("C10")
def test_each_word_has_a_code_of_its_own_and_is_read_back_by_it() -> None:
    for words in (State, EventType, Kind):
        assert len({word.code for word in words}) == len(words)
        assert all(words.of(word.code) is word for word in words)
        assert all(words.named(word.value) is word for word in words)


def last(life: Life, command: c.Command) -> LoggedEvent:
    life.do(command)
    return life.events[-1]


@pytest.mark.req("C1", "C7")
def test_a_claim_sets_what_belongs_to_an_attempt_and_clears_what_belonged_to_the_last() -> None:
    life = life_in(State.RETRYING)
    assert life.record.started_at is not None

    life.do(c.Claim(actor=life_actor("w2"), epoch=3))

    record = life.record
    assert (record.owner, record.attempt, record.epoch) == ("w2", 2, 3)
    assert record.started_at is None
    assert record.lease_expires_at == life.now + record.policy.lease


def life_actor(name: str) -> Any:
    return replace(owner(), role=Role.WORKER, name=name, attempt=None)


def test_an_adoption_from_claimed_is_a_start() -> None:
    life = life_in(State.CLAIMED, policy=Policy(timeout=50 * SECOND))
    life.do(c.Adopt(actor=HOST, epoch=2))

    record = life.record
    assert (record.state, record.owner, record.epoch) == (State.RUNNING, "w2", 2)
    assert record.started_at == life.now
    assert record.timeout_at == life.now + 50 * SECOND


def test_a_start_that_began_earlier_counts_its_limits_from_then() -> None:
    life = life_in(State.CLAIMED, policy=Policy(timeout=50 * SECOND))
    event = last(life, c.Start(actor=life.owner, ago=SECOND // 2))

    began = life.now - SECOND // 2
    assert (event.at, life.record.started_at) == (began, began)
    assert life.record.timeout_at == began + 50 * SECOND
    assert life.record.lease_expires_at == began + life.record.policy.running_lease
    assert derive(life.events) == life.record


def test_a_start_never_seems_to_lie_before_its_claim() -> None:
    life = life_in(State.CLAIMED, policy=Policy(timeout=50 * SECOND))
    claimed_at = life.now
    event = last(life, c.Start(actor=life.owner, ago=5 * SECOND))

    assert event.at == claimed_at
    assert life.record.timeout_at == life.now - 5 * SECOND + 50 * SECOND
    assert derive(life.events) == life.record


@pytest.mark.req("C8")
def test_heartbeats_are_counted_until_the_next_event_that_is_none() -> None:
    life = life_in(State.RUNNING)
    for _ in range(3):
        life.do(c.Heartbeat(actor=life.owner))
    assert (life.record.beats, life.record.rev) == (3, 6)

    event = last(life, c.SignalJob(actor=CONTROL, name="go"))

    assert (event.beats, life.record.beats, life.record.rev) == (3, 0, 7)


@pytest.mark.req("E7")
def test_dropped_heartbeats_change_nothing_but_the_newest_of_a_job_that_is_held_must_stay() -> None:
    """Resolution 15. Only the newest beat of a live ownership tells its lease."""
    dropped = 0
    for history in random_histories(1_500, seed=11, max_commands=40):
        *earlier, newest = history.events
        kept = [event for event in earlier if event.type not in BEATS]
        dropped += len(earlier) - len(kept)

        assert derive([*kept, newest]) == history.job
        assert log_problems([*kept, newest]) == []
    assert dropped > 100


def test_a_hold_stands_through_all_that_does_not_end_the_job() -> None:
    life = Life(holds=("upload",), admitted=False)
    life.do(c.Admit(actor=SCHEDULER))
    life.do(c.Reschedule(actor=CONTROL, run_at=life.now))
    life.do(c.SignalJob(actor=CONTROL, name="go"))
    life.do(c.Hold(actor=CONTROL, hold="limit"))

    assert life.record.held_by == ("limit", "upload")


def test_a_hold_falls_when_the_job_is_ended() -> None:
    life = Life(holds=("upload",))
    life.do(c.Cancel(actor=CONTROL))

    assert life.record.held_by == ()


def test_a_wait_forgets_its_timer_when_it_ends() -> None:
    life = life_in(State.WAITING)
    life.do(c.Resume(actor=RECONCILER, as_of=life.lapsed))

    assert (life.record.wait_for, life.record.run_at) == (None, life.now)
