"""Processes of a box by their numbers: whether one is alive, its end in the loop's selector."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path


class ProcessHandle:
    """One process, whatever becomes of its number. Use it as a context manager."""

    def __init__(self, descriptor: int) -> None:
        """Keep a pidfd, and close it at the end."""
        self.descriptor = descriptor

    def __enter__(self) -> ProcessHandle:
        """Return it."""
        return self

    def __exit__(self, *error: object) -> None:
        """Let go of it."""
        os.close(self.descriptor)

    def send(self, number: signal.Signals) -> None:
        """Send a signal; one that has ended is not an error."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, number)


def open_process(pid: int, cgroup: str) -> ProcessHandle | None:
    """Return a process if it is alive and below a control group; None if it is not.

    In this order: the number cannot be reused between the check and what is done with the handle.
    """
    if pid <= 0:
        return None
    try:
        handle = ProcessHandle(os.pidfd_open(pid))
    except OSError:
        return None
    if is_below(pid, cgroup):
        return handle
    with handle:
        return None


def is_below(pid: int, cgroup: str) -> bool:
    """Return whether a live process is below a control group, in any hierarchy."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX" and any(
        line.split(":", 2)[2].startswith(f"{cgroup}/") for line in groups
    )


def command_name(pid: int) -> str | None:
    """Return what a process is called; None if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


def is_waiting_init(pid: int) -> bool:
    """Return whether a process is a runtime's own, which has not become the command yet."""
    return (command_name(pid) or "").startswith("runc:[")


def read_pid(file: Path) -> int:
    """Return the number in a pid file; 0 if there is none."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return 0


async def wait_for_first_end(processes: Sequence[ProcessHandle]) -> None:
    """Wait until one of the processes has ended. Costs no process and no thread."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def note() -> None:
        if not ended.done():
            ended.set_result(None)

    with ExitStack() as stack:
        for process in processes:
            loop.add_reader(process.descriptor, note)
            stack.callback(loop.remove_reader, process.descriptor)
        await ended
