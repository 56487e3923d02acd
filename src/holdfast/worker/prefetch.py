"""How many jobs a worker may hold beyond those it runs: about a second of measured work.

A worker of slow jobs prefetches none, so that an idle one beside it finds them; one of short jobs
claims hundreds at a time.
"""

from __future__ import annotations

SECONDS_AHEAD = 0.5
MOST = 6000
WEIGHT = 0.05
"""The weight of the newest duration in the running mean, which covers about twenty jobs."""


class Prefetch:
    """Measures durations, and returns how far ahead a worker may claim."""

    def __init__(self, concurrency: int) -> None:
        """Start without a measure: nothing is prefetched."""
        self._concurrency = concurrency
        self._mean_seconds: float | None = None
        self._latest_seconds = 0.0

    def measured(self, seconds: float) -> None:
        """Note how long an attempt took."""
        mean = self._mean_seconds
        self._latest_seconds = seconds
        self._mean_seconds = seconds if mean is None else mean + WEIGHT * (seconds - mean)

    def allowance(self, oldest_seconds: float) -> int:
        """Return how many jobs may wait; `oldest_seconds` is how long the oldest attempt runs.

        An attempt that is still running counts too, and the latest by itself: else a burst of short
        jobs would let a worker hoard long ones for as long as the mean remembers it.
        """
        if self._mean_seconds is None:
            return 0
        mean = max(self._mean_seconds, self._latest_seconds, oldest_seconds, 1e-6)
        return min(int(self._concurrency * SECONDS_AHEAD / mean), MOST)
