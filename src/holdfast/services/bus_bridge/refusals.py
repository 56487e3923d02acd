"""What is refused on a bus: counted by reason, and logged now and then."""

from __future__ import annotations

import logging
from time import monotonic

from holdfast.ports.bus import BusChannel
from holdfast.queries.error_reports import writable
from holdfast.telemetry import Meters

log = logging.getLogger(__name__)

LOG_EVERY_SECONDS = 10.0
"""Between two lines about one reason: any sender on the bus decides how often there is cause."""
SHOWN = 200


class Refusals:
    """Counts what is refused; the reasons are a fixed list, so that memory stays flat."""

    def __init__(self, meters: Meters, bus: str) -> None:
        self._meters = meters
        self._bus = bus
        self._logged: dict[tuple[BusChannel, str], float] = {}
        self._unlogged: dict[tuple[BusChannel, str], int] = {}

    def add(self, channel: BusChannel, reason: str, detail: str = "") -> None:
        """Count one; log it if no other was logged just before."""
        reason = self._meters.bus.refuse(channel, reason)
        key, now = (channel, reason), monotonic()
        self._unlogged[key] = self._unlogged.get(key, 0) + 1
        if now - self._logged.get(key, -LOG_EVERY_SECONDS) < LOG_EVERY_SECONDS:
            return
        self._logged[key] = now
        count = self._unlogged.pop(key)
        text = writable(detail, SHOWN).replace("\n", " ")
        log.warning(
            "bus %s: refused on %s: %s (%d since the last line): %s",
            *(self._bus, channel, reason, count, text),
        )
