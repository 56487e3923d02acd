"""Claim on PostgreSQL: the ranges of a worker, merged; or, with bounded resources, a first fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from holdfast.lifecycle.policy import needs_key
from holdfast.lifecycle.states import Priority
from holdfast.ports import ClaimRequest
from holdfast.stores.fit import fit
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.ranges import Range
from holdfast.stores.text import blocks

PACKAGE = "holdfast.stores.postgres"
WIDTHS = (3, 6, 12, 24, 48, 96, 192)
"""Numbers of ranges that have a prepared statement; fewer ranges are padded."""
NOWHERE = -(2**62)
CURSOR_AFTER = 4
"""Full claims in a row after which a range is entered where the last one ended."""
CURSOR_FOR = 16
"""Claims by cursor after which all is looked at from the beginning again."""

Arm: TypeAlias = tuple[str, int, int]


@cache
def claim_sql(width: int) -> str:
    """Write the claim for so many ranges."""
    sql = blocks(PACKAGE)
    text = sql["claim_ranges"]
    for word, block in (
        (":firsts", "claim_first"),
        (":heads", "claim_head"),
        (":arms", "claim_arm"),
    ):
        arms = " UNION ALL ".join(
            f"({sql[block].replace(':arm', str(arm))}\n)" for arm in range(1, width + 1)
        )
        text = text.replace(word, arms)
    return sql["claim"].replace(":picked", text)


@cache
def claim_ids_sql() -> str:
    """Write the claim of rows that are locked already."""
    sql = blocks(PACKAGE)
    return sql["claim"].replace(":picked", sql["claim_ids"])


class Cursors:
    """Where to enter each range, against dead index entries that a pinned xmin keeps.

    Only a hint: entered from the beginning when a claim comes back short, and every so often.
    """

    def __init__(self) -> None:
        """Begin at the beginning."""
        self._at: dict[Arm, int] = {}
        self._full = 0

    def starts(self, ranges: Sequence[Range]) -> list[int]:
        """Tell where to enter these ranges now."""
        if self._full < CURSOR_AFTER:
            return [NOWHERE] * len(ranges)
        return [self._at.get(one[:3], NOWHERE) for one in ranges]

    def learn(self, jobs: Sequence[Any], limit: int, ageing: Mapping[Priority, int]) -> None:
        """Hear what a claim brought."""
        self._full = self._full + 1 if len(jobs) == limit and limit > 1 else 0
        if self._full > CURSOR_AFTER + CURSOR_FOR or not self._full:
            self._full = 0
            self._at.clear()
            return
        for claimed in jobs:
            job = claimed.job
            arm = (job.queue, needs_key(job.needs), job.priority.code)
            order = (job.run_at or 0) + ageing[job.priority]
            self._at[arm] = max(self._at.get(arm, NOWHERE), order)


def range_arrays(ranges: Sequence[Range], starts: Sequence[int], width: int) -> list[list[Any]]:
    """Lay out the ranges; the padding names no queue and so matches nothing."""
    pad = width - len(ranges)
    return [
        [one.queue for one in ranges] + [None] * pad,
        [one.needs for one in ranges] + [0] * pad,
        [one.priority for one in ranges] + [0] * pad,
        [one.ageing for one in ranges] + [0] * pad,
        [*starts, *[0] * pad],
    ]


async def claim_ranges(
    connection: Connection, request: ClaimRequest, ranges: Sequence[Range], starts: Sequence[int]
) -> list[Any]:
    """Claim from ranges in one statement."""
    width = next(width for width in WIDTHS if width >= len(ranges))
    rows: list[Any] = await connection.fetch(
        claim_sql(width),
        request.request_id,
        request.limit,
        request.owner,
        *range_arrays(ranges, starts, width),
    )
    return rows


async def claim_fitting(
    connection: Connection, request: ClaimRequest, ranges: Sequence[Range]
) -> list[Any]:
    """Lock a bounded look-ahead of candidates and claim those that fit, in their order."""
    assert request.capacity is not None
    sql = blocks(PACKAGE)
    async with connection.transaction():
        candidates: list[Any] = []
        for one in ranges:
            candidates += await connection.fetch(
                sql["fitting"], one.queue, one.needs, one.priority, one.ageing, request.lookahead
            )
        candidates.sort(key=lambda row: (row[0], row[1].bytes))
        nearest = candidates[: request.lookahead]
        chosen = fit([(row[2], row[3]) for row in nearest], request.capacity, request.limit)
        if not chosen:
            return []
        rows: list[Any] = await connection.fetch(
            claim_ids_sql(),
            request.request_id,
            request.limit,
            request.owner,
            [nearest[i][1] for i in chosen],
        )
        return rows
