"""Claim order: which of two due jobs a worker gets first, and the lane that a claim finds a job in.

A lane is a set of needs, a priority class and whether the tenant is the default one, in one number:
the key of a set of needs is a multiple of eight (`execution_policy.needs_key_of`).
"""

from __future__ import annotations

from holdfast.lifecycle.execution_policy import needs_key
from holdfast.lifecycle.record import Draft, Job
from holdfast.lifecycle.states import Priority
from holdfast.lifecycle.times import SECOND

AGEING = {
    Priority.CRITICAL: 0,
    Priority.INTERACTIVE: 300 * SECOND,
    Priority.BATCH: 1800 * SECOND,
}
"""How much later a job of a class counts as due: a batch job older than half an hour goes before
a critical one that has just come, so that nothing starves (A3)."""

DEFAULT_TENANT = "default"
CLASS, FOREIGN, NEEDS = 3, 4, ~7
"""The bits of a lane: its class, whether the tenant is another than the default one, its needs."""

_OFFSETS = {priority.code: offset for priority, offset in AGEING.items()}


def lane_of(job: Job | Draft) -> int:
    """Return the lane that a job is claimed from."""
    foreign = 0 if job.tenant == DEFAULT_TENANT else FOREIGN
    return needs_key(job.needs) | job.priority.code | foreign


def ageing_of(lane: int) -> int:
    """Return how much later the jobs of a lane count as due than they are."""
    return _OFFSETS[lane & CLASS]
