"""What wakes the writer's thread: a request in this process, or a notice that another brought work.

A notice is that the small file beside the database is opened, which the kernel reports to all who
watch it (inotify). It is a hint: where it cannot be watched, the thread looks by the clock, and
callers also poll. Own to SQLite: a server has NOTIFY.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import struct
from collections.abc import Iterator

_OPENED = 0x20
"""IN_OPEN. Not a change of the file: the next sync of the database could have to wait for it."""
_REPLACED = 0x4 | 0x400 | 0x800
"""IN_ATTRIB, IN_DELETE_SELF and IN_MOVE_SELF. A file that is open somewhere is not deleted with its
last name: only its number of names changes."""
_EVENT = struct.Struct("iIII")
_EVENTS_BYTES = 256 * _EVENT.size


class Notices:
    """Signals to one thread. `signal` and `send` may be called from any other."""

    def __init__(self, path: str | None) -> None:
        """Watch this file for notices of other processes; None: there are no others."""
        self._path = path
        self._end, self._start = os.pipe()
        self._watch = None if path is None else _watch(path)
        self._poll = select.poll()
        os.set_blocking(self._end, False)
        for file in (self._end, self._watch):
            if file is not None:
                self._poll.register(file, select.POLLIN)

    @property
    def are_watched(self) -> bool:
        """Whether notices of other processes arrive."""
        return self._watch is not None

    def signal(self) -> None:
        """End the thread's wait, or its next one."""
        os.write(self._start, b"\0")

    def wait(self, seconds: float | None) -> bool:
        """Wait for a signal; False if a notice came, too, or the time is over."""
        ready = {file for file, _ in self._poll.poll(None if seconds is None else seconds * 1000)}
        for file in ready:
            # What came meanwhile is one.
            events = os.read(file, _EVENTS_BYTES)
            if file != self._end and any(mask != _OPENED for _, mask, _, _ in _read_events(events)):
                self._watch_again()
        return ready == {self._end}

    def _watch_again(self) -> None:
        """Watch the file that has the path now; without one, no notices arrive any more."""
        if self._watch is not None and self._path is not None:
            self._poll.unregister(self._watch)
            os.close(self._watch)
            self._watch = _watch(self._path)
            if self._watch is not None:
                self._poll.register(self._watch, select.POLLIN)

    def send(self) -> None:
        """Send a notice to the other processes."""
        if self._path is not None:
            # Without it they look later.
            with contextlib.suppress(OSError):
                os.close(os.open(self._path, os.O_RDONLY | os.O_CLOEXEC))

    def close(self) -> None:
        """Close the files."""
        for file in (self._end, self._start, self._watch):
            if file is not None:
                os.close(file)


def _watch(path: str) -> int | None:
    """Return a file to read events of another from; None where the system has none to give."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "inotify_init1"):
        return None
    watch: int = library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if watch < 0:
        # A user may have 128 of them by default.
        return None
    if library.inotify_add_watch(watch, os.fsencode(path), _OPENED | _REPLACED) < 0:
        os.close(watch)
        return None
    return watch


def _read_events(events: bytes) -> Iterator[tuple[int, ...]]:
    """Read events of a watched file, which have no name after them."""
    return _EVENT.iter_unpack(events)
