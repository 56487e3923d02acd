"""How a list of jobs is found: by which index, and whether each job has to be looked at.

A filter that has an index narrows the list; the statement `find` checks all the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from holdfast.lifecycle.states import Coded
from holdfast.ports.models import Query
from holdfast.stores.cursors import HIGHEST, LOWEST, NEVER
from holdfast.stores.sql_files import without_comment

COMMON = "default"
"""The tenant and the queue of most jobs: no index holds them, the newest jobs are looked at."""
_NARROW = ("parent_id", "workflow_id", "correlation_id", "error_code", "letter")
_NARROW_BUT_COMMON = ("tenant", "queue")
_PLACE = ("before", "limit", "look")
_PARAMETER = re.compile(r"([$?])\d+")


def choose_narrowing_filter(query: Query) -> str | None:
    """Name the filter that has an index; None where jobs are read from the newest on."""
    for name in _NARROW:
        if getattr(query, name) is not None:
            return name
    for name in _NARROW_BUT_COMMON:
        if getattr(query, name) not in (None, COMMON):
            return name
    return None


def may_end_early(query: Query) -> bool:
    """Return whether a bounded look may end before the page is full: no index has all filters."""
    narrow = choose_narrowing_filter(query)
    # A correlation has few jobs, and its index knows them by their events.
    if query.look is None or narrow == "correlation_id":
        return False
    known = (*_PLACE, narrow)
    return any(
        getattr(query, name) not in (None, ())
        for name in query.__struct_fields__
        if name not in known
    )


def find_sql(sql: Mapping[str, str], query: Query) -> str:
    """Write the statement that reads a page."""
    narrow = choose_narrowing_filter(query)
    return _narrowed(sql["find"], sql[f"narrow_{narrow or 'none'}"], narrow)


def find_parameters(query: Query, bound: UUID | None) -> list[Any]:
    """Return the parameters of that statement; `bound` is the last job that is looked at."""
    return [
        query.tenant,
        [state.code for state in query.states] or None,
        query.queue,
        query.task,
        query.parent_id,
        query.workflow_id,
        query.correlation_id,
        query.error_code,
        query.letter and query.letter.code,
        query.created_from or 0,
        NEVER if query.created_until is None else query.created_until,
        query.before or HIGHEST,
        # One more than the page holds shows whether there is a next page.
        query.limit + 1,
        bound or LOWEST,
        msgspec.json.encode(dict(query.labels)).decode() if query.labels else None,
    ]


def bound_sql(sql: Mapping[str, str], query: Query) -> str:
    """Write the statement that finds the last job that is looked at."""
    narrow = choose_narrowing_filter(query)
    # It has one parameter to narrow by, whichever that is in `find`.
    text = _PARAMETER.sub(r"\g<1>1", sql[f"narrow_{narrow or 'nothing'}"])
    return _narrowed(sql["look_bound"], text, narrow)


def bound_parameters(query: Query) -> list[Any]:
    """Return the parameters of that statement."""
    narrow = choose_narrowing_filter(query)
    value = None if narrow is None else getattr(query, narrow)
    return [value.code if isinstance(value, Coded) else value, query.before or HIGHEST, query.look]


def _narrowed(text: str, narrow_text: str, narrow: str | None) -> str:
    # Ordered by what is a single value: whatever the planner expects, only its index has both.
    order = f"j.{narrow} DESC, " if narrow in _NARROW_BUT_COMMON else ""
    return text.replace(":narrow", without_comment(narrow_text)).replace(":order ", order)
