"""The five dialects as data: A to E, each with its seed's states, events, edges and exceptions.

The table and its notes in docs/requirements.md ("One lifecycle, five vocabularies") are the source.
"""

from __future__ import annotations

from holdfast.lifecycle.dialects.dialect import Dialect, Edge, Ending
from holdfast.lifecycle.dialects.progress import Standing
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.retry import UPLOAD_EXPIRED
from holdfast.lifecycle.states import EventType, Operation, Retention, State
from holdfast.lifecycle.times import SECOND

_S, _E, _O = State, EventType, Operation

_WORDS: dict[State, tuple[str | None, ...]] = {
    _S.PENDING: ("PENDING", "queued", "queued", "pending", "Queued"),
    _S.QUEUED: ("SCHEDULED", "queued", "queued", "pending", "Queued"),
    _S.CLAIMED: ("DISPATCHED", "assigned", "claimed", "starting", "Leased"),
    _S.RUNNING: ("RUNNING", "running", "running", "running", "Running"),
    _S.WAITING: (None, "queued", "stalled", None, "Waiting"),
    _S.RETRYING: (None, "queued", "stalled", None, "Retrying"),
    _S.STALLED: (None, "queued", "stalled", None, "Queued"),
    _S.SUCCEEDED: ("SUCCEEDED", "succeeded", "succeeded", "completed", "Completed"),
    _S.FAILED: ("FAILED", "failed", "failed", "failed", "Failed"),
    _S.CANCELLED: ("CANCELLED", "cancelled", "failed", "cancelled", "Cancelled"),
    _S.TIMED_OUT: ("TIMEOUT", "dead_lettered", "failed", "timed_out", "Failed"),
    _S.DENIED: ("DENIED", "dead_lettered", "failed", "failed", "Failed"),
    _S.DEAD_LETTERED: ("FAILED", "dead_lettered", "failed", "failed", "Failed"),
}
"""One column per dialect; None: the furthest state reached so far is shown instead."""


_DEAD = "dead_lettered"


def _column(key: str) -> dict[State, str]:
    words = ((state, row["ABCDE".index(key)]) for state, row in _WORDS.items())
    return {state: word for state, word in words if word is not None}


def _read_edges(*lines: str) -> frozenset[Edge]:
    """Read `a, b > c, d`: from each on the left to each on the right; `*` is a birth."""
    edges: set[Edge] = set()
    for line in lines:
        sources, targets = (part.replace(" ", "").split(",") for part in line.split(">"))
        edges |= {(None if source == "*" else source, to) for source in sources for to in targets}
    return frozenset(edges)


def _never_claimed(standing: Standing) -> bool:
    return not standing.claimed


def _never_started(standing: Standing) -> bool:
    return not standing.started


def _by_reconciler(standing: Standing) -> bool:
    return standing.ended_by_reconciler


def _without_files(standing: Standing) -> bool:
    return standing.error_code == UPLOAD_EXPIRED


def _lost_before_running(standing: Standing) -> bool:
    # `fail` leads from running alone, so any other source means `lose`.
    return standing.ended_from in (_S.CLAIMED, _S.STALLED)


def _id(dialect: Dialect, job: Job, standing: Standing) -> str:
    return job.public_id


def _word(dialect: Dialect, job: Job, standing: Standing) -> str:
    return dialect.word(standing)


def _attempt(dialect: Dialect, job: Job, standing: Standing) -> int:
    return dialect.attempt(standing)


def _error(dialect: Dialect, job: Job, standing: Standing) -> str | None:
    return dialect.error(standing)


def _reason_code(dialect: Dialect, job: Job, standing: Standing) -> str | None:
    return dialect.error(standing) if dialect.word(standing) == _DEAD else None


def _exit_code(dialect: Dialect, job: Job, standing: Standing) -> int | None:
    return dialect.exit_code(standing)


def _timeout_minutes(dialect: Dialect, job: Job, standing: Standing) -> int | None:
    return None if job.policy.timeout is None else job.policy.timeout // (60 * SECOND)


def _runtime_seconds(dialect: Dialect, job: Job, standing: Standing) -> int | None:
    if job.started_at is None or job.finished_at is None:
        return None
    return (job.finished_at - job.started_at) // SECOND


A = Dialect(
    key="A",
    seed="000_ed1fb8e2e8096626.txt",
    states=_column("A"),
    endings=(
        Ending(
            state=_S.TIMED_OUT,
            when=_never_claimed,
            what="never claimed",
            word="CANCELLED",
        ),
        Ending(
            state=_S.DEAD_LETTERED,
            when=_never_claimed,
            what="never claimed",
            word="CANCELLED",
        ),
        Ending(
            state=_S.DEAD_LETTERED,
            when=_by_reconciler,
            what="by the reconciler",
            word="TIMEOUT",
        ),
    ),
    edges=_read_edges(
        "* > PENDING",
        "PENDING > SCHEDULED",
        "SCHEDULED > DISPATCHED, DENIED",
        "DISPATCHED > RUNNING, TIMEOUT",
        "RUNNING > SUCCEEDED, FAILED, TIMEOUT",
        "PENDING, SCHEDULED, DISPATCHED, RUNNING > CANCELLED",
    ),
    fields={
        "job_id": _id,
        "status": _word,
        "priority": lambda dialect, job, standing: job.priority.value,
        "workflow_id": lambda dialect, job, standing: job.workflow_id,
        "step_index": lambda dialect, job, standing: job.step_index,
        "result_ptr": lambda dialect, job, standing: job.result_ptr,
        "error_code": _error,
    },
    forward=True,
    implied={
        (None, "SCHEDULED"): ("PENDING",),
        ("PENDING", "DENIED"): ("SCHEDULED",),
        ("DISPATCHED", "FAILED"): ("RUNNING",),
    },
)

B = Dialect(
    key="B",
    seed="001_bd2f813709214918.txt",
    states=_column("B"),
    endings=(
        Ending(
            state=_S.FAILED,
            when=_lost_before_running,
            what="by `lose` from claimed or stalled",
            word="dead_lettered",
            error="infrastructure_failure",
        ),
        Ending(
            state=_S.DEAD_LETTERED,
            when=_without_files,
            what="because its upload expired",
            word="dead_lettered",
            error="dependency_unavailable",
        ),
    ),
    errors={_S.TIMED_OUT: "timeout", _S.DENIED: "policy_violation"},
    edges=_read_edges(
        "* > queued",
        "queued > assigned",
        "assigned > running",
        "running > succeeded, failed",
        "queued, assigned, running > cancelled, dead_lettered",
    ),
    extra=_read_edges("assigned, running > queued"),
    names={
        _E.HEARTBEAT: "job_heartbeat",
        _E.LEASE_RENEWED: "job_lease_renewed",
        _E.COMPENSATED: "job_compensated",
    },
    arrivals={
        "assigned": "job_claimed",
        "running": "job_started",
        "succeeded": "job_succeeded",
        "failed": "job_failed",
        "cancelled": "job_cancelled",
        "dead_lettered": "job_dead_lettered",
    },
    operations={_O.CLAIM: "claim_one_job", _O.START: "start"},
    fields={"job_id": _id, "state": _word, "attempt": _attempt, "reason_code": _reason_code},
    counts_next=True,
)

C = Dialect(
    key="C",
    seed="002_fc5ab45b56d2e679.txt",
    states=_column("C"),
    errors={_S.CANCELLED: "cancelled", _S.TIMED_OUT: "timeout", _S.DENIED: "denied"},
    edges=_read_edges(
        "* > queued",
        "queued, stalled > claimed",
        "claimed > claimed, running, stalled",
        "running > running, succeeded, failed, stalled",
        "stalled > queued",
    ),
    extra=_read_edges("queued, claimed, stalled > failed"),
    names={
        _E.CREATED: "enqueued",
        _E.HEARTBEAT: "heartbeat",
        _E.LEASE_RENEWED: "heartbeat",
    },
    arrivals={
        "queued": "requeued",
        "claimed": "claimed",
        "running": "started",
        "succeeded": "succeeded",
        "failed": "failed",
        "stalled": "stalled",
    },
    operations={
        _O.SUBMIT: "enqueue",
        _O.CLAIM: "claim_next",
        _O.START: "start",
        _O.HEARTBEAT: "heartbeat",
        _O.COMPLETE: "complete",
        _O.FAIL: "fail",
        _O.STALL: "stall",
        _O.REQUEUE: "requeue_stalled",
    },
    fields={
        "job_id": _id,
        "status": _word,
        "attempt": _attempt,
        "rev": lambda dialect, job, standing: job.rev,
        "owner": lambda dialect, job, standing: job.owner,
        "lease_expires_at": lambda dialect, job, standing: job.lease_expires_at,
        "error": _error,
    },
)

D = Dialect(
    key="D",
    seed="003_bf07f4f5a61897f0.txt",
    states=_column("D"),
    endings=(
        Ending(
            state=_S.TIMED_OUT,
            when=_never_started,
            what="never started",
            word="failed",
            error="start_timeout",
        ),
    ),
    retention={Retention.CLEANING: "cleaning", Retention.CLEANED: "cleaned"},
    errors={_S.TIMED_OUT: "Job exceeded timeout limit"},
    edges=_read_edges(
        "* > pending",
        "pending > starting",
        "starting > running, completed, failed",
        "running > completed, failed, timed_out, cancelled",
        "completed, failed, timed_out, cancelled > cleaning",
        "cleaning > cleaned",
    ),
    extra=_read_edges("pending > failed, cancelled", "starting > cancelled"),
    operations={_O.REQUEST_CANCEL: "kill_job", _O.CANCEL: "kill_job"},
    fields={
        "id": _id,
        "status": _word,
        "exit_code": _exit_code,
        "error": _error,
        "timeout_minutes": _timeout_minutes,
        "actual_runtime_seconds": _runtime_seconds,
    },
    forward=True,
)

E = Dialect(
    key="E",
    seed="004_0f1b253d3730a2cf.txt",
    states=_column("E"),
    edges=_read_edges(
        "* > Queued",
        "Queued, Retrying > Leased",
        "Leased > Running, Queued, Retrying",
        "Running > Running, Waiting, Queued, Retrying, Completed",
        "Waiting > Queued, Running",
        "Queued > Queued",
        "Queued, Leased, Running, Waiting, Retrying > Failed, Cancelled",
    ),
    names={
        _E.CREATED: "job_created",
        # The seed names this one only so, as a type of its code.
        _E.ADMITTED: "JobQueued",
        _E.ADOPTED: "job_running",
        _E.WAIT_COMPLETED: "wait_completed",
        _E.REQUEUED: "job_requeued",
    },
    arrivals={
        "Queued": "job_requeued",
        "Leased": "job_leased",
        "Running": "job_running",
        "Waiting": "job_waiting",
        "Retrying": "job_requeued",
        "Completed": "job_completed",
        "Failed": "job_failed",
        "Cancelled": "job_cancelled",
    },
    operations={_O.CLAIM: "Claim", _O.REQUEUE: "Requeue", _O.SIGNAL: "signal"},
    fields={"job_id": _id, "status": _word, "error": _error},
)


def is_dead_in_b(standing: Standing) -> bool:
    """Return whether B calls a job dead-lettered, which others may call failed (B15)."""
    return B.word(standing) == _DEAD


DIALECTS: dict[str, Dialect] = {dialect.key: dialect for dialect in (A, B, C, D, E)}
