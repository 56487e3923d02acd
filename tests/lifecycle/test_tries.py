"""What an attempt costs and how many there are: errors, losses, releases (resolutions 2, 5, 7)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.retry import UNSERVED_PAUSE
from holdfast.lifecycle.states import (
    Kind,
    Letter,
    State,
)
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.factories import (
    ONCE,
    RECONCILER,
    TERMS,
    Life,
    dead_letter,
    life_in,
    owner,
    refused,
)
from tests.lifecycle.histories import BIRTH

FRAIL = replace(TERMS, idempotent=False)


@pytest.mark.req("B9", "C12")
def test_a_job_whose_lease_passed_is_claimable_again_at_once() -> None:
    life = life_in(State.RUNNING)

    life.do(c.Stall(actor=RECONCILER, as_of=life.lapsed))

    assert life.record.run_at == life.now
    assert life.record.claimable
    assert life.claim("w2").record.attempt == 2


@pytest.mark.req("C12")
def test_from_its_second_loss_a_job_comes_back_by_backoff() -> None:
    life = life_in(State.RUNNING, policy=replace(TERMS, backoff_first=10 * SECOND))
    life.do(c.Stall(actor=RECONCILER, as_of=life.lapsed))
    life.claim().start()

    life.do(c.Stall(actor=RECONCILER, as_of=life.lapsed, jitter=0.5))

    assert life.record.run_at == life.now + 15 * SECOND


@pytest.mark.req("B9")
def test_a_job_lost_on_its_last_try_cannot_stall_and_goes_to_the_dead_letters() -> None:
    life = life_in(State.RUNNING, policy=Policy(max_attempts=1))
    assert refused(life, c.Stall(actor=RECONCILER, as_of=life.lapsed)) == "exhausted"

    life.do(dead_letter(RECONCILER, as_of=life.lapsed))

    assert life.record.state is State.DEAD_LETTERED
    assert life.record.letter is Letter.OPEN
    assert (life.record.failures, life.events[-1].facts.stage) == (1, "exec")


@pytest.mark.parametrize("tries", [1, 2, 5])
def test_an_error_may_be_retried_while_a_try_is_left(tries: int) -> None:
    life = Life(policy=Policy(max_attempts=tries))
    for _ in range(tries - 1):
        life.claim().start()
        life.do(c.Retry(actor=life.owner, error_code="boom"))
    life.claim().start()

    assert refused(life, c.Retry(actor=life.owner, error_code="boom")) == "exhausted"
    assert life.record.failures == tries - 1
    life.do(dead_letter(life.owner))
    assert life.record.failures == life.record.attempt == tries


@pytest.mark.req("B10")
def test_a_retry_is_due_by_backoff_or_when_the_handler_says() -> None:
    policy = Policy(backoff_first=4 * SECOND)
    life = life_in(State.RUNNING, policy=policy)
    life.do(c.Retry(actor=life.owner, error_code="boom", jitter=0.5))
    assert life.record.run_at == life.now + 3 * SECOND
    life.claim().start()

    life.do(c.Retry(actor=life.owner, error_code="boom", retry_in=42))

    assert life.record.run_at == life.now + 42


def test_a_started_job_that_is_not_idempotent_is_never_run_again_under_its_id() -> None:
    life = life_in(State.RUNNING, policy=FRAIL)

    assert refused(life, c.Retry(actor=life.owner, error_code="boom")) == "not_idempotent"
    assert refused(life, c.Release(actor=life.owner)) == "not_idempotent"
    assert refused(life, c.Stall(actor=RECONCILER, as_of=life.lapsed)) == "not_idempotent"


def test_a_job_that_is_not_idempotent_may_be_tried_again_before_its_start() -> None:
    for wish in (
        c.Retry(actor=owner(), error_code="boom"),
        c.Release(actor=owner()),
        c.Stall(actor=RECONCILER, as_of=BIRTH * 2),
    ):
        life_in(State.CLAIMED, policy=FRAIL).do(wish)


def released(life: Life, times: int) -> Life:
    for _ in range(times):
        life.claim()
        life.do(c.Release(actor=life.owner))
    return life


def test_nineteen_releases_cost_nothing_and_the_twentieth_costs_a_failure() -> None:
    life = released(Life(), 19)
    assert (life.record.releases, life.record.failures) == (19, 0)

    released(life, 1)

    assert (life.record.releases, life.record.failures) == (20, 1)
    assert life.record.run_at == life.now


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        (Kind.FUNCTION, Policy(max_attempts=1)),
        # How a host whose runtime is broken gives a command back.
        (Kind.COMMAND, Policy(max_attempts=1, idempotent=False, on_silence="lose")),
    ],
)
def test_giving_back_what_the_owner_cannot_run_costs_nothing_however_often(
    kind: Kind, policy: Policy
) -> None:
    life = Life(kind=kind, policy=policy)
    for _ in range(25):
        life.claim()
        life.do(c.Release(actor=life.owner, unserved=True))

    assert (life.record.releases, life.record.failures) == (0, 0)
    assert life.record.run_at == life.now + UNSERVED_PAUSE


def test_a_release_that_would_cost_the_last_try_is_refused() -> None:
    life = released(Life(policy=Policy(max_attempts=1)), 19).claim()

    assert refused(life, c.Release(actor=life.owner)) == "exhausted"
    life.do(dead_letter(life.owner, error_code="infrastructure_failure"))


def test_a_return_from_waiting_costs_no_failure() -> None:
    life = life_in(State.WAITING)
    life.do(c.Resume(actor=RECONCILER, as_of=life.lapsed))

    assert (life.record.failures, life.record.releases) == (0, 0)


def lost_while_claimed(life: Life) -> tuple[int, int]:
    """Lose the owner of a job that it only claimed; return the failures and releases it cost."""
    life.claim()
    before = life.record
    life.do(c.Stall(actor=RECONCILER, as_of=life.lapsed))
    return life.record.failures - before.failures, life.record.releases - before.releases


def test_loss_while_claimed_costs_a_failure_where_the_start_may_have_been_folded() -> None:
    assert lost_while_claimed(Life(policy=TERMS)) == (1, 0)


def test_loss_while_claimed_costs_nothing_with_a_failure_behind_it() -> None:
    assert lost_while_claimed(life_in(State.RETRYING)) == (0, 1)


def test_loss_while_claimed_costs_nothing_where_a_start_is_awaited() -> None:
    assert lost_while_claimed(Life(policy=FRAIL)) == (0, 1)


def test_a_free_loss_is_capped_like_a_release() -> None:
    life = Life(policy=FRAIL)
    assert [lost_while_claimed(life)[0] for _ in range(20)] == [0] * 19 + [1]


def test_a_free_loss_without_a_try_left_is_still_free_until_the_cap() -> None:
    life = Life(policy=ONCE)
    for _ in range(19):
        assert lost_while_claimed(life) == (0, 1)
    life.claim()

    assert refused(life, c.Stall(actor=RECONCILER, as_of=life.lapsed)) == "exhausted"


def test_loss_while_running_costs_a_failure() -> None:
    life = life_in(State.RUNNING)
    life.do(c.Stall(actor=RECONCILER, as_of=life.lapsed))

    assert (life.record.failures, life.record.releases) == (1, 0)
