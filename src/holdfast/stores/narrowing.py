"""How a list of jobs is found: by which index, and whether each job has to be looked at."""

from __future__ import annotations

from holdfast.ports import Query

COMMON = "default"
"""The tenant and the queue that most jobs are of: no index holds them, a look finds them."""
_NARROW = ("parent_id", "workflow_id", "correlation_id", "error_code", "letter")
_NARROW_BUT_COMMON = ("tenant", "queue")
_PLACE = ("before", "limit", "look")


def narrowing(query: Query) -> str | None:
    """Name the filter that has an index; None where jobs are read from the newest on."""
    for name in _NARROW:
        if getattr(query, name) is not None:
            return name
    for name in _NARROW_BUT_COMMON:
        if getattr(query, name) not in (None, COMMON):
            return name
    return None


def looks(query: Query) -> bool:
    """Whether a bounded look ends before the page may be full: the index does not tell all."""
    narrow = narrowing(query)
    # Of a correlation there are few jobs, and its index knows them by their events.
    if query.look is None or narrow == "correlation_id":
        return False
    known = (*_PLACE, narrow)
    return any(
        getattr(query, name) not in (None, ())
        for name in query.__struct_fields__
        if name not in known
    )
