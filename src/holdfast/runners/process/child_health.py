"""The state of a handler's process after a job: its size, and what the handler left running."""

from __future__ import annotations

import asyncio
import resource
import threading
from pathlib import Path

_PAGE_BYTES = resource.getpagesize()


class RunningBefore:
    """What ran in this process before a handler was called."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._threads = set(threading.enumerate())
        self._tasks = _tasks(loop)

    def left_behind(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Return whether the handler left a thread, an asyncio task or a process running."""
        threads = set(threading.enumerate()) - self._threads
        return bool(threads or _tasks(loop) - self._tasks or _children())


def memory_bytes() -> int:
    """Return the memory that this process uses now; where that is unknown, its maximum."""
    if pages := _words(Path("/proc/self/statm")):
        return int(pages[1]) * _PAGE_BYTES
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _tasks(loop: asyncio.AbstractEventLoop | None) -> set[asyncio.Task[object]]:
    return set() if loop is None else asyncio.all_tasks(loop)


def _children() -> list[str]:
    """Return the live processes that this one started. Only Linux knows, and not every kernel."""
    listings = Path("/proc/self/task").glob("*/children")
    return [pid for listing in listings for pid in _words(listing) if _is_live(pid)]


def _is_live(pid: str) -> bool:
    # The state comes after the name, which is in parentheses and may hold anything.
    words = _words(Path(f"/proc/{pid}/stat"), after=")")
    return bool(words) and words[0] not in ("Z", "X")


def _words(path: Path, after: str = "") -> list[str]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return []
    return (text.rpartition(after)[2] if after else text).split()
