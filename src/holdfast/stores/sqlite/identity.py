"""Whether the files of an open database are still the ones that its path names.

A file that was removed or replaced can be written for as long as it is open, and is gone at the
end: no error of SQLite's says so.
"""

from __future__ import annotations

import os

from holdfast.errors import StoreReplaced
from holdfast.stores.sqlite.connections import Place

SUFFIXES = ("", "-wal", "-shm")
"""The database, its log and the log's index: a commit that any of them misses is lost."""


class FileIdentity:
    """The files of a database as they were when it was opened."""

    def __init__(self, place: Place) -> None:
        """Remember the files that are there; a place without a file of its own has none."""
        names = () if place.in_memory else tuple(place.path + suffix for suffix in SUFFIXES)
        self._files = {name: found for name in names if (found := _find(name)) is not None}

    def check(self) -> None:
        """Raise StoreReplaced unless each file is still the one that was opened."""
        for name, opened in self._files.items():
            found = _find(name)
            if found != opened:
                raise StoreReplaced(
                    f"the SQLite file {name} was {'removed' if found is None else 'replaced'} "
                    "while it was open; what is written to it now would be lost: stop every "
                    "process that has it open, put the right file in place, and start them again"
                )


def _find(name: str) -> tuple[int, int] | None:
    try:
        status = os.stat(name)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
