"""What a command says stands in its event, and what outlives the job in its record."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.record import Change, KeptOutput
from holdfast.lifecycle.states import Letter, State
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.factories import (
    CONTROL,
    HOST,
    RECONCILER,
    SCHEDULER,
    WORKER,
    Life,
    asked_to_cancel,
    dead_letter,
    life_in,
    new_job,
    owner,
)
from tests.lifecycle.histories import BIRTH

AS_OF = BIRTH * 2
KEPT: dict[str, Any] = {
    "worker": "peer-7",
    "log": KeptOutput(digest="ab" * 32, bytes=50_000_000, truncated=True),
    "artifacts": KeptOutput(digest="cd" * 32, bytes=0),
}
RESULT: dict[str, Any] = {"exit_code": 0, "result_ptr": "s3://out", "execution_ms": 1234} | KEPT
ERROR: dict[str, Any] = {"exit_code": 3, "result_ptr": "s3://log", "execution_ms": 77} | KEPT
WHOLE: dict[str, Any] = ERROR | {"error_code": "boom", "body": b'{"why":1}'}

ENDINGS: list[Any] = [
    pytest.param(c.Fail(actor=owner(), **WHOLE), id="fail"),
    pytest.param(c.Lose(actor=RECONCILER, as_of=AS_OF, **WHOLE), id="lose"),
    pytest.param(c.TimeOut(actor=owner(), **WHOLE), id="time_out"),
    pytest.param(
        dead_letter(owner(), **WHOLE | {"error_code": "timeout", "stage": "output"}),
        id="dead_letter",
    ),
]


@pytest.mark.parametrize("command", ENDINGS)
def test_an_end_by_error_keeps_the_error_its_body_and_what_it_left(command: c.Failing) -> None:
    life = life_in(State.RUNNING)
    life.do(command)

    event, record = life.events[-1], life.record
    assert (event.body, event.digest) == (b'{"why":1}', digest(b'{"why":1}'))
    assert event.facts.error_code == record.error_code == command.error_code
    assert (event.facts.exit_code, record.exit_code) == (3, 3)
    assert (event.facts.result_ptr, record.result_ptr) == ("s3://log", "s3://log")
    assert event.facts.execution_ms == 77
    assert {name: getattr(event.facts, name) for name in KEPT} == KEPT
    assert event.facts.failures == record.failures == 1


def test_a_suspended_attempt_keeps_its_error_in_the_event_alone() -> None:
    life = life_in(State.RUNNING)
    life.do(c.Retry(actor=life.owner, **WHOLE))

    event, record = life.events[-1], life.record
    assert (event.facts.error_code, event.facts.exit_code, event.body) == ("boom", 3, b'{"why":1}')
    assert (record.error_code, record.exit_code, record.result_ptr) == (None, None, None)


@pytest.mark.parametrize("left", [{}, *({name: value} for name, value in RESULT.items()), RESULT])
def test_a_success_keeps_its_result_and_whatever_else_it_left(left: dict[str, Any]) -> None:
    life = life_in(State.RUNNING)
    life.do(c.Complete(actor=life.owner, body=b"[1]", **left))

    event, record = life.events[-1], life.record
    assert (event.body, record.result_digest) == (b"[1]", digest(b"[1]"))
    assert {name: getattr(event.facts, name) for name in RESULT} == dict.fromkeys(RESULT) | left
    assert record.exit_code == left.get("exit_code")
    assert record.result_ptr == left.get("result_ptr")


def test_a_way_out_that_a_cancel_request_turns_keeps_what_was_left() -> None:
    life = asked_to_cancel(life_in(State.RUNNING))
    life.do(c.Retry(actor=life.owner, **WHOLE))

    assert life.record.state is State.CANCELLED
    facts = life.events[-1].facts
    assert {name: getattr(facts, name) for name in ERROR} == ERROR


@pytest.mark.parametrize(
    "bad",
    [
        {"worker": "a\0b"},
        {"log": KeptOutput(digest="", bytes=1)},
        {"log": KeptOutput(digest="x" * 201, bytes=1)},
        {"artifacts": KeptOutput(digest="ab", bytes=-1)},
    ],
)
def test_what_was_left_is_checked_before_it_is_written(bad: dict[str, Any]) -> None:
    life = life_in(State.RUNNING)
    with pytest.raises(BadData):
        life.ask(c.Complete(actor=life.owner, **bad))


def test_json_null_is_a_result() -> None:
    life = life_in(State.RUNNING)
    life.do(c.Complete(actor=life.owner))

    assert (life.events[-1].body, life.record.result_digest) == (b"null", digest(b"null"))


@pytest.mark.parametrize("command", ENDINGS)
def test_a_linked_job_is_submitted_with_the_end_that_brought_it_about(command: c.Failing) -> None:
    linked = new_job(task="again")
    with_job = type(command)(
        **{name: getattr(command, name) for name in command.__struct_fields__}
        | {"submits": (linked,)}
    )

    assert life_in(State.RUNNING).do(with_job).submits == (linked,)


def test_a_redriven_letter_submits_its_new_job_and_names_it() -> None:
    life = life_in(State.DEAD_LETTERED)
    linked = new_job(task="again")
    change = life.do(c.Redriven(actor=CONTROL, link=linked.record.id, submits=(linked,)))

    assert (change.submits, change.event.facts.link) == ((linked,), linked.record.id)
    assert change.event.facts.letter is Letter.REDRIVEN


def test_a_compensation_is_named() -> None:
    life = life_in(State.FAILED)
    change = life.do(c.Compensated(actor=WORKER, link=life.record.id))

    assert change.event.facts.link == life.record.id


def test_a_denial_names_its_rule_and_why() -> None:
    life = life_in(State.QUEUED)
    life.do(c.Deny(actor=SCHEDULER, rule="no-prod", body=b'"never"', reason="policy"))

    event = life.events[-1]
    assert (event.facts.rule, event.body, event.reason) == ("no-prod", b'"never"', "policy")
    assert (life.record.error_code, event.facts.error_code) == ("denied", "denied")


def test_a_step_names_itself_its_use_and_its_result() -> None:
    life = life_in(State.RUNNING)
    life.do(c.Step(actor=life.owner, name="charge", use=2, body=b"7"))

    event = life.events[-1]
    assert (event.facts.step, event.facts.step_use, event.body) == ("charge", 2, b"7")
    assert event.digest == digest(b"7")


def test_progress_and_signals_carry_their_bodies() -> None:
    life = life_in(State.RUNNING)
    progress = life.do(c.Progress(actor=life.owner, body=b"0.5"))
    signal = life.do(c.SignalJob(actor=CONTROL, name="go", body=b'"now"'))

    assert (progress.event.body, signal.event.body) == (b"0.5", b'"now"')
    assert signal.event.facts.signal == "go"


def test_a_late_result_says_what_its_sender_wanted() -> None:
    life = life_in(State.CANCELLED)
    change = life.do(
        c.LateResult(actor=WORKER, state="FAILED", body=b"1", error_code="e", result_ptr="s3://x")
    )

    facts = change.event.facts
    assert (facts.late, facts.late_state, change.event.body) == ("0:w1", "FAILED", b"1")
    assert (facts.error_code, facts.result_ptr) == ("e", "s3://x")


@pytest.mark.parametrize("state", [State.PENDING, State.QUEUED, State.RETRYING, State.STALLED])
def test_a_rescheduled_job_is_due_when_it_is_told(state: State) -> None:
    life = life_in(state)
    life.do(c.Reschedule(actor=CONTROL, run_at=BIRTH + 500 * SECOND))

    assert life.record.run_at == BIRTH + 500 * SECOND


def test_a_requeued_job_is_due_when_it_is_told_or_at_once() -> None:
    life, later = life_in(State.STALLED), life_in(State.STALLED)
    life.do(c.Requeue(actor=CONTROL))
    later.do(c.Requeue(actor=RECONCILER, run_at=BIRTH + 500 * SECOND))

    assert (life.record.run_at, later.record.run_at) == (life.now, BIRTH + 500 * SECOND)


def test_an_ordinary_epoch_is_not_told_and_any_other_is() -> None:
    claims = [Life().do(c.Claim(actor=WORKER, epoch=epoch)) for epoch in (1, 4)]
    adoptions = [life_in(State.RUNNING).do(c.Adopt(actor=HOST, epoch=epoch)) for epoch in (1, 4)]

    for ordinary, other in (claims, adoptions):
        assert (ordinary.event.facts.epoch, ordinary.next.epoch) == (None, 1)
        assert (other.event.facts.epoch, other.next.epoch) == (4, 4)


def test_a_timed_out_run_tells_whether_it_was_killed() -> None:
    def told(command: c.TimeOut) -> str | None:
        change: Change = life_in(State.RUNNING).do(command)
        return change.event.facts.kill

    assert told(c.TimeOut(actor=owner())) == "confirmed"
    assert told(c.TimeOut(actor=owner(), killed=False)) is None
    assert told(c.TimeOut(actor=RECONCILER, as_of=AS_OF)) == "unconfirmed"
