"""The ranges of the claim index that a claim reads: one lane of a queue and route each.

A route is a task and its version. A lane is a set of needs, a priority class, and whether the
tenant is the default one, in one number: the key of the needs is a multiple of eight. A worker
knows the routes that it serves; which lanes have jobs the index tells.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.lifecycle.job import Job
from holdfast.lifecycle.policy import needs_key
from holdfast.lifecycle.routes import route
from holdfast.stores.law import AGEING, DEFAULT_TENANT, FOREIGN

CLASS, NEEDS = 3, ~7
"""The bits of a lane that are its class, and those that are its needs."""
_AGEING = {priority.code: ageing for priority, ageing in AGEING.items()}


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
        return _AGEING[self.lane & CLASS]

    @property
    def of_default(self) -> bool:
        """Whether its jobs are the default tenant's."""
        return not self.lane & FOREIGN


def range_of(job: Job) -> Range:
    """Return the range that a job is claimed from."""
    foreign = 0 if job.tenant == DEFAULT_TENANT else FOREIGN
    lane = needs_key(job.needs) | job.priority.code | foreign
    return Range(job.queue, route(job.task, job.task_version), lane)
