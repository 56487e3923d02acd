"""A16: the next try of what must not run again under its own id."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.linked import linked_retry
from holdfast.lifecycle.record import JobId, NewJob
from holdfast.lifecycle.retry import backoff, terms_left
from holdfast.lifecycle.states import Letter, State
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.factories import CONTROL, Life, life_in

ONCE = Policy(max_attempts=4, idempotent=False, letter_on_fail=True, timeout=60 * SECOND)


def running(**wishes: Any) -> tuple[Life, NewJob]:
    """Start what must not run twice, and prepare its linked retry."""
    life = life_in(State.RUNNING, policy=ONCE, **wishes)
    made = life.events[0].created
    assert made is not None
    new = linked_retry(
        life.record,
        made,
        life.owner,
        id=JobId(uuid4()),
        body=life.events[0].body,
        correlation_id=life.events[0].correlation_id,
        jitter=0.5,
    )
    return life, new


@pytest.mark.req("A16")
def test_the_event_that_ends_it_names_the_retry_and_leaves_no_letter() -> None:
    life, new = running()
    change = life.do(c.Fail(actor=life.owner, error_code="boom", submits=(new,)))

    assert change.submits == (new,)
    assert change.event.facts.link == new.record.id
    assert life.record.letter is None
    last = life_in(State.RUNNING, policy=ONCE)
    last.do(c.Fail(actor=last.owner, error_code="boom"))
    assert last.record.letter is Letter.OPEN


@pytest.mark.req("A16", "A18")
@pytest.mark.parametrize("command", [c.Fail, c.TimeOut])
def test_a_requested_cancel_is_not_escaped_under_another_id(command: Any) -> None:
    life, new = running()
    life.do(c.RequestCancel(actor=CONTROL))
    change = life.do(command(actor=life.owner, error_code="boom", submits=(new,)))

    assert (life.record.state, change.submits) == (State.CANCELLED, ())


@pytest.mark.req("A16", "B10")
def test_the_delays_of_linked_retries_are_those_of_one_job() -> None:
    policy = Policy(max_attempts=9, backoff_first=SECOND, backoff_factor=3.0)
    one_job = [backoff(policy, failures, 0.25) for failures in range(1, 9)]
    delays = []
    for _ in range(8):
        delays.append(backoff(policy, 1, 0.25))
        policy = terms_left(policy, 1)

    assert delays == one_job
    assert policy.max_attempts == 1


def test_a_backoff_beyond_all_bounds_stays_at_its_maximum() -> None:
    policy = Policy(max_attempts=10_000, backoff_factor=1e9)

    assert terms_left(policy, 5_000).backoff_first == policy.backoff_max
