"""The clock by which a worker trusts its leases: it goes on while the machine sleeps.

`time.monotonic()` stands still during a suspend on Linux, and the store's clock does not: a worker
that wakes up after an hour would go on trusting leases that ran out long ago.
"""

from __future__ import annotations

import time

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def lease_now() -> float:
    """Return seconds since some fixed moment, those of a suspend included.

    Systems without such a clock: macOS counts a sleep in no clock that Python offers there, so that
    leases are trusted as long as the machine was awake. The store refuses what is written too late.
    """
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)
