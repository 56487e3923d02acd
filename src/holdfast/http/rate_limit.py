"""How many requests one token may send: a bucket each, which fills at the rate and holds the burst.

In this server's memory: several servers of one store each grant the rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast.auth.authorization import LOCAL
from holdfast.errors import RateLimited
from holdfast.http.limits import ServerLimits

BUCKETS_LIMIT = 10_000
"""How many tokens are counted; then those without a request for a while are forgotten."""


class _Bucket:
    __slots__ = ("at", "level")

    def __init__(self, level: float, at: float) -> None:
        self.level = level
        self.at = at


class RateLimiter:
    """Counts requests by token."""

    def __init__(
        self, limits: ServerLimits, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """Grant each token the rate and the burst of `limits`."""
        self._rate = limits.requests_per_second
        self._burst = float(max(1, limits.burst))
        self._monotonic = monotonic
        self._buckets: dict[str, _Bucket] = {}

    def take(self, id: str) -> None:
        """Count a request; RateLimited has the time to retry."""
        if self._rate <= 0 or id == LOCAL:
            return
        now = self._monotonic()
        bucket = self._buckets.get(id) or self._add_bucket(id, now)
        bucket.level = min(self._burst, bucket.level + (now - bucket.at) * self._rate)
        bucket.at = now
        if bucket.level < 1:
            raise RateLimited(
                f"this token may send {self._rate:g} requests a second",
                retry_in=(1 - bucket.level) / self._rate,
            )
        bucket.level -= 1

    def _add_bucket(self, id: str, now: float) -> _Bucket:
        if len(self._buckets) >= BUCKETS_LIMIT:
            full = self._burst / self._rate
            self._buckets = {
                known: one for known, one in self._buckets.items() if now - one.at < full
            }
        made = self._buckets[id] = _Bucket(self._burst, now)
        return made
