"""Random lives of one job: any command, by anyone, at any time, answered by `decide`.

A `History` plays the store for one job: it guards the lease of an owner's write, says when a job is
due, fills in the clock, and keeps every event. `histories()` draws one for Hypothesis,
`random_histories()` makes many from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeAlias, cast
from uuid import UUID

from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import Decision, decide
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import (
    Actor,
    Change,
    Draft,
    DraftEvent,
    Job,
    JobId,
    LoggedEvent,
    NewJob,
    Refusal,
)
from holdfast.lifecycle.retry import REASONS, STAGES
from holdfast.lifecycle.states import LIVE, TERMINAL, CancelMode, Operation, Role, State
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.terms import settled_policy
from holdfast.lifecycle.times import SECOND, After, resolve
from holdfast.lifecycle.transitions import ROLES, TABLE

BIRTH = 1_700_000_000 * SECOND
JOB = JobId(UUID(int=0x018F_0000_0000_7000_8000_0000_0000_0001))
GATEWAY = Actor(Role.GATEWAY, "api")
WORKERS = ("worker-1", "worker-2")
SIGNALS = ("approved", "paid")
HOLDS = ("limit", "operator")
APPROVALS = ("approval:prod/2/30", "approval:prod/1/30")

EVENT_TIMES = ("at", "lease_expires_at", "run_at", "deadline_at")
RECORD_TIMES = (
    "deadline_at",
    "created_at",
    "lease_expires_at",
    "timeout_at",
    "run_at",
    "updated_at",
    "started_at",
    "finished_at",
)
NEVER_EARLIER = ("at", "updated_at", "started_at")
"""What a store cuts to the time of the job's last event: a start may lie before its commit."""


def stamped_event(event: DraftEvent, now: int, last: int) -> LoggedEvent:
    """Fill the clock into an event; `last` is the time of the job's event before it."""
    stamped: Any = replace(event, **_instants(event, EVENT_TIMES, now, last))
    return cast("LoggedEvent", stamped)


def stamped_record(record: Draft, now: int, last: int) -> Job:
    """Fill the clock into the record that an event leads to."""
    stamped: Any = replace(record, **_instants(record, RECORD_TIMES, now, last))
    return cast("Job", stamped)


def _instants(
    draft: Draft | DraftEvent, names: tuple[str, ...], now: int, last: int
) -> dict[str, int | None]:
    instants = {}
    for name in names:
        time = getattr(draft, name)
        instant = resolve(time, now)
        if name in NEVER_EARLIER and isinstance(time, After) and instant is not None:
            instant = max(instant, last)
        instants[name] = instant
    return instants


@dataclass(kw_only=True)
class History:
    """One job, its events, and the record after each of them."""

    now: int = BIRTH
    events: list[LoggedEvent] = field(default_factory=list)
    records: list[Job] = field(default_factory=list)
    submits: list[NewJob] = field(default_factory=list)
    """What its changes brought along."""

    @property
    def job(self) -> Job:
        """The record as it stands."""
        return self.records[-1]

    def submit(self, submission: Submission, actor: Actor = GATEWAY) -> Job:
        """Let the job be born."""
        new = submit(submission, actor)
        self.events.append(stamped_event(new.event, self.now, self.now))
        self.records.append(stamped_record(new.record, self.now, self.now))
        return self.job

    def commit(self, command: c.Command) -> Decision:
        """Decide a command and, if the store would accept the change, write it."""
        decision = decide(self.job, command)
        if not isinstance(decision, Change):
            return decision
        refusal = self._guard(decision, command)
        if refusal is not None:
            return refusal
        last = self.job.updated_at
        self.events.append(stamped_event(decision.event, self.now, last))
        self.records.append(stamped_record(decision.next, self.now, last))
        self.submits += decision.submits
        return decision

    def _guard(self, change: Change, command: c.Command) -> Refusal | None:
        job = self.job
        if change.fenced and (job.lease_expires_at is None or job.lease_expires_at <= self.now):
            return Refusal(code="lease_lost", message="the lease has passed")
        if isinstance(command, c.Claim) and (job.run_at is None or job.run_at > self.now):
            return Refusal(code="not_due", message="it is not due")
        return None


def submission(**wishes: Any) -> Submission:
    """Make the submission of the one job of a history."""
    defaults: dict[str, Any] = {"id": JOB, "task": "task"}
    return Submission(**defaults | wishes)


Pick: TypeAlias = Callable[[Sequence[Any]], Any]
"""Chooses one of several: by Hypothesis, or by a seeded generator."""
YES_NO = (False, True)
SELDOM = (False,) * 9 + (True,)


def _policy(pick: Pick) -> Policy:
    return Policy(
        max_attempts=pick((1, 2, 3, 4)),
        idempotent=pick(YES_NO),
        on_exhausted=pick(("dead_letter", "fail")),
        letter_on_fail=pick(YES_NO),
        on_silence=pick(("stall", "time_out", "lose")),
        start_timeout=pick((None, 30 * SECOND)),
        timeout=pick((None, 20 * SECOND, 300 * SECOND)),
        compensates=pick(YES_NO),
    )


def _submission(pick: Pick) -> Submission:
    return submission(
        policy=_policy(pick),
        admitted=pick(YES_NO),
        holds=pick(((), (), (), ("upload",))),
        run_at=pick((After(0), After(0), After(5 * SECOND))),
        deadline_at=pick((None, None, After(200 * SECOND))),
        correlation_id=pick((None, "order-7")),
        request_id=pick((None, "submit-1")),
    )


PAUSES = (1, SECOND, 10 * SECOND)
AFTERLIFE = 5
"""How many commands a job gets after its end."""
COURSES = ("path",) * 5 + ("edge",) * 3 + ("any",)
"""A step goes on along the path, takes some edge of the table, or is whatever by whomever."""


@st.composite
def histories(draw: st.DrawFn, *, max_commands: int = 30) -> History:
    """Draw a life: a submit and up to `max_commands` commands, some of them refused."""
    return live(lambda choices: draw(st.sampled_from(choices)), max_commands)


def random_histories(count: int, *, seed: int = 1, max_commands: int = 30) -> Iterator[History]:
    """Live many lives, evenly spread and much faster than Hypothesis can."""
    random = Random(seed)
    for _ in range(count):
        yield live(random.choice, max_commands)


def live(pick: Pick, max_commands: int) -> History:
    """Submit a job and let things happen to it, not for long after its end."""
    history = History()
    history.submit(_submission(pick))
    afterlife = 0
    # One of few lengths: drawn evenly from all, Hypothesis would favour short lives.
    for _ in range(pick((max_commands // 8, max_commands // 2, max_commands, max_commands))):
        step(pick, history)
        afterlife += history.job.terminal
        if afterlife == AFTERLIFE:
            break
    return history


def step(pick: Pick, history: History) -> Decision:
    """Let some time pass and somebody try something."""
    operation, role = pick(_choices(pick(COURSES), history.job))
    history.now = pick(_next_times(history, operation, role))
    return history.commit(command(pick, history, operation, role))


def command(pick: Pick, history: History, operation: Operation, role: Role) -> c.Command:
    """Draw the details of an operation."""
    arguments = _ARGUMENTS.get(operation, _nothing)(pick, history)
    request_id = f"request-{len(history.events)}" if pick(YES_NO) else None
    return COMMANDS[operation](
        actor=actor(pick, history, role), request_id=request_id, reason="why", **arguments
    )


def actor(pick: Pick, history: History, role: Role) -> Actor:
    """Draw who acts in a role; an owner may be one that lost the job."""
    job = history.job
    match role:
        case Role.OWNER:
            if job.owner is None or pick(SELDOM):
                attempt = pick((job.attempt, max(job.attempt - 1, 0)))
                return Actor(role, pick(WORKERS), attempt)
            return Actor(role, job.owner, job.attempt)
        case Role.WORKER:
            return Actor(role, pick(WORKERS), job.attempt)
        case Role.BUS:
            # Seldom the owner's name: what a worker claimed is not the bus's to take back.
            name = job.owner if job.owner is not None and pick(SELDOM) else "bus:main"
            return Actor(role, name, job.attempt)
        case Role.HOST:
            return Actor(role, f"host-1/{len(history.events)}")
        case _:
            return Actor(role, "one")


def _next_times(history: History, operation: Operation, role: Role) -> list[int]:
    """Soon, or, for what needs a time to have come, just after it: never earlier than now."""
    job, soon = history.job, [history.now + pause for pause in PAUSES]
    dues = (job.lease_expires_at, job.timeout_at, job.run_at, job.deadline_at)
    later = [due + 1 for due in dues if due is not None and due > history.now]
    needs_time = role is Role.RECONCILER or operation in (_O.CLAIM, _O.RESUME)
    return later if later and needs_time else [*soon, *soon, *later]


def _choices(course: str, job: Job) -> Sequence[tuple[Operation, Role]]:
    match course:
        case "path":
            return _PATH.get(job.state, _EDGES[job.state])
        case "edge":
            return _EDGES[job.state]
        case _:
            return _ANY


_O, _R = Operation, Role
_ANY = [(operation, role) for operation in ROLES for role in Role]
_EDGES = {
    state: [
        (row.operation, role) for row in TABLE if state in row.sources for role in sorted(row.roles)
    ]
    for state in LIVE | TERMINAL
}
_PATH: dict[State, list[tuple[Operation, Role]]] = {
    State.PENDING: [(_O.ADMIT, _R.SCHEDULER)],
    State.QUEUED: [(_O.CLAIM, _R.WORKER), (_O.UNHOLD, _R.CONTROL)],
    State.RETRYING: [(_O.CLAIM, _R.WORKER), (_O.CLAIM, _R.BUS), (_O.UNHOLD, _R.CONTROL)],
    State.STALLED: [(_O.CLAIM, _R.WORKER), (_O.REQUEUE, _R.RECONCILER), (_O.UNHOLD, _R.CONTROL)],
    State.CLAIMED: [
        (_O.START, _R.OWNER),
        (_O.START, _R.OWNER),
        (_O.HEARTBEAT, _R.OWNER),
        (_O.STALL, _R.RECONCILER),
        (_O.RELEASE, _R.OWNER),
    ],
    State.RUNNING: [
        (_O.STEP, _R.OWNER),
        (_O.HEARTBEAT, _R.OWNER),
        (_O.WAIT, _R.OWNER),
        (_O.RETRY, _R.OWNER),
        (_O.RELEASE, _R.OWNER),
        (_O.STALL, _R.RECONCILER),
        (_O.COMPLETE, _R.OWNER),
        (_O.FAIL, _R.OWNER),
    ],
    State.WAITING: [(_O.SIGNAL, _R.CONTROL), (_O.RESUME, _R.RECONCILER)],
}


def _commands(base: type[c.Command]) -> dict[Operation, type[c.Command]]:
    found: dict[Operation, type[c.Command]] = {}
    for kind in base.__subclasses__():
        if "operation" in vars(kind):
            found[kind.operation] = kind
        found |= _commands(kind)
    return found


COMMANDS = _commands(c.Command)
_Arguments: TypeAlias = Callable[[Pick, History], dict[str, Any]]


def _nothing(pick: Pick, history: History) -> dict[str, Any]:
    return {}


def _as_of(pick: Pick, history: History) -> int:
    """The clock as the sender last read it."""
    return history.now - int(pick((0, 0, 0, 1, SECOND)))


def _error(pick: Pick, history: History) -> dict[str, Any]:
    return {
        "error_code": pick(("boom", "oom_killed")),
        "exit_code": pick((None, 1, 137)),
    }


def _timed_out(pick: Pick, history: History) -> dict[str, Any]:
    return {
        "as_of": _as_of(pick, history),
        "killed": pick(YES_NO),
        "exit_code": pick((None, 137)),
    }


def _letter(pick: Pick, history: History) -> dict[str, Any]:
    return _error(pick, history) | {
        "error_code": pick(sorted(REASONS)),
        "stage": pick(sorted(STAGES)),
        "as_of": _as_of(pick, history),
    }


def _cancel(pick: Pick, history: History) -> dict[str, Any]:
    return {
        "as_of": _as_of(pick, history),
        "parent_cancelled": pick(YES_NO),
        "exit_code": pick((None, 137, 143)),
    }


def _correct_terms(pick: Pick, history: History) -> dict[str, Any]:
    task = pick((Policy(timeout=40 * SECOND), Policy(idempotent=False, max_attempts=2)))
    return {"policy": settled_policy(history.job.policy, task)}


def _step(pick: Pick, history: History) -> dict[str, Any]:
    how = pick(("started", "failed", "done"))
    return {
        "name": pick(("charge", "mail")),
        "started": how == "started",
        "failed": how == "failed",
        "consumes": pick((None, None, *SIGNALS)) if how == "done" else None,
    }


def _wait(pick: Pick, history: History) -> dict[str, Any]:
    return {
        "signal": pick(SIGNALS),
        "until": pick((None, After(30 * SECOND))),
    }


_ARGUMENTS: dict[Operation, _Arguments] = {
    _O.DENY: lambda pick, history: {"rule": "no-prod"},
    _O.APPROVE: lambda pick, history: {
        "hold": pick(APPROVALS),
        "as_of": pick((None, history.now)),
    },
    _O.HOLD: lambda pick, history: {
        "hold": pick((*HOLDS, *APPROVALS)),
        "holds": pick(((),) * 9 + (("quota",),)),
        "lifts": pick((None, None, "limit")),
    },
    _O.UNHOLD: lambda pick, history: {"hold": pick((*HOLDS, "upload", "quota"))},
    _O.RESCHEDULE: lambda pick, history: {"run_at": pick((After(0), After(20 * SECOND)))},
    _O.CORRECT_TERMS: _correct_terms,
    _O.START: lambda pick, history: {"ago": pick((0, 0, 5, 2 * SECOND))},
    _O.HEARTBEAT: lambda pick, history: {"by_handler": pick(YES_NO)},
    _O.ADOPT: lambda pick, history: {"as_of": _as_of(pick, history)},
    _O.STEP: _step,
    _O.PROGRESS: lambda pick, history: (
        {"body": b"0.5"} if history.job.rev % 2 else {"unkillable": True}
    ),
    _O.WAIT: _wait,
    _O.RESUME: lambda pick, history: {"as_of": _as_of(pick, history)},
    _O.COMPLETE: lambda pick, history: {
        "body": pick((b"null", b'{"n":1}')),
        "exit_code": pick((None, 0)),
    },
    _O.FAIL: _error,
    _O.LOSE: lambda pick, history: {
        "error_code": "container_lost_on_recovery",
        "as_of": _as_of(pick, history),
        "gone": pick(YES_NO),
    },
    _O.RETRY: lambda pick, history: _error(pick, history) | {"jitter": 0.5},
    _O.STALL: lambda pick, history: {"as_of": _as_of(pick, history), "jitter": 0.5},
    _O.REQUEST_CANCEL: lambda pick, history: {"mode": pick((CancelMode.SOFT, CancelMode.HARD))},
    _O.CANCEL: _cancel,
    _O.TIME_OUT: _timed_out,
    _O.DEAD_LETTER: _letter,
    _O.SIGNAL: lambda pick, history: {"name": pick(SIGNALS)},
    _O.LATE_RESULT: lambda pick, history: {"state": "SUCCEEDED"},
    _O.REDRIVEN: lambda pick, history: {"again": pick(YES_NO)},
}
