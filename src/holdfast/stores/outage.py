"""Outages: one log line when a database stops answering, and one when it answers again.

For the whole process: its stores share the database, and each would report the same outage.
"""

from __future__ import annotations

import logging
import threading
import time

log = logging.getLogger(__name__)

_LOCK = threading.Lock()
_away: dict[str, float] = {}
"""Since when a database does not answer, by its name."""


def is_away() -> bool:
    """Return whether a database of this process does not answer; cheap enough for every call."""
    return bool(_away)


def note_unreachable(name: str, error: BaseException) -> None:
    """Note that a database did not answer; the first time, log it."""
    with _LOCK:
        if name in _away:
            return
        _away[name] = time.monotonic()
    text = str(error) or type(error).__name__
    log.error("the database %s does not answer, retrying: %s", name, text)


def note_reachable(name: str) -> None:
    """Note that a database answered; after an outage, log it."""
    with _LOCK:
        since = _away.pop(name, None)
    if since is not None:
        log.warning("the database %s answers again after %.1f s", name, time.monotonic() - since)
