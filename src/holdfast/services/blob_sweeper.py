"""Sweeps the place of blobs a stretch at a time, along one listing after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable

from holdfast.flow.clean import RetentionTerms
from holdfast.flow.sweep_blobs import BlobSweep, list_all, sweep_blobs
from holdfast.ports.blobs import BlobEntry, Blobs
from holdfast.ports.store import Store

log = logging.getLogger(__name__)

LISTING_SECONDS = 3600.0
"""Rest between two listings of all blobs: each reads as many keys as there are."""


class BlobSweeper:
    """Where the sweep of one store's blobs is; after a restart it starts from the first blob."""

    def __init__(
        self,
        store: Store,
        terms: RetentionTerms,
        *,
        look_at: int,
        on_sweep: Callable[[BlobSweep], None] | None,
    ) -> None:
        """Sweep `look_at` blobs at a time."""
        self._store = store
        self._terms = terms
        self._look_at = look_at
        self._on_sweep = on_sweep
        self._listing: AsyncIterator[BlobEntry] | None = None
        """What is left of the listing that is under way."""
        self._list_again_at = 0.0

    async def sweep(self, blobs: Blobs | None) -> BlobSweep:
        """Sweep the next stretch; a new listing is not started too soon after the last."""
        if self._listing is None and time.monotonic() < self._list_again_at:
            return BlobSweep(ended=True)
        # Trouble ends a listing: the next one starts from the first blob.
        listing, self._listing = self._listing, None
        self._list_again_at = time.monotonic() + LISTING_SECONDS
        if blobs is None:
            return BlobSweep(ended=True)
        listing = list_all(blobs) if listing is None else listing
        report = await sweep_blobs(self._store, blobs, self._terms, listing, look_at=self._look_at)
        if not report.ended:
            self._listing = listing
        for id_, problem in report.failed.items():
            log.error("blobs of %s could not be deleted: %s", id_, problem)
        if self._on_sweep is not None:
            self._on_sweep(report)
        return report

    async def sweep_all(self, blobs: Blobs | None) -> BlobSweep:
        """Sweep all blobs once; return the sum."""
        self._listing, self._list_again_at = None, 0.0
        total = BlobSweep()
        while not total.ended:
            report = await self.sweep(blobs)
            total.add(report)
            total.ended = report.ended
        return total
