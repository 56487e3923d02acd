"""How many jobs each queue has in each state: a snapshot of the store's summaries, for scrapes.

A scrape never calls the store: a database that is slow or away must not hide the process's own
numbers, and a hundred scrapers must not load it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.lifecycle.states import State
from holdfast.ports.store import Store
from holdfast.telemetry.counters import OTHER, Meters, label

log = logging.getLogger(__name__)

REFRESH_SECONDS = 15.0
MOST_QUEUES = 200


class Depths:
    """The last counts that were read, over all tenants, and when."""

    def __init__(self, meters: Meters) -> None:
        self._clock: Callable[[], float] = meters.clock
        self._meters = meters
        self.jobs: dict[tuple[str, State], int] = {}
        self.quarantined = 0
        self.read_at: float | None = None

    @property
    def age_seconds(self) -> float | None:
        """How old the counts are; None before the first."""
        return None if self.read_at is None else self._clock() - self.read_at

    async def refresh(self, store: Store) -> None:
        """Read the counts. An error leaves the old ones, which then show their age."""
        asked_at = self._clock()
        try:
            counts = await store.counts()
            quarantined = (await store.quarantined(limit=1)).total
        except HoldfastError as error:
            self._meters.store_error(error.code)
            log.warning("the queues could not be counted: %s", error)
            return
        named = sorted({count.queue for count in counts})[:MOST_QUEUES]
        jobs: dict[tuple[str, State], int] = {}
        for count in counts:
            queue = label(count.queue) if count.queue in named else OTHER
            jobs[queue, count.state] = jobs.get((queue, count.state), 0) + count.jobs
        self.jobs, self.quarantined, self.read_at = jobs, quarantined, asked_at
