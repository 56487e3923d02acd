"""The janitor: goes through all jobs again and again; cleans, later purges, those that are over.

By the ids, a stretch at a time: it needs no index that every finish would have to keep, and a pass
costs the same however many jobs there are. Beside that it lists the place of blobs, and sweeps what
is left there. Any number may run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.flow.blobs_on_demand import BlobsOnDemand, BlobsPlan
from holdfast.flow.clean import CleanSweep, RetentionTerms, clean
from holdfast.flow.purge import Purged, PurgeTerms, purge, purge_all
from holdfast.flow.sweep_blobs import BlobSweep
from holdfast.flow.upload import UploadSweep, expire_all_uploads, expire_uploads
from holdfast.lifecycle.record import Actor, JobId
from holdfast.lifecycle.states import Role
from holdfast.ports.blobs import Blobs
from holdfast.ports.store import Store
from holdfast.services.blob_sweeper import BlobSweeper
from holdfast.services.loop import Loop
from holdfast.telemetry import Meters

log = logging.getLogger(__name__)

LOOK_AT = 1000
"""Jobs that one pass reads."""
BUSY_SECONDS = 0.1
"""Rest after a pass that wrote: others need the store, too."""
IDLE_SECONDS = 1.0
"""Rest after a pass that found nothing: all of a million jobs are seen within 17 minutes."""
PASS_SECONDS = 60.0
"""Rest once all jobs were seen."""


class Janitor(Loop):
    """One loop of passes over one store."""

    def __init__(
        self,
        store: Store,
        name: str,
        terms: RetentionTerms | None = None,
        *,
        purge_terms: PurgeTerms | None = None,
        blobs: BlobsPlan | None = None,
        look_at: int = LOOK_AT,
        on_look: Callable[[CleanSweep], None] | None = None,
        on_purge: Callable[[Purged], None] | None = None,
        on_sweep: Callable[[BlobSweep], None] | None = None,
        on_expire: Callable[[UploadSweep], None] | None = None,
        meters: Meters | None = None,
    ) -> None:
        """Keep one store in order; without `blobs`, commands and agents are not cleaned."""
        super().__init__("janitor", self._clean_and_purge, meters=meters)
        self._store = store
        self._actor = Actor(Role.JANITOR, name)
        self._terms = terms or RetentionTerms()
        self._look_at = look_at
        self._on_look = on_look
        self._on_purge = on_purge
        self._purge_terms = purge_terms or PurgeTerms()
        self._after: JobId | None = None
        """The last job that a pass has seen; after a restart it starts from the first."""
        self._purge_after: JobId | None = None
        """The same for the passes that purge."""
        self._blobs = BlobsOnDemand(store, blobs)
        self._sweeper = BlobSweeper(store, self._terms, look_at=look_at, on_sweep=on_sweep)
        self._on_expire = on_expire
        self._has_warned = False
        """Whether it was logged that commands and agents are not cleaned."""

    async def clean(self) -> CleanSweep:
        """Clean the next stretch of jobs."""
        report = await clean(
            self._store,
            self._actor,
            self._terms,
            blobs=self._blobs.get,
            after=self._after,
            look_at=self._look_at,
        )
        self._after = report.next
        self._warn_once(report.unreachable)
        for id_, problem in report.failed.items():
            log.error("job %s could not be cleaned: %s", id_, problem)
        self._meters.cleaned += report.cleaned
        if self._on_look is not None:
            self._on_look(report)
        return report

    async def purge(self) -> Purged:
        """Purge, in the next stretch of jobs, those whose record's term is over."""
        report = await purge(
            self._store,
            self._actor,
            self._purge_terms,
            blobs=self._blobs.get,
            after=self._purge_after,
            look_at=self._look_at,
        )
        self._purge_after = report.next
        self._report_sweep(report)
        return report

    async def purge_all(self) -> Purged:
        """Purge all whose record's term is over; return the sum."""
        total = await purge_all(self._store, self._actor, self._purge_terms, blobs=self._blobs.get)
        self._report_sweep(total)
        return total

    def _report_sweep(self, report: Purged) -> None:
        for id_, problem in report.failed.items():
            log.error("job %s could not be purged: %s", id_, problem)
        self._meters.purged += report.jobs
        if self._on_purge is not None:
            self._on_purge(report)

    async def clean_all(self) -> CleanSweep:
        """Clean all jobs once; return the sum."""
        self._after = None
        total = CleanSweep()
        while True:
            report = await self.clean()
            total.add(report)
            if report.next is None:
                return total

    async def sweep_all_blobs(self) -> BlobSweep:
        """Delete all blobs that nothing in the store names; return the sum."""
        return await self._sweeper.sweep_all(await self._find_blobs())

    async def expire_all_uploads(self) -> UploadSweep:
        """Remove all uploads whose time has come; return the sum."""
        report = await expire_all_uploads(self._store, await self._find_blobs(), self._actor)
        self._report_uploads(report)
        return report

    async def _expire_uploads(self, blobs: Blobs | None) -> int:
        """Remove some uploads whose time has come; return how much was changed."""
        report = await expire_uploads(self._store, blobs, self._actor)
        self._report_uploads(report)
        return report.written

    def _report_uploads(self, report: UploadSweep) -> None:
        for id_, problem in report.failed.items():
            log.error("upload %s could not be removed: %s", id_, problem)
        if self._on_expire is not None:
            self._on_expire(report)

    async def _find_blobs(self) -> Blobs | None:
        """Return the place of blobs; None if it is not there, or not for this process."""
        try:
            return await self._blobs.find()
        except (HoldfastError, OSError) as error:
            self._warn_once(str(error))
            return None

    def _warn_once(self, unreachable: str | None) -> None:
        if unreachable is not None and not self._has_warned:
            log.warning("commands and agents are not cleaned: %s", unreachable)
            self._has_warned = True

    async def _clean_and_purge(self) -> float:
        report = await self.clean()
        purged = await self.purge()
        blobs = await self._find_blobs()
        expired = await self._expire_uploads(blobs)
        swept = await self._sweeper.sweep(blobs)
        if report.written or purged.jobs or purged.bytes or swept.blobs or expired:
            return BUSY_SECONDS
        is_through = report.next is None and purged.next is None and swept.ended
        return PASS_SECONDS if is_through else IDLE_SECONDS
