"""Regressions of what an attempt costs, named after the symptom."""

from __future__ import annotations

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.invariants import broken_rules
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import Role, State
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.histories import History, submission

WORKER = Actor(Role.WORKER, "worker-1")
RECONCILER = Actor(Role.RECONCILER, "one")


def test_losing_a_stalled_job_does_not_count_its_attempt_twice() -> None:
    history = History()
    history.submit(submission())
    history.commit(c.Claim(actor=WORKER))
    history.now += 61 * SECOND
    history.commit(c.Stall(actor=RECONCILER, as_of=history.now))
    assert history.job.failures == 1

    history.commit(c.Lose(actor=RECONCILER, error_code="lost", as_of=history.now))

    assert history.job.state is State.FAILED
    assert history.job.failures == 1
    assert broken_rules(history.job) == []
