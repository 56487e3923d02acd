"""Counts the queues now and then, for scrapes to read."""

from __future__ import annotations

from holdfast.ports.store import Store
from holdfast.services.loop import Loop
from holdfast.telemetry.queue_depths import REFRESH_SECONDS, Depths


async def refresh_depths(
    depths: Depths, store: Store, *, every_seconds: float = REFRESH_SECONDS
) -> None:
    """Refresh the counts again and again, until cancelled."""

    async def refresh() -> float:
        await depths.refresh(store)
        return every_seconds

    await Loop("queue depths", refresh).run()
