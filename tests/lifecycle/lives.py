"""Lives told in words: `lived("claim", "start", "complete")` is a job that just did that.

Each act is one command by the one it is up to, at a time when it is up to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Change
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.histories import History, submission

SCHEDULER = Actor(Role.SCHEDULER, "one")
RECONCILER = Actor(Role.RECONCILER, "one")
CONTROL = Actor(Role.CONTROL, "ann")
JANITOR = Actor(Role.JANITOR, "one")
WORKER = Actor(Role.WORKER, "worker-1")
PATIENT = Policy(max_attempts=30, start_timeout=20 * SECOND, timeout=20 * SECOND)
"""Many tries, so that a life can go on; time limits shorter than the leases."""


def lived(*acts: str, worker: str = "worker-1", **wishes: Any) -> History:
    """Live through these acts; every one of them must be accepted."""
    history = History()
    history.submit(submission(**{"policy": PATIENT} | wishes))
    for act in acts:
        history.now += 11 * SECOND
        command = ACTS[act](history)
        if command.actor.role is Role.RECONCILER:
            _wait_for_what_is_due(history)
            command = ACTS[act](history)
        if command.actor.role is Role.WORKER:
            command = replace(command, actor=Actor(Role.WORKER, worker))
        answer = history.commit(command)
        assert isinstance(answer, Change), f"{act}: {answer}"
    return history


def _wait_for_what_is_due(history: History) -> None:
    job = history.job
    dues = (job.lease_expires_at, job.timeout_at, job.deadline_at, job.run_at)
    history.now = max(history.now, *(due + 1 for due in dues if due is not None))


def _owner(history: History) -> Actor:
    return Actor(Role.OWNER, history.job.owner or "nobody", history.job.attempt)


def _letter(history: History, actor: Actor) -> c.Command:
    return c.DeadLetter(
        actor=actor, error_code="parse_error", stage="input", as_of=history.now, exit_code=1
    )


ACTS: dict[str, Callable[[History], c.Command]] = {
    "admit": lambda h: c.Admit(actor=SCHEDULER),
    "deny": lambda h: c.Deny(actor=SCHEDULER, rule="no-prod"),
    "hold": lambda h: c.Hold(actor=CONTROL, hold="operator"),
    "claim": lambda h: c.Claim(actor=WORKER),
    "start": lambda h: c.Start(actor=_owner(h)),
    "renew": lambda h: c.Heartbeat(actor=_owner(h)),
    "beat": lambda h: c.Heartbeat(actor=_owner(h), by_handler=True),
    "adopt": lambda h: c.Adopt(actor=Actor(Role.HOST, f"host-1/{h.job.rev}")),
    "step": lambda h: c.Step(actor=_owner(h), name="charge"),
    "step_fails": lambda h: c.Step(actor=_owner(h), name="charge", failed=True, body=b"{}"),
    "wait": lambda h: c.Wait(actor=_owner(h), signal="approved"),
    "signal": lambda h: c.SignalJob(actor=CONTROL, name="approved"),
    "resume": lambda h: c.Resume(actor=CONTROL),
    "complete": lambda h: c.Complete(actor=_owner(h), exit_code=0),
    "fail": lambda h: c.Fail(actor=_owner(h), error_code="boom", exit_code=1),
    "lose": lambda h: c.Lose(
        actor=RECONCILER, error_code="container_lost_on_recovery", as_of=h.now
    ),
    "retry": lambda h: c.Retry(actor=_owner(h), error_code="boom", retry_in=0),
    "release": lambda h: c.Release(actor=_owner(h)),
    "stall": lambda h: c.Stall(actor=RECONCILER, as_of=h.now),
    "requeue": lambda h: c.Requeue(actor=CONTROL),
    "request cancel": lambda h: c.RequestCancel(actor=CONTROL),
    "cancel": lambda h: c.Cancel(actor=CONTROL),
    "cancel by owner": lambda h: c.Cancel(actor=_owner(h), exit_code=137),
    "time out": lambda h: c.TimeOut(actor=RECONCILER, as_of=h.now, exit_code=137),
    "time out by owner": lambda h: c.TimeOut(actor=_owner(h), exit_code=137),
    "dead-letter": lambda h: _letter(h, _owner(h)),
    "dead-letter by scheduler": lambda h: _letter(h, SCHEDULER),
    "dead-letter by reconciler": lambda h: _letter(h, RECONCILER),
    "compensate": lambda h: c.Compensated(actor=RECONCILER),
    "late result": lambda h: c.LateResult(actor=WORKER, state="SUCCEEDED"),
    "clean": lambda h: c.Clean(actor=JANITOR),
    "cleaned": lambda h: c.Cleaned(actor=JANITOR),
}
