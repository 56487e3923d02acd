"""After the fact: repeats of what already holds, and what may still be noted of an ended job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import (
    Letter,
    Retention,
    Role,
    State,
)
from tests.lifecycle.factories import (
    CONTROL,
    JANITOR,
    RECONCILER,
    TERMS,
    WORKER,
    Life,
    dead_letter,
    life_in,
    owner,
    refused,
)
from tests.lifecycle.promises import FINAL, differences

Wish = Callable[[Life], c.Command]


REPEATS: list[Any] = [
    pytest.param(lambda life: c.Complete(actor=life.owner, body=b"1"), id="complete"),
    pytest.param(lambda life: c.Fail(actor=life.owner, error_code="boom"), id="fail"),
    pytest.param(lambda life: c.Retry(actor=life.owner, error_code="boom"), id="retry"),
    pytest.param(lambda life: c.Release(actor=life.owner), id="release"),
    pytest.param(lambda life: c.Wait(actor=life.owner, signal="go"), id="wait"),
    pytest.param(lambda life: dead_letter(life.owner), id="dead_letter"),
    pytest.param(lambda life: c.TimeOut(actor=life.owner), id="time_out"),
    pytest.param(lambda life: c.Stall(actor=RECONCILER, as_of=life.lapsed), id="stall"),
    pytest.param(
        lambda life: c.Lose(actor=RECONCILER, as_of=life.lapsed, error_code="lost"), id="lose"
    ),
]


@pytest.mark.req("A14", "B5", "C6")
@pytest.mark.parametrize("wish", REPEATS)
def test_the_same_owner_attempt_and_outcome_again_is_success_without_an_event(wish: Wish) -> None:
    life = life_in(State.RUNNING)
    command = wish(life)
    life.do(command)

    life.repeat(command)


@pytest.mark.req("A14")
def test_a_repeat_with_another_outcome_is_no_repeat() -> None:
    done = life_in(State.SUCCEEDED)
    assert refused(done, c.Complete(actor=owner(), body=b"2")) == "lease_lost"
    assert refused(done, c.Complete(actor=owner(2), body=b"1")) == "lease_lost"
    assert refused(done, c.Fail(actor=owner(), error_code="boom")) == "lease_lost"

    failed = life_in(State.FAILED)
    assert refused(failed, c.Fail(actor=owner(), error_code="other")) == "lease_lost"

    waiting = life_in(State.WAITING)
    assert refused(waiting, c.Wait(actor=owner(), signal="other")) == "lease_lost"


@pytest.mark.req("A14")
def test_a_start_again_is_success_and_a_step_back_is_refused() -> None:
    life = life_in(State.RUNNING)

    life.repeat(c.Start(actor=life.owner))
    assert refused(life, c.Claim(actor=WORKER)) == "illegal_transition"


ENDED = [
    State.SUCCEEDED,
    State.FAILED,
    State.CANCELLED,
    State.TIMED_OUT,
    State.DENIED,
    State.DEAD_LETTERED,
]


@pytest.mark.req("A15", "C13")
@pytest.mark.parametrize("state", ENDED)
def test_what_comes_after_the_end_is_recorded_and_changes_nothing_else(state: State) -> None:
    life = life_in(state)
    ended = life.record
    late = Actor(Role.WORKER, "w9", 1)
    life.do(
        c.LateResult(
            actor=late, state="FAILED", body=b'"late"', error_code="late", result_ptr="s3://late"
        )
    )
    life.do(c.Compensated(actor=RECONCILER, link=ended.id))
    life.do(c.Clean(actor=JANITOR))
    life.do(c.Cleaned(actor=JANITOR))

    assert all(getattr(life.record, column) == getattr(ended, column) for column in FINAL)
    assert differences(life.record, ended) == ["rev", "late_results", "updated_at", "retention"]
    assert life.record.rev == ended.rev + 4
    assert life.events[-4].body == b'"late"'


@pytest.mark.req("A15")
def test_a_late_result_is_recorded_once_per_attempt_and_sender() -> None:
    life = life_in(State.CANCELLED)
    for attempt, name in [(1, "w1"), (2, "w1"), (1, "w2")]:
        late = c.LateResult(actor=Actor(Role.WORKER, name, attempt), state="SUCCEEDED")
        life.do(late)
        life.repeat(late)
        life.repeat(replace(late, state="FAILED"))

    assert len(life.record.late_results) == 3


def test_a_result_for_a_job_that_has_not_ended_is_not_late() -> None:
    late = c.LateResult(actor=Actor(Role.WORKER, "w9", 1), state="SUCCEEDED")

    assert refused(life_in(State.RUNNING), late) == "illegal_transition"


@pytest.mark.req("B31")
@pytest.mark.parametrize(("writes", "letter"), [(True, Letter.OPEN), (False, None)])
def test_a_failed_job_has_a_dead_letter_where_its_policy_says_so(
    writes: bool, letter: Letter | None
) -> None:
    policy = replace(TERMS, letter_on_fail=writes)
    lost = life_in(State.RUNNING, policy=policy)
    lost.do(c.Lose(actor=RECONCILER, as_of=lost.lapsed, error_code="lost"))

    assert life_in(State.FAILED, policy=policy).record.letter is letter
    assert lost.record.letter is letter


LETTERED = [State.FAILED, State.DEAD_LETTERED]


def life_with_letter(state: State) -> Life:
    return life_in(state, policy=replace(TERMS, letter_on_fail=True))


@pytest.mark.parametrize("state", LETTERED)
def test_a_redriven_letter_is_redriven_again_only_deliberately(state: State) -> None:
    life = life_with_letter(state)
    redriven = life.do(c.Redriven(actor=CONTROL, link=life.record.id))
    assert redriven.next.letter is Letter.REDRIVEN
    assert redriven.event.facts.link == life.record.id

    life.repeat(c.Redriven(actor=CONTROL, link=life.record.id))
    life.do(c.Redriven(actor=CONTROL, link=life.record.id, again=True))


@pytest.mark.parametrize("state", LETTERED)
def test_a_discarded_letter_is_redriven_only_deliberately(state: State) -> None:
    life = life_with_letter(state)
    assert life.do(c.Discarded(actor=CONTROL)).next.letter is Letter.DISCARDED

    life.repeat(c.Discarded(actor=CONTROL))
    assert refused(life, c.Redriven(actor=CONTROL)) == "letter_discarded"
    assert life.do(c.Redriven(actor=CONTROL, again=True)).next.letter is Letter.REDRIVEN


@pytest.mark.parametrize("state", LETTERED)
def test_a_redriven_letter_stays_redriven_and_is_not_discarded(state: State) -> None:
    life = life_with_letter(state)
    life.do(c.Redriven(actor=CONTROL))

    assert refused(life, c.Discarded(actor=CONTROL)) == "letter_redriven"


def test_a_job_that_failed_without_a_letter_is_redriven_once_and_has_nothing_to_discard() -> None:
    life = life_in(State.FAILED)
    assert refused(life, c.Discarded(actor=CONTROL)) == "no_dead_letter"

    assert life.do(c.Redriven(actor=CONTROL)).next.letter is Letter.REDRIVEN
    life.repeat(c.Redriven(actor=CONTROL))


def test_cleaning_comes_before_cleaned_and_each_may_be_repeated() -> None:
    life = life_in(State.SUCCEEDED)
    assert refused(life, c.Cleaned(actor=JANITOR)) == "not_cleaning"
    life.do(c.Clean(actor=JANITOR))
    life.repeat(c.Clean(actor=JANITOR))

    life.do(c.Cleaned(actor=JANITOR))

    life.repeat(c.Cleaned(actor=JANITOR))
    assert refused(life, c.Clean(actor=JANITOR)) == "cleaned"
    assert life.record.retention is Retention.CLEANED


def test_a_repeated_completion_succeeds_even_after_the_job_was_cleaned() -> None:
    life = life_in(State.SUCCEEDED)
    life.do(c.Clean(actor=JANITOR))
    life.do(c.Cleaned(actor=JANITOR))

    life.repeat(c.Complete(actor=owner(), body=b"1"))
