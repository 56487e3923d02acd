"""The host's lock: of all workers on a host, one at a time runs commands and recovers boxes.

Its holder knows that the worker which held it before is dead or has let go: the kernel frees
a lock with the process that took it, and only then. A file can be removed or replaced while it is
locked, so a socket with a name of the kernel's own (Linux) is bound beside it.
"""

from __future__ import annotations

import fcntl
import os
import socket
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from holdfast.runners.command.files import make_passable

LOCK_FILE = "host.lock"
REMOTE_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})
"""Where a lock may be lost or shared though its holder lives."""


def find_host_name() -> str:
    """Return a name for this host: its host name and a mark of the machine's own.

    Two machines may bear one host name; a machine keeps its name across restarts and reboots.
    """
    machine = ""
    with suppress(OSError):
        machine = Path("/etc/machine-id").read_text("ascii").strip()
    return f"{socket.gethostname()[:80]}-{sha256(machine.encode()).hexdigest()[:8]}"


class HostLock:
    """A lock on a file that only one process of this host can hold."""

    def __init__(self, root: Path, identity: str = "") -> None:
        """Use the directory of one store's commands on this host.

        `identity` is what the holder acts on, such as the host's name and the store: two workers
        with different directories must not both hold its lock. By default it is the directory.
        """
        self._path = root / LOCK_FILE
        self._identity = identity
        self._file: int | None = None
        self._socket: socket.socket | None = None

    @property
    def held(self) -> bool:
        """Whether this process holds it."""
        return self._file is not None

    def take(self) -> str | None:
        """Take the lock; return why it cannot be had, None if this process holds it now.

        If the file was removed or replaced while it was held, the new one is locked as well. The
        socket stays bound meanwhile: no other worker can come in between.
        """
        if self._file is not None and _is_same_file(self._file, self._path):
            return None
        try:
            make_passable(self._path.parent)
            if (kind := filesystem_of(self._path.parent)) in REMOTE_FILESYSTEMS:
                return f"{self._path.parent} is on {kind}, whose locks are not to be trusted"
            # Not inherited: a program that a worker starts must not keep the host locked.
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            return f"{self._path} cannot be opened: {error.strerror}"
        if (reason := self._lock(file)) is not None:
            os.close(file)
            return reason
        if self._file is not None:
            os.close(self._file)
        self._file = file
        return None

    def _lock(self, file: int) -> str | None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "another worker of this host runs commands"
        except OSError as error:
            return f"{self._path} cannot be locked: {error.strerror}"
        if not _is_same_file(file, self._path):
            return f"{self._path} was replaced while it was being locked"
        return None if self._socket is not None else self._bind()

    def _bind(self) -> str | None:
        """Bind the socket of this lock, whatever becomes of the file."""
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = sha256((self._identity or str(self._path.resolve())).encode()).hexdigest()
        try:
            bound.bind(f"\0holdfast-host-{name}")
        except OSError:
            bound.close()
            return (
                "another worker of this host runs commands; its lock file was removed, or is in "
                "another directory"
            )
        self._socket = bound
        return None

    def release(self) -> None:
        """Let another worker take it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _is_same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except OSError:
        return False


def filesystem_of(path: Path) -> str:
    """Return the type of the file system that a path is on."""
    best, kind = -1, ""
    resolved = path.resolve()
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, place, found, *_ = line.split(" ")
            mounted = Path(place.replace("\\040", " "))
            if resolved.is_relative_to(mounted) and len(mounted.parts) >= best:
                best, kind = len(mounted.parts), found
    return kind
