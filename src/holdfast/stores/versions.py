"""Which versions of Holdfast may work on which schema.

A version knows the migrations up to a number. Each migration states which number a version must
know at least to continue beside it: a line `-- min_reader: N` in its file, else the migration's own
number, so that every older version must stop.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from holdfast.errors import SchemaMismatch
from holdfast.stores.sql_files import newer_schema

RECHECK_SECONDS = 5.0
"""How old what a process knows of the schema may be when it sweeps."""
_MIN_READER = re.compile(r"^-- min_reader: (\d+)$", re.MULTILINE)


def min_reader(number: int, text: str) -> int:
    """Return the number that a version must know to work beside this migration."""
    stated = _MIN_READER.search(text)
    return int(stated[1]) if stated else number


def find_mismatch(found: int | None, needed: int, known: int) -> SchemaMismatch | None:
    """Return why a version that knows `known` may not work on a schema, or None if it may.

    `found` is the last migration applied, `needed` the largest min_reader of those that the version
    does not know.
    """
    if found is None or found < known:
        return SchemaMismatch(
            f"the schema is at migration {found}, not {known}; run `holdfast migrate`"
        )
    return newer_schema(found, known) if found > known and needed > known else None


class Recheck:
    """Knows when the schema has to be looked at again: another process may have migrated it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()

    @property
    def due(self) -> bool:
        """Whether the last look is too old."""
        return self._clock() - self._at >= RECHECK_SECONDS

    def done(self) -> None:
        """Note a look."""
        self._at = self._clock()
