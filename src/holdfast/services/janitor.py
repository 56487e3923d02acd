"""The janitor: goes through all jobs again and again; cleans, later purges, those that are over.

By the ids, a stretch at a time: so it needs no index that every finish would have to keep, and a
look costs the same however many jobs there are. Any number may run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.flow.clean import Cleaned, Terms, clean
from holdfast.flow.purge import Purged, PurgeTerms, purge, purge_all
from holdfast.lifecycle.job import Actor, JobId
from holdfast.lifecycle.states import Role
from holdfast.ports import Store
from holdfast.services.rounds import Rounds
from holdfast.telemetry import Meters

log = logging.getLogger(__name__)

LOOK_AT = 1000
"""Jobs that one look goes through."""
BUSY_SECONDS = 0.1
"""Rest after a look that wrote: others have to come through, too."""
IDLE_SECONDS = 1.0
"""Rest after a look that found nothing: all of a million jobs are seen within 17 minutes."""
PASS_SECONDS = 60.0
"""Rest once all jobs were looked at."""


class Janitor(Rounds):
    """One loop of looks over one store."""

    def __init__(
        self,
        store: Store,
        name: str,
        terms: Terms | None = None,
        *,
        purge_terms: PurgeTerms | None = None,
        look_at: int = LOOK_AT,
        on_look: Callable[[Cleaned], None] | None = None,
        on_purge: Callable[[Purged], None] | None = None,
        meters: Meters | None = None,
    ) -> None:
        """Take the store and the terms; `run` begins."""
        super().__init__("janitor", self._turn, meters=meters)
        self._store = store
        self._actor = Actor(Role.JANITOR, name)
        self._terms = terms or Terms()
        self._look_at = look_at
        self._on_look = on_look
        self._on_purge = on_purge
        self._purge_terms = purge_terms or PurgeTerms()
        self._after: JobId | None = None
        """The last job that was looked at; lost with the process, it begins anew."""
        self._purge_after: JobId | None = None
        """The same for the looks that purge."""

    async def clean(self) -> Cleaned:
        """Look once at the next stretch of jobs."""
        report = await clean(
            self._store, self._actor, self._terms, after=self._after, look_at=self._look_at
        )
        self._after = report.next
        for id_, problem in report.failed.items():
            log.error("job %s could not be cleaned: %s", id_, problem)
        self._meters.cleaned += report.cleaned
        if self._on_look is not None:
            self._on_look(report)
        return report

    async def purge(self) -> Purged:
        """Look once at the next stretch of jobs for those whose record's term is over."""
        report = await purge(
            self._store,
            self._actor,
            self._purge_terms,
            after=self._purge_after,
            look_at=self._look_at,
        )
        self._purge_after = report.next
        self._note(report)
        return report

    async def purge_all(self) -> Purged:
        """Purge all whose record's term is over; returns the sum."""
        total = await purge_all(self._store, self._actor, self._purge_terms)
        self._note(total)
        return total

    def _note(self, report: Purged) -> None:
        for id_, problem in report.failed.items():
            log.error("job %s could not be purged: %s", id_, problem)
        self._meters.purged += report.jobs
        if self._on_purge is not None:
            self._on_purge(report)

    async def clean_all(self) -> Cleaned:
        """Look at all jobs once; returns the sum."""
        self._after = None
        total = Cleaned()
        while True:
            report = await self.clean()
            total.cleaned += report.cleaned
            total.erased += report.erased
            total.beats += report.beats
            total.lost += report.lost
            total.failed |= report.failed
            if report.next is None:
                return total

    async def _turn(self) -> float:
        report = await self.clean()
        purged = await self.purge()
        if report.written or purged.jobs or purged.bytes:
            return BUSY_SECONDS
        return PASS_SECONDS if report.next is None and purged.next is None else IDLE_SECONDS
