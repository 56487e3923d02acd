"""How a handler's process is after a job: its size, and what the handler left running in it."""

from __future__ import annotations

import asyncio
import resource
import threading
from pathlib import Path

_PAGE_BYTES = resource.getpagesize()


class Traces:
    """What runs in this process, so that what a handler left behind can be told from the rest."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Look before the handler is called."""
        self._threads = set(threading.enumerate())
        self._tasks = _tasks(loop)

    def left_behind(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Tell after it ended whether a thread, an asyncio task or a process goes on."""
        threads = set(threading.enumerate()) - self._threads
        return bool(threads or _tasks(loop) - self._tasks or _children())


def memory_bytes() -> int:
    """The memory that this process occupies now; where nothing tells, the most it ever did."""
    if pages := _words(Path("/proc/self/statm")):
        return int(pages[1]) * _PAGE_BYTES
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _tasks(loop: asyncio.AbstractEventLoop | None) -> set[asyncio.Task[object]]:
    return set() if loop is None else asyncio.all_tasks(loop)


def _children() -> list[str]:
    """Processes that this one started and that live. Only Linux tells, and not every kernel."""
    listings = Path("/proc/self/task").glob("*/children")
    return [pid for listing in listings for pid in _words(listing) if _lives(pid)]


def _lives(pid: str) -> bool:
    # The state comes after the name, which is in parentheses and may hold anything.
    words = _words(Path(f"/proc/{pid}/stat"), after=")")
    return bool(words) and words[0] not in ("Z", "X")


def _words(path: Path, after: str = "") -> list[str]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    return (text.rpartition(after)[2] if after else text).split()
