"""Which job a packet means: packets name jobs by their public id, the store by its own.

What this bridge sent it remembers, within a bound; all else is looked up one by one.
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
        asked = {job_id: await self._find_id(job_id) for job_id in job_ids}
        found = await self._get(asked)
        # A purged job leaves its id to another, which is not the one that was sent.
        gone = [job_id for job_id in asked if job_id in self._sent and job_id not in found]
        for job_id in gone:
            del self._sent[job_id]
        if gone:
            found |= await self._get({job_id: await self._find_id(job_id) for job_id in gone})
        return [found.get(job_id) for job_id in job_ids]

    async def _get(self, asked: dict[str, JobId | None]) -> dict[str, Job]:
        ids = {job_id: id_ for job_id, id_ in asked.items() if id_ is not None}
        jobs = await self._store.get(list(ids.values())) if ids else []
        return {job_id: job for job_id, job in zip(ids, jobs, strict=True) if job is not None}

    async def _find_id(self, job_id: str) -> JobId | None:
        if job_id in self._sent:
            return self._sent[job_id]
        try:
            check_text(job_id, "job_id")
        except BadData:
            return None
        return await self._store.look_up(self._tenant, KeyKind.JOB_ID, job_id)
