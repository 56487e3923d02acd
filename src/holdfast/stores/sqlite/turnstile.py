"""Whose turn it is to write, where many processes have one file open.

SQLite's own lock has no queue: whoever asks most often gets it, and 64 processes that ask all the
time leave no processor to the one that writes. So only one at a time asks for it, the next in
line, and the others wait here, at random intervals, for being that one. A courtesy, not a lock:
whoever has waited too long goes ahead without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from holdfast.errors import StoreBroken, StoreUnavailable
from holdfast.stores.sqlite.connections import Patience, reason

LONGEST_WAIT_SECONDS = 10.0
"""A stopped process may stand in the way for so long, and no longer."""


class Turnstile:
    """A lock on a small file beside the database: the database's own must not be opened twice."""

    def __init__(self, path: str) -> None:
        """Make or find the file; it stays, because somebody may be waiting on it."""
        name = path + "-turn"
        try:
            self._file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreBroken(f"cannot open the file {reason(name, error)}") from error

    @contextlib.contextmanager
    def next_in_line(self, deadline_seconds: float) -> Iterator[None]:
        """Be the one who asks for SQLite's lock, as long as it takes to get it."""
        with contextlib.suppress(StoreUnavailable):
            Patience(min(deadline_seconds / 3, LONGEST_WAIT_SECONDS), longest=0.01).spend(
                self._take
            )
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _take(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)
