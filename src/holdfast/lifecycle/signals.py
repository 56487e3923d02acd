"""Names of waits: for a signal, or for whichever of several comes first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from holdfast.lifecycle.record import RESERVED, Draft

ANY = RESERVED + "any:"
"""The prefix of a wait for one of several signals; a JSON list of them follows."""


def any_of(signals: Sequence[str]) -> str:
    """Return the name of a wait for whichever of these comes first."""
    return ANY + msgspec.json.encode(list(signals)).decode()


@lru_cache(maxsize=1024)
def signals_of(wait_for: str) -> frozenset[str]:
    """Return the signals that end a wait."""
    if not wait_for.startswith(ANY):
        return frozenset({wait_for})
    return frozenset(msgspec.json.decode(wait_for[len(ANY) :], type=list[str]))


def is_awaited(record: Draft, signal: str) -> bool:
    """Return whether a job waits for a signal of this name."""
    return record.wait_for is not None and signal in signals_of(record.wait_for)


def oldest_signal(record: Draft, wait_for: str) -> int | None:
    """Return the revision of the oldest pending signal that ends a wait; None if there is none."""
    wanted = signals_of(wait_for)
    return next((pending.rev for pending in record.signals if pending.name in wanted), None)
