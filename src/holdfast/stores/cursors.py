"""Cursors of the tail as texts, which sort as the tail does."""

from __future__ import annotations

import re
from uuid import UUID

from holdfast.errors import BadData

LOWEST, HIGHEST = UUID(int=0), UUID(int=2**128 - 1)
NEVER = 2**62
"""A time, or a number, behind all others."""
LAST_REV = 2**31 - 1
"""The highest revision that a row can have."""
_POSITION = re.compile(r"\d{19}")
_CURSOR = re.compile(r"(\d{19})/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/(\d{10})")


def write_position(position: int) -> str:
    """Write a position on SQLite, where commits come one after the other."""
    return f"{position:019d}"


def read_position(cursor: str | None) -> int:
    """Read a position; the start if there is none."""
    if cursor is None:
        return 0
    if not _POSITION.fullmatch(cursor) or int(cursor) >= 2**63:
        raise _bad(cursor)
    return int(cursor)


def write_cursor(xid: int, id: UUID, rev: int) -> str:
    """Write a place on PostgreSQL: a transaction, and an event of it."""
    return f"{xid:019d}/{id}/{rev:010d}"


def read_cursor(cursor: str | None) -> tuple[int, UUID, int]:
    """Read a place; the start if there is none."""
    if cursor is None:
        return 0, LOWEST, 0
    found = _CURSOR.fullmatch(cursor)
    if found is None or int(found[1]) >= 2**63 or int(found[3]) >= 2**31:
        raise _bad(cursor)
    return int(found[1]), UUID(found[2]), int(found[3])


def _bad(cursor: str) -> BadData:
    return BadData(f"not a cursor of this store: {cursor[:100]!r}")
