"""Which job a packet means: packets name jobs by their public id, the store by its own.

What this bridge sent it remembers, within a bound: an id is never given to another job. All else is
looked up one by one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from holdfast.errors import BadData
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import KeyKind
from holdfast.services.bus_bridge.settings import BridgeParts

MOST_REMEMBERED = 10_000


class KnownJobs:
    """Finds the jobs that packets name."""

    def __init__(self, parts: BridgeParts) -> None:
        self._store = parts.store
        self._tenant = parts.settings.tenant
        self._sent: OrderedDict[str, JobId] = OrderedDict()

    def remember(self, jobs: Iterable[Job]) -> None:
        """Note jobs that are being sent."""
        for job in jobs:
            self._sent[job.public_id] = job.id
        while len(self._sent) > MOST_REMEMBERED:
            self._sent.popitem(last=False)

    async def find(self, job_ids: Sequence[str]) -> list[Job | None]:
        """Return the jobs of these ids, each as it is now."""
        ids = {job_id: await self._find_id(job_id) for job_id in job_ids}
        known = {job_id: id_ for job_id, id_ in ids.items() if id_ is not None}
        jobs = await self._store.get(list(known.values())) if known else []
        found = dict(zip(known, jobs, strict=True))
        return [found.get(job_id) for job_id in job_ids]

    async def _find_id(self, job_id: str) -> JobId | None:
        if job_id in self._sent:
            return self._sent[job_id]
        try:
            check_text(job_id, "job_id")
        except BadData:
            return None
        return await self._store.look_up(self._tenant, KeyKind.JOB_ID, job_id)
