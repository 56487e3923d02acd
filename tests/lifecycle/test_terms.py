"""Terms belong to the task: what is weaker, what is filled in, what the law lets be corrected."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.derive import derive
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, Policy
from holdfast.lifecycle.record import Actor, NewJob
from holdfast.lifecycle.states import EventType, Role, State
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.terms import (
    TaskTerms,
    by_name,
    corrected_policy,
    correction_reason,
    settled_policy,
    weaker_terms,
)
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.factories import Life, life_in, refused
from tests.lifecycle.histories import JOB

ONCE = Policy(idempotent=False, max_attempts=1)
LIMITED = Policy(timeout=60 * SECOND)
UNDONE = Policy(compensates=True)


@pytest.mark.parametrize(
    ("job", "task", "weaker"),
    [
        (DEFAULT_POLICY, ONCE, {"idempotent": False, "max_attempts": 1}),
        (replace(ONCE, max_attempts=2), ONCE, {"max_attempts": 1}),
        (ONCE, DEFAULT_POLICY, {}),
        (Policy(max_attempts=9), DEFAULT_POLICY, {}),
        (Policy(max_attempts=1), DEFAULT_POLICY, {}),
        (DEFAULT_POLICY, LIMITED, {"timeout": 60 * SECOND}),
        (Policy(timeout=61 * SECOND), LIMITED, {"timeout": 60 * SECOND}),
        (Policy(timeout=59 * SECOND), LIMITED, {}),
        (LIMITED, DEFAULT_POLICY, {}),
        (DEFAULT_POLICY, UNDONE, {"compensates": True}),
        (UNDONE, DEFAULT_POLICY, {}),
        (Policy(backoff_first=1, on_exhausted="fail"), DEFAULT_POLICY, {}),
    ],
)
def test_weaker_is_what_the_task_forbids(job: Policy, task: Policy, weaker: dict[str, Any]) -> None:
    assert weaker_terms(job, task) == weaker


def test_what_a_submitter_left_unsaid_is_the_tasks() -> None:
    task = Policy(max_attempts=8, on_exhausted="fail", backoff_first=1, timeout=SECOND)
    said = Policy(max_attempts=2)
    assert settled_policy(said, task, ("max_attempts",)) == replace(task, max_attempts=2)
    assert settled_policy(said, task) == replace(said, timeout=SECOND)
    assert settled_policy(task, task) is task


def claimed_job(policy: Policy, **fields: Any) -> Life:
    """Lead a job into claimed."""
    return life_in(State.CLAIMED, policy=policy, **fields)


def test_a_correction_is_an_event_that_the_record_derives_from() -> None:
    life = claimed_job(DEFAULT_POLICY)
    change = life.do(c.CorrectTerms(actor=life.owner, policy=ONCE))
    assert change.event.type is EventType.TERMS_CORRECTED
    assert life.record.policy == ONCE
    assert derive(life.events) == life.record
    assert life.record.lease_expires_at == life.events[-2].lease_expires_at


def test_what_a_task_forbids_is_forbidden_from_the_correction_on() -> None:
    life = claimed_job(DEFAULT_POLICY)
    life.do(c.CorrectTerms(actor=life.owner, policy=replace(ONCE, timeout=SECOND)))
    life.start()
    assert life.record.timeout_at == life.now + SECOND
    assert refused(life, c.Release(actor=life.owner)) == "not_idempotent"


def test_the_same_terms_again_change_nothing() -> None:
    life = claimed_job(ONCE)
    life.repeat(c.CorrectTerms(actor=life.owner, policy=ONCE))


@pytest.mark.parametrize(
    ("job", "worse"), [(ONCE, DEFAULT_POLICY), (LIMITED, DEFAULT_POLICY), (UNDONE, DEFAULT_POLICY)]
)
def test_no_correction_makes_terms_weaker(job: Policy, worse: Policy) -> None:
    life = claimed_job(job)
    assert refused(life, c.CorrectTerms(actor=life.owner, policy=worse)) == "weaker_terms"


def test_only_who_holds_a_job_that_has_not_started_corrects_it() -> None:
    life = claimed_job(DEFAULT_POLICY)
    other = Actor(Role.OWNER, "w2", 1)
    assert refused(life, c.CorrectTerms(actor=other, policy=ONCE)) == "lease_lost"
    life.do(c.Start(actor=life.owner))
    late = c.CorrectTerms(actor=life.owner, policy=ONCE)
    assert refused(life, late) == "illegal_transition"


def test_terms_that_no_submit_may_have_are_refused() -> None:
    life = claimed_job(DEFAULT_POLICY)
    with pytest.raises(BadData, match="max_attempts"):
        life.ask(c.CorrectTerms(actor=life.owner, policy=Policy(max_attempts=0)))


def named(terms: TaskTerms | None, stated: tuple[str, ...] | None = (), **fields: Any) -> NewJob:
    """Submit by name."""
    given = fields.keys() - {"policy"}
    asked = by_name(Submission(id=JOB, task="pay", **fields), terms, given=given, stated=stated)
    return submit(asked, Actor(Role.GATEWAY, "g"))


def test_a_submit_that_knows_the_terms_uses_them() -> None:
    terms = TaskTerms(task="pay", policy=ONCE, queue="money", needs=frozenset({"hsm"}))
    job = named(terms).record
    assert (job.policy, job.queue, job.needs) == (ONCE, "money", frozenset({"hsm"}))
    assert named(terms, queue="mine").record.queue == "mine"
    # Nothing is left to be filled in, by whichever version of the task claims it.
    unsaid = Submission(id=JOB, task="pay", stated=())
    assert by_name(unsaid, terms, given=(), stated=()).stated is None


def test_a_job_that_was_submitted_without_the_terms_is_filled_in_once() -> None:
    new = named(None, ("max_attempts",), policy=Policy(max_attempts=2))
    assert new.event.created is not None
    task = Policy(max_attempts=8, on_exhausted="fail")
    life = Life(policy=Policy(max_attempts=2), stated=("max_attempts",))
    life.claim()
    made = life.events[0].created
    assert made is not None
    assert made.stated == new.event.created.stated == ("max_attempts",)
    wanted = corrected_policy(life.record, made, task)
    assert wanted == replace(task, max_attempts=2)
    life.do(c.CorrectTerms(actor=life.owner, policy=wanted))
    # A later version of the task is no reason to change the terms of a job.
    newer = replace(task, on_exhausted="dead_letter", backoff_first=1)
    assert corrected_policy(life.record, made, newer) is None
    assert corrected_policy(life.record, made, replace(newer, timeout=SECOND)) is not None


def test_a_repetition_is_compared_with_what_was_asked_for() -> None:
    terms = TaskTerms(task="pay", policy=ONCE, queue="money")
    [before] = named(None, job_id="j").keys
    [after] = named(terms, job_id="j").keys
    assert before.digest == after.digest
    [other] = named(terms, ("timeout",), job_id="j", policy=Policy(timeout=1)).keys
    assert other.digest != before.digest


def test_the_reason_names_what_was_changed() -> None:
    assert correction_reason(DEFAULT_POLICY, replace(ONCE, timeout=90 * SECOND)) == (
        "the task's terms: max_attempts 4 to 1, idempotent true to false, timeout none to 90s"
    )
