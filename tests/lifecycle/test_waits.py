"""Waiting for a signal or a timer: nothing is lost, nothing is consumed twice."""

from __future__ import annotations

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.states import (
    State,
)
from tests.lifecycle.factories import (
    CONTROL,
    RECONCILER,
    life_in,
    refused,
)


def test_a_wait_is_refused_while_its_signal_is_pending_and_the_step_consumes_the_oldest() -> None:
    life = life_in(State.RUNNING)
    for _ in range(2):
        life.do(c.SignalJob(actor=CONTROL, name="go"))
    first, second = life.record.signals
    assert refused(life, c.Wait(actor=life.owner, signal="go")) == "signal_pending"

    life.do(c.Step(actor=life.owner, name="wait", consumes="go"))

    assert life.events[-1].facts.consumed == first.rev
    assert life.record.signals == (second,)


def test_another_signal_does_not_keep_a_job_from_waiting() -> None:
    life = life_in(State.RUNNING)
    life.do(c.SignalJob(actor=CONTROL, name="other"))

    life.do(c.Wait(actor=life.owner, signal="go"))

    assert life.record.wait_for == "go"
    assert life.record.owner is None


def test_a_step_cannot_consume_a_signal_that_never_came() -> None:
    life = life_in(State.RUNNING)

    assert refused(life, c.Step(actor=life.owner, name="wait", consumes="go")) == "no_signal"


def test_a_wait_ends_by_its_oldest_signal_before_its_timer() -> None:
    life = life_in(State.WAITING)
    life.do(c.SignalJob(actor=CONTROL, name="other"))
    assert refused(life, c.Resume(actor=CONTROL, as_of=life.now)) == "not_due"
    life.do(c.SignalJob(actor=CONTROL, name="go"))

    life.do(c.Resume(actor=CONTROL))

    assert life.events[-1].facts.consumed == life.events[-2].rev
    assert [signal.name for signal in life.record.signals] == ["other"]
    assert (life.record.state, life.record.run_at) == (State.QUEUED, life.now)


def test_a_wait_ends_by_its_timer_and_not_before() -> None:
    life = life_in(State.WAITING)
    until = life.record.run_at
    assert until is not None
    assert refused(life, c.Resume(actor=RECONCILER, as_of=until - 1)) == "not_due"

    life.do(c.Resume(actor=RECONCILER, as_of=until))

    assert life.events[-1].facts.timer


def test_a_wait_without_a_timer_does_not_end_by_itself() -> None:
    life = life_in(State.RUNNING)
    life.do(c.Wait(actor=life.owner, signal="go"))

    assert refused(life, c.Resume(actor=RECONCILER, as_of=life.lapsed)) == "not_due"
