"""Arranges jobs for the tests of the law: a life that can be told step by step, in every state.

`Life` commits what `decide` says. It guards nothing: what it writes was decided on the record it
holds. (`histories.History` plays the store and guards; it is the one for random lives.)
"""

from __future__ import annotations

from typing import Any

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import Decision, decide
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Change, NewJob, Refusal, Unchanged
from holdfast.lifecycle.states import Role, State
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.histories import BIRTH, GATEWAY, JOB, stamped_event, stamped_record

FAR = 10_000 * SECOND
TERMS = Policy(max_attempts=3, start_timeout=100 * SECOND, timeout=300 * SECOND)
ONCE = Policy(max_attempts=1, idempotent=False)

SCHEDULER = Actor(Role.SCHEDULER, "scheduler")
WORKER = Actor(Role.WORKER, "w1")
RECONCILER = Actor(Role.RECONCILER, "sweep")
CONTROL = Actor(Role.CONTROL, "ann")
JANITOR = Actor(Role.JANITOR, "janitor")
HOST = Actor(Role.HOST, "w2")


def owner(attempt: int = 1, name: str = "w1") -> Actor:
    """Speak as the holder of an attempt."""
    return Actor(Role.OWNER, name, attempt)


class Life:
    """One job and its log. `do` insists on a change, `ask` takes any answer."""

    def __init__(self, new: NewJob | None = None, *, now: int = BIRTH, **submission: Any) -> None:
        """Be born from a decided submit, or from the fields of a submission."""
        made = new or new_job(**submission)
        self.now = now
        self.record = stamped_record(made.record, now, now)
        self.events = [stamped_event(made.event, now, now)]

    def ask(self, command: c.Command) -> Decision:
        """Decide a command, and commit it if it is a change."""
        decision = decide(self.record, command)
        if isinstance(decision, Change):
            self.commit(decision)
        return decision

    def do(self, command: c.Command) -> Change:
        """Commit a command that must be a change."""
        decision = self.ask(command)
        assert isinstance(decision, Change), decision
        return decision

    def repeat(self, command: c.Command) -> None:
        """Send a command that must change nothing and yet succeed."""
        before = self.record
        assert isinstance(self.ask(command), Unchanged)
        assert self.record is before

    def commit(self, change: Change) -> None:
        """Write a change one second after the last, so that all times differ."""
        self.now += SECOND
        last = self.record.updated_at
        self.events.append(stamped_event(change.event, self.now, last))
        self.record = stamped_record(change.next, self.now, last)

    @property
    def owner(self) -> Actor:
        """Speak as whoever holds the job."""
        assert self.record.owner is not None
        return owner(self.record.attempt, self.record.owner)

    @property
    def lapsed(self) -> int:
        """Tell a time at which every lease and timer of the job has passed."""
        return self.now + FAR

    def claim(self, name: str = "w1") -> Life:
        """Take the lease."""
        self.do(c.Claim(actor=Actor(Role.WORKER, name)))
        return self

    def start(self) -> Life:
        """Begin to run."""
        self.do(c.Start(actor=self.owner))
        return self


def new_job(*, policy: Policy = TERMS, task: str = "greet", **fields: Any) -> NewJob:
    """Decide a submit with plain fields."""
    return submit(Submission(id=JOB, task=task, policy=policy, **fields), GATEWAY)


def dead_letter(actor: Actor, **fields: Any) -> c.DeadLetter:
    """Say the ordinary end of a job whose tries are used up."""
    given: dict[str, Any] = {"error_code": "exhausted_retries", "stage": "exec"} | fields
    return c.DeadLetter(actor=actor, **given)


def life_in(state: State, *, policy: Policy = TERMS, **fields: Any) -> Life:
    """Lead a job into a state along the shortest ordinary path."""
    life = Life(policy=policy, admitted=state is not State.PENDING, **fields)
    if state in (State.PENDING, State.QUEUED):
        return life
    if state is State.DENIED:
        life.do(c.Deny(actor=SCHEDULER, rule="no"))
        return life
    life.claim()
    if state is State.CLAIMED:
        return life
    life.start()
    if state is not State.RUNNING:
        life.do(_ENDS[state](life))
    assert life.record.state is state
    return life


_ENDS: dict[State, Any] = {
    State.WAITING: lambda life: c.Wait(actor=life.owner, signal="go", until=life.now + 60 * SECOND),
    State.RETRYING: lambda life: c.Retry(actor=life.owner, error_code="boom"),
    State.STALLED: lambda life: c.Release(actor=life.owner),
    State.SUCCEEDED: lambda life: c.Complete(actor=life.owner, body=b"1"),
    State.FAILED: lambda life: c.Fail(actor=life.owner, error_code="boom", body=b'"boom"'),
    State.CANCELLED: lambda life: c.Cancel(actor=asked_to_cancel(life).owner),
    State.TIMED_OUT: lambda life: c.TimeOut(actor=RECONCILER, as_of=life.lapsed),
    State.DEAD_LETTERED: lambda life: dead_letter(life.owner),
}


def refused(life: Life, command: c.Command) -> str:
    """Ask for something that must be refused, and return the code of the refusal."""
    before = life.record
    decision = life.ask(command)
    assert isinstance(decision, Refusal), decision
    assert life.record is before
    assert before.public_id in decision.message
    assert before.state in decision.message
    return decision.code


def asked_to_cancel(life: Life) -> Life:
    """Request the cancel of an owned job."""
    life.do(c.RequestCancel(actor=CONTROL))
    return life
