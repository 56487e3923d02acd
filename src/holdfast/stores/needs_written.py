"""Which sets of needs this process has lately written: those that no job has are forgotten."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

AGAIN_SECONDS = 600.0
"""After how long a set is written again with the next job that names it. Far less than the hour
for which a set is kept that no job has: so it is there when the job comes."""
SETS = 10_000
"""How many are remembered; submitters choose them."""


class Written:
    """When sets of needs were written."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with none."""
        self._at: dict[int, float] = {}
        self._clock = clock

    def is_fresh(self, key: int) -> bool:
        """Return whether a set was written so lately that it is there for certain."""
        return self._clock() - self._at.get(key, float("-inf")) < AGAIN_SECONDS

    def note(self, keys: Iterable[int]) -> None:
        """Note that sets were written."""
        if len(self._at) > SETS:
            self._at.clear()
        self._at.update(dict.fromkeys(keys, self._clock()))
