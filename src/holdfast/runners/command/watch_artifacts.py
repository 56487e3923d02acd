"""Watch what a running command leaves in /artifacts: a mounted directory has no quota of its own.

Cheap and approximate: the tree changes meanwhile. What counts is decided when it is collected.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from holdfast.runners.command.collect_artifacts import (
    DEFAULT_LIMITS,
    OPEN_DIRECTORY,
    ArtifactLimits,
    hold_open,
)

WATCH_SECONDS = 1.0
SHARE = 20
"""A look may take this part of the time: a slow disk is looked at less often."""
FACTOR = 2
"""How far beyond a limit a command may be before it is stopped: it may still remove files."""
BLOCK = 512


async def watch_artifacts(directory: Path, limits: ArtifactLimits = DEFAULT_LIMITS) -> str:
    """Wait until a directory holds more than twice what may be kept; return what is too much."""
    while True:
        started_at = time.monotonic()
        excess = await asyncio.to_thread(find_excess, directory, limits)
        if excess is not None:
            return excess
        took = time.monotonic() - started_at
        await asyncio.sleep(max(WATCH_SECONDS, SHARE * took))


def find_excess(directory: Path, limits: ArtifactLimits) -> str | None:
    """Return by what a directory holds more than twice what may be kept; None if it does not."""
    tally = _Tally(limits)
    # What cannot be opened, or is removed meanwhile, is looked at the next time.
    with suppress(OSError), hold_open(directory, OPEN_DIRECTORY) as root:
        return tally.add(root, 1)
    return None


class _Tally:
    """Counts what a tree takes of the disk; holes in files take nothing."""

    def __init__(self, limits: ArtifactLimits) -> None:
        self._limits = limits
        self._entries = 0
        self._files = 0
        self._bytes = 0
        self._linked: set[int] = set()
        """Files with several names: each is on the disk once."""

    def add(self, directory: int, depth: int) -> str | None:
        """Count what is in an open directory and below it, up to what is too much."""
        with os.scandir(directory) as entries:
            for entry in entries:
                excess = None
                with suppress(OSError):
                    excess = self._count(directory, entry, depth)
                if excess is not None:
                    return excess
        return None

    def _count(self, directory: int, entry: os.DirEntry[str], depth: int) -> str | None:
        self._entries += 1
        found = entry.stat(follow_symlinks=False)
        size = found.st_blocks * BLOCK
        if stat.S_ISREG(found.st_mode):
            self._files += 1
            if found.st_nlink > 1:
                size = 0 if found.st_ino in self._linked else size
                self._linked.add(found.st_ino)
        self._bytes += size
        excess = self._compare(size, depth)
        if excess is None and stat.S_ISDIR(found.st_mode):
            with hold_open(entry.name, OPEN_DIRECTORY, directory) as inner:
                return self.add(inner, depth + 1)
        return excess

    def _compare(self, size: int, depth: int) -> str | None:
        limits = self._limits
        measured = {
            "files": (self._files, limits.files),
            "entries": (self._entries, limits.entries),
            "directories in each other": (depth, limits.depth),
            "bytes in one file": (size, limits.file_bytes),
            "bytes in all": (self._bytes, limits.total_bytes),
        }
        for what, (count, limit) in measured.items():
            if count > FACTOR * limit:
                return f"more than {FACTOR * limit:,} {what} while it ran; the limit is {limit:,}"
        return None
