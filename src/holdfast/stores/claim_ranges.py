"""The ranges of the claim index that a claim reads: one lane of a queue and route each.

A route is a task and its version; for lanes see `lifecycle.claim_order`. A worker knows the routes
that it serves; the index knows which lanes have jobs.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.lifecycle.claim_order import FOREIGN, NEEDS, ageing_of, lane_of
from holdfast.lifecycle.record import Draft, Job
from holdfast.lifecycle.routes import route


class Range(NamedTuple):
    """One stretch of the claim index: what is due in it has `claim_order` <= now + ageing."""

    queue: str
    route: str
    lane: int

    @property
    def needs(self) -> int:
        """The key of the set of needs."""
        return self.lane & NEEDS

    @property
    def ageing(self) -> int:
        """How much later its jobs count as due than they are."""
        return ageing_of(self.lane)

    @property
    def of_default(self) -> bool:
        """Whether its jobs are the default tenant's."""
        return not self.lane & FOREIGN


def range_of(job: Job | Draft) -> Range:
    """Return the range that a job is claimed from."""
    return Range(job.queue, route(job.task, job.task_version), lane_of(job))
