"""Whose turn it is to write, where many processes have one file open.

SQLite's own lock has no queue: the process that asks most often gets it, and 64 processes that ask
all the time leave no processor to the one that writes. So only one at a time asks for it, the next
in line, and the others wait here, at random intervals, for being that one. A courtesy, not a lock:
a process that finds SQLite's lock free while the line does not move goes past the line. Own to
SQLite: a server has a queue for its locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable

from holdfast.errors import StoreBroken, StoreUnavailable
from holdfast.stores.sqlite.connections import BUSY, Patience, explain_unusable

LONGEST_WAIT_SECONDS = 10.0
"""Maximum wait in a line that moves; then the process asks SQLite without having its turn."""
PROBE_SECONDS = 0.25
"""How long a line may stand still before a waiting process tries whether SQLite's lock is free."""


def _open_beside(path: str, name: str) -> int:
    """Open a file for the same users as the database; make it if it is not there."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        made = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(name, flags)
    with contextlib.suppress(OSError):
        # Not by the mode of `open`, from which the umask takes away.
        os.fchmod(made, stat.S_IMODE(os.stat(path).st_mode) & 0o666)
    return made


class Turnstile:
    """A lock on a small file beside the database: the database's own must not be opened twice.

    The file holds the number of turns taken so far: it shows whether the line moves.
    """

    def __init__(self, path: str) -> None:
        """Make or find the file; it stays, because another process may be waiting on it."""
        self.name = path + "-turn"
        try:
            self._file = _open_beside(path, self.name)
        except OSError as error:
            reason = explain_unusable(self.name, error)
            raise StoreBroken(f"cannot open the file {reason}") from error
        self._stuck: bytes | None = None
        """The turn whose holder was found stopped; until it changes, nobody waits for it."""

    def enter(self, ask: Callable[[], object], patience: Patience) -> None:
        """Take SQLite's lock by `ask`, as the next in line; it raises a busy error meanwhile."""
        wait = _Wait(self, ask)
        try:
            limit = min(patience.seconds / 3, LONGEST_WAIT_SECONDS)
            with contextlib.suppress(StoreUnavailable):
                Patience(limit, longest=0.01).retry_while_busy(wait.check_turn)
            if not wait.asked:
                patience.retry_while_busy(ask)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def try_to_take(self) -> bool:
        """Return whether the turn is ours now; taking it moves the line."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        turn = (int.from_bytes(self.turn()) + 1) % 2**64
        os.pwrite(self._file, turn.to_bytes(8), 0)
        return True

    def turn(self) -> bytes:
        """Return the number of the last turn taken by any process."""
        return os.pread(self._file, 8, 0)

    def is_stuck(self) -> bool:
        """Return whether the holder of the current turn was found stopped before."""
        return self._stuck is not None and self._stuck == self.turn()

    def note_stuck(self, turn: bytes) -> None:
        """Remember that SQLite's lock was free while this turn was held for long."""
        self._stuck = turn

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class _Wait:
    """One transaction's wait in line, a step at a time."""

    def __init__(self, line: Turnstile, ask: Callable[[], object]) -> None:
        self.asked = False
        """Whether SQLite's lock was taken on the way."""
        self._line, self._ask = line, ask
        self._turn = line.turn()
        self._probe_at = time.monotonic() + PROBE_SECONDS

    def check_turn(self) -> None:
        """Return when it is our turn or SQLite's lock is ours; else raise that the line is busy."""
        if self._line.try_to_take():
            return
        if self._line.is_stuck():
            self._ask()
            self.asked = True
            return
        if time.monotonic() < self._probe_at:
            raise BlockingIOError("another process is next in line")
        self._probe_past_line()

    def _probe_past_line(self) -> None:
        """Try SQLite's lock past the line: if it is free and the line has not moved, nobody asks.

        The process whose turn it is was stopped, or is starved, before it could ask: waiting for
        it before each transaction would slow every writer of the file to its limit.
        """
        turn, before = self._line.turn(), self._turn
        self._turn, self._probe_at = turn, time.monotonic() + PROBE_SECONDS
        if turn != before:
            raise BlockingIOError("the line moves")
        try:
            self._ask()
        except BUSY as error:
            raise BlockingIOError("another process writes") from error
        self._line.note_stuck(turn)
        self.asked = True
