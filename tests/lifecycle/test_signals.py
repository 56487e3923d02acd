"""Signals that no wait has consumed: how many a job keeps, and what is let through all the same."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Change, Signal
from holdfast.lifecycle.signals import any_of
from holdfast.lifecycle.states import State
from tests.lifecycle.factories import CONTROL, Life, life_in, refused

LIMIT = 1000


def full(state: State = State.RUNNING) -> Life:
    """Lead a job into a state in which it keeps as many signals as it may."""
    life = life_in(state)
    kept = tuple(Signal("go", 1000 + n) for n in range(LIMIT))
    life.record = replace(life.record, signals=kept)
    return life


def test_a_job_keeps_a_thousand_signals_and_refuses_the_next() -> None:
    life = full()
    life.record = replace(life.record, signals=life.record.signals[1:])
    life.do(c.SignalJob(actor=CONTROL, name="go"))
    assert len(life.record.signals) == LIMIT
    assert refused(life, c.SignalJob(actor=CONTROL, name="go")) == "too_many_signals"
    assert refused(life, c.SignalJob(actor=CONTROL, name="other")) == "too_many_signals"


@pytest.mark.req("E5")
def test_a_consumed_signal_makes_room_for_another() -> None:
    life = full()
    life.do(c.Step(actor=life.owner, name="go", consumes="go"))
    life.do(c.SignalJob(actor=CONTROL, name="go"))
    assert len(life.record.signals) == LIMIT


def test_the_signal_that_a_job_is_parked_on_reaches_it_also_when_it_keeps_too_many() -> None:
    life = full(State.WAITING)
    awaited = life.record.wait_for or ""
    life.record = replace(
        life.record, signals=tuple(Signal("other", one.rev) for one in life.record.signals)
    )
    assert refused(life, c.SignalJob(actor=CONTROL, name="more")) == "too_many_signals"
    assert isinstance(life.ask(c.SignalJob(actor=CONTROL, name=awaited)), Change)
    life.do(c.Resume(actor=CONTROL))
    assert len(life.record.signals) == LIMIT


def test_one_of_the_signals_that_a_job_is_parked_on_reaches_it_when_it_keeps_too_many() -> None:
    life = full()
    life.do(c.Wait(actor=life.owner, signal=any_of(["yes", "no"])))
    assert refused(life, c.SignalJob(actor=CONTROL, name="go")) == "too_many_signals"
    life.do(c.SignalJob(actor=CONTROL, name="no"))
    life.do(c.Resume(actor=CONTROL))
    assert len(life.record.signals) == LIMIT


def test_another_limit_than_the_usual_one_holds() -> None:
    life = life_in(State.RUNNING)
    life.do(c.SignalJob(actor=CONTROL, name="go", limit=1))
    assert refused(life, c.SignalJob(actor=CONTROL, name="go", limit=1)) == "too_many_signals"
    life.do(c.SignalJob(actor=CONTROL, name="go", limit=2))


def test_signals_that_were_not_read_count() -> None:
    life = full()
    life.record = replace(life.record, signals=life.record.signals[500:], unread_signals=500)
    assert refused(life, c.SignalJob(actor=CONTROL, name="go")) == "too_many_signals"
    life.record = replace(life.record, unread_signals=0)
    life.do(c.SignalJob(actor=CONTROL, name="go"))


@pytest.mark.req("E5")
def test_a_wait_is_not_decided_on_a_record_without_its_signals() -> None:
    running = life_in(State.RUNNING)
    running.record = replace(running.record, unread_signals=1)
    for command in (
        c.Wait(actor=running.owner, signal="go"),
        c.Step(actor=running.owner, name="w", consumes="go"),
    ):
        assert refused(running, command) == "signals_unread"
    waiting = life_in(State.WAITING)
    waiting.record = replace(waiting.record, unread_signals=1)
    assert refused(waiting, c.Resume(actor=CONTROL, as_of=2**60)) == "signals_unread"
    # What does not look at them goes on.
    running.do(c.Step(actor=running.owner, name="charge", body=b"1"))


def test_what_holdfast_sends_itself_is_never_refused() -> None:
    life = full()
    life.do(c.SignalJob(actor=CONTROL, name="holdfast:children:" + "0," * 200))


def test_a_name_that_no_wait_could_have_is_refused() -> None:
    life = life_in(State.RUNNING)
    life.do(c.SignalJob(actor=CONTROL, name="resolve:" + "x" * 200))
    with pytest.raises(BadData, match="208"):
        life.ask(c.SignalJob(actor=CONTROL, name="x" * 209))
