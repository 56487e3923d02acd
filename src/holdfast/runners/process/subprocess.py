"""A process that leads its own group; neither it nor its group outlives this one.

A pair of sockets, the tether, carries nothing: each end is set up so that the kernel kills the
group when the other end closes, however its owner died. Only Linux can do that; elsewhere the
process sees its channel close, and kills its group.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

_GROUP_SECONDS = 1.0
_POLL_SECONDS = 0.005


class Subprocess:
    """A running Python module with a channel to it. Make it on the loop's thread.

    On that thread because it counts as the parent: its end is the parent's death to the kernel.
    """

    def __init__(self, module: str) -> None:
        """Start the module; its arguments are our pid and its ends of channel and tether."""
        self._loop = asyncio.get_running_loop()
        self.channel, theirs = socket.socketpair()
        self._tether, their_tether = socket.socketpair()
        with theirs, their_tether:
            try:
                self._process = _start_python(module, theirs, their_tether)
            except BaseException:
                self.channel.close()
                self._tether.close()
                raise
            for end in (self._tether, their_tether):
                _kill_group_on_hangup(end, self._process.pid)
        self.channel.setblocking(False)
        self.pid = self._process.pid
        self.exit: asyncio.Future[int] = self._loop.create_future()
        self._watch()

    def kill(self) -> None:
        """Kill the process and what lives of its group."""
        # Until we reap it, no other process has its number.
        if not self.exit.done() and self._process.returncode is None:
            _kill_group(self.pid)

    async def ended(self) -> int:
        """Wait until it is reaped and nothing of its group runs; return its exit code."""
        code = await asyncio.shield(self.exit)
        limit = self._loop.time() + _GROUP_SECONDS
        # By polling: the kernel reports the end of a process only to its own parent.
        while _group_runs(self.pid) and self._loop.time() < limit:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        return code

    def _watch(self) -> None:
        try:
            self._descriptor = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            threading.Thread(target=self._wait, name=f"wait-{self.pid}", daemon=True).start()
        else:
            self._loop.add_reader(self._descriptor, self._readable)

    def _readable(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        _kill_group(self.pid)  # before it is reaped: until then the number is its own
        self._ended(self._process.wait())

    def _wait(self) -> None:
        code = self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed; nothing waits any more
            self._loop.call_soon_threadsafe(self._ended, code)

    def _ended(self, code: int) -> None:
        self._tether.close()
        # A stray copy of the process may hold the other end open; what was sent can still be read.
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RD)
        if not self.exit.done():
            self.exit.set_result(code)


def _start_python(
    module: str, channel: socket.socket, tether: socket.socket
) -> subprocess.Popen[bytes]:
    descriptors = (channel.fileno(), tether.fileno())
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, (os.getpid(), *descriptors))],
        stdin=subprocess.DEVNULL,
        pass_fds=descriptors,
        start_new_session=True,
    )


def _kill_group_on_hangup(end: socket.socket, group: int) -> None:
    if sys.platform == "linux":
        fcntl.fcntl(end, fcntl.F_SETOWN, -group)
        fcntl.fcntl(end, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(end, fcntl.F_SETFL, fcntl.fcntl(end, fcntl.F_GETFL) | os.O_ASYNC)


def _kill_group(group: int) -> None:
    # Some systems refuse a group of which only the dead are left, others do not find it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _group_runs(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    # Dead members stay in the group until their parent reaps them; they do not run.
    return any(_runs_in(stat, group) for stat in Path("/proc").glob("[0-9]*/stat"))


def _runs_in(stat: Path, group: int) -> bool:
    try:
        state, _, members_of = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
    except (OSError, ValueError):
        return False
    return int(members_of) == group and state not in ("Z", "X")
