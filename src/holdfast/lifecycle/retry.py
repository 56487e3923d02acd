"""Retry and backoff: what an error or a silence leads to. Jitter is handed in."""

from __future__ import annotations

from sys import float_info

from msgspec.structs import replace

from holdfast.lifecycle.job import Draft, Record
from holdfast.lifecycle.policy import RELEASES_FREE, Policy
from holdfast.lifecycle.states import Link, State
from holdfast.lifecycle.times import SECOND, T

COMPENSATION_FAILED = "compensation_failed"
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
    }
)
RECHECK_FIRST, RECHECK_MAX = 5 * SECOND, 300 * SECOND
STAGES = frozenset({"fetch", "input", "exec", "output", "commit"})


def backoff(policy: Policy, failures: int, jitter: float) -> int:
    """Delay before the next try after `failures` failures: half fixed, half by `jitter` in [0, 1).

    Half is kept fixed so that a burst of failures never comes back at once.
    """
    full = min(policy.backoff_first * _growth(policy, failures - 1), policy.backoff_max)
    return int(full / 2 + full / 2 * jitter)


def _growth(policy: Policy, exponent: int) -> float:
    try:
        return policy.backoff_factor**exponent
    except OverflowError:
        # Beyond any maximum, and still a number: zero times infinity would be none.
        return float_info.max


def exhausted(record: Record[T]) -> bool:
    """Whether a failure now would be the last try (resolution 2)."""
    return record.failures + 1 >= record.policy.max_attempts


UNSERVED_PAUSE = 5 * SECOND
"""How long a job waits that was given back by a worker without its task: without a pause the same
worker would claim it again at once."""


def release_costs(record: Record[T]) -> bool:
    """Whether giving a job back costs a failure: from the 20th time on."""
    return record.releases >= RELEASES_FREE


def loss_costs(record: Draft) -> bool:
    """Whether losing the owner costs a failure.

    In claimed it does only where the start may have been folded into a later commit, so that the
    handler may have run: an idempotent job without a failure behind it.
    """
    if record.state is State.RUNNING:
        return True
    start_may_be_folded = record.policy.idempotent and record.failures == 0
    return start_may_be_folded or release_costs(record)


def stall_delay(record: Draft, failures: int, jitter: float) -> int:
    """When a stalled job is due: at once the first time, by backoff from the second."""
    return 0 if failures <= 1 else backoff(record.policy, failures, jitter)


def recheck_delay(record: Draft) -> int:
    """Delay before a parked job looks again whether it can go on: longer with each attempt."""
    return min(RECHECK_FIRST << min(max(record.attempt - 1, 0), 20), RECHECK_MAX)


def is_compensation(record: Record[T]) -> bool:
    """Whether it undoes another job. Its failure has a dead-letter reason of its own (B14)."""
    return record.link_kind is Link.COMPENSATION


def terms_left(policy: Policy, failures: int) -> Policy:
    """Say the terms of a linked retry: the tries left, the backoff from where it stands now."""
    first = min(policy.backoff_first * _growth(policy, failures), policy.backoff_max)
    return replace(policy, max_attempts=policy.max_attempts - failures, backoff_first=int(first))
