"""Retry and backoff: what an error or a lost owner costs. The caller passes the jitter."""

from __future__ import annotations

from sys import float_info

from msgspec.structs import replace

from holdfast.lifecycle.execution_policy import RELEASES_FREE, Policy
from holdfast.lifecycle.record import Draft, LoggedEvent, Record
from holdfast.lifecycle.states import Kind, Link, State
from holdfast.lifecycle.times import SECOND, T

COMPENSATION_FAILED = "compensation_failed"
UPLOAD_EXPIRED = "upload_expired"
"""The files that a job waits for will not come (D3)."""
REASONS = frozenset(
    {
        "parse_error",
        "validation_failed",
        "dependency_unavailable",
        "timeout",
        "exhausted_retries",
        "policy_violation",
        "infrastructure_failure",
        COMPENSATION_FAILED,
        UPLOAD_EXPIRED,
    }
)
RECHECK_FIRST, RECHECK_MAX = 5 * SECOND, 300 * SECOND
STAGES = frozenset({"fetch", "input", "exec", "output", "commit"})
_BEFORE_RUNNING = frozenset({State.PENDING, State.QUEUED, State.CLAIMED})


def backoff(policy: Policy, failures: int, jitter: float) -> int:
    """Return the delay before the next try: half fixed, half by `jitter` in [0, 1).

    Half is fixed so that a burst of failures is never retried at once.
    """
    full = min(policy.backoff_first * _compute_growth(policy, failures - 1), policy.backoff_max)
    return int(full / 2 + full / 2 * jitter)


def _compute_growth(policy: Policy, exponent: int) -> float:
    try:
        return policy.backoff_factor**exponent
    except OverflowError:
        # Beyond any maximum, and still a number: zero times infinity is not one.
        return float_info.max


def exhausted(record: Record[T]) -> bool:
    """Return whether a failure now would be the last try (resolution 2)."""
    return record.failures + 1 >= record.policy.max_attempts


def runs_once(record: Draft) -> bool:
    """Return whether a job has started and must not be run again: its effects might repeat."""
    return record.state is State.RUNNING and not record.policy.idempotent


UNSERVED_PAUSE = 5 * SECOND
"""How long a job waits that a worker without its task released: without a pause the same worker
would claim it again at once."""


def release_costs(record: Record[T]) -> bool:
    """Return whether giving a job back costs a failure: from the 20th time on."""
    return record.releases >= RELEASES_FREE


def loss_costs(record: Draft) -> bool:
    """Return whether losing the owner costs a failure.

    In claimed it does only where the start may have been folded into a later commit, so that the
    handler may have run: an idempotent job without a failure behind it. What was sent to a bus may
    have run as well: its workers need not report a start.
    """
    if record.state is State.RUNNING or record.kind is Kind.BUS:
        return True
    start_may_be_folded = record.policy.idempotent and record.failures == 0
    return start_may_be_folded or release_costs(record)


def stall_delay(record: Draft, failures: int, jitter: float) -> int:
    """Return after which delay a stalled job is due: at once the first time, then by backoff."""
    return 0 if failures <= 1 else backoff(record.policy, failures, jitter)


def failure_stage(end: LoggedEvent) -> str:
    """Return where an ended job failed (B16).

    Without a stage in the event, it failed while it ran, or before it could.
    """
    if end.facts.stage is not None:
        return end.facts.stage
    if end.to_state is State.DENIED:
        return "input"
    return "fetch" if end.from_state in _BEFORE_RUNNING else "exec"


def recheck_delay(record: Draft) -> int:
    """Return the delay before a job checks again whether it can run: longer with each attempt."""
    return min(RECHECK_FIRST << min(max(record.attempt - 1, 0), 20), RECHECK_MAX)


def is_compensation(record: Record[T]) -> bool:
    """Return whether a job undoes another; its failure has a reason of its own (B14)."""
    return record.link_kind is Link.COMPENSATION


def terms_left(policy: Policy, failures: int) -> Policy:
    """Return the terms of a linked retry: the tries left, and the backoff reached by now."""
    first = min(policy.backoff_first * _compute_growth(policy, failures), policy.backoff_max)
    return replace(policy, max_attempts=policy.max_attempts - failures, backoff_first=int(first))
