"""Which calls of Podman still work on a box, also those of a worker that died.

Each call that makes or starts a box inherits an open, locked file of that box, and so do the
monitor and the processes that it starts. While the lock is held, something of them lives; which
processes have the file open shows what. A file stays until its box is removed: its name is the
record that there may be something to clean.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.runners.container.pid_wait import ProcessHandle, command_name, is_waiting_init


class Traces:
    """The files of one host's and store's boxes. Reading them may take milliseconds."""

    def __init__(self, directory: Path) -> None:
        """Keep them in a directory of their own."""
        self._directory = directory

    @contextmanager
    def hold(self, name: str) -> Iterator[int]:
        """Give a descriptor for a call to inherit, which holds the lock as long as it lives."""
        self._directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield descriptor
        finally:
            os.close(descriptor)

    def names(self) -> set[str]:
        """Return the names of all boxes that have a file."""
        with suppress(FileNotFoundError):
            return {each.name for each in self._directory.iterdir()}
        return set()

    def has_call(self, name: str) -> bool:
        """Return whether a call of Podman or of its runtime is still working on a box."""
        return any(not _is_monitor(pid) for pid in self._holders(name))

    def kill_monitors(self, name: str) -> None:
        """Kill what a cut-off start has left outside the control groups of its box."""
        for pid in self._holders(name):
            with suppress(OSError), ProcessHandle(os.pidfd_open(pid)) as process:
                if _is_monitor(pid) and pid in self._holders(name):
                    process.send(signal.SIGKILL)

    def remove(self, name: str) -> None:
        """Remove the file of a box."""
        (self._directory / name).unlink(missing_ok=True)

    def _holders(self, name: str) -> set[int]:
        path = self._directory / name
        return _find_holders(path.resolve()) if _is_locked(path) else set()


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _find_holders(path: Path) -> set[int]:
    """Return the processes that have a file open, without our own."""
    found = set()
    for directory in Path("/proc").glob("[0-9]*/fd"):
        pid = int(directory.parts[2])
        # A process, or one of its descriptors, may vanish while it is read.
        with suppress(OSError):
            if pid != os.getpid() and any(_is_open_at(each, path) for each in directory.iterdir()):
                found.add(pid)
    return found


def _is_open_at(descriptor: Path, path: Path) -> bool:
    try:
        return os.readlink(descriptor) == str(path)
    except OSError:
        return False


def _is_monitor(pid: int) -> bool:
    """Return whether a process starts no box: a monitor, or an init that waits for its start.

    A call of the runtime does, also if the Podman that made it is dead.
    """
    name = command_name(pid)
    return name is None or name.startswith("conmon") or is_waiting_init(pid)
