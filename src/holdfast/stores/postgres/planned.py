"""Planned ends: the starts and successes of jobs alike, written together in one statement.

The statement is that of every commit. Where all jobs have one plan, what they share stands in it as
constants: what the commit would look up and compare for each job, the planner answers once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import asyncpg

from holdfast.ids import mint_request
from holdfast.lifecycle.plan import Plan, PlannedEnd
from holdfast.ports.models import PlannedOutcome
from holdfast.stores.postgres.commit import LockedRows, commit_sql
from holdfast.stores.postgres.pool import ConnectionUse
from holdfast.stores.postgres.rows import plan_shape, planned_arrays
from holdfast.stores.postgres.session import SQL, PostgresSession
from holdfast.stores.postgres.submit import DATA_ERRORS
from holdfast.stores.sql_files import put_in, without_comment

_IN_THE_WAY = (*DATA_ERRORS, asyncpg.LockNotAvailableError)


async def commit_planned(
    session: PostgresSession, ends: Sequence[PlannedEnd], locked_rows: LockedRows
) -> PlannedOutcome:
    """Write the planned ends whose revisions and leases still hold.

    All are left to `commit` where one of them is refused, or is known to be locked.
    """
    if locked_rows.has_any(ends):
        return PlannedOutcome(0, [end.id for end in ends])
    # In this order every batch locks its rows.
    sql, arguments = _write_statement(sorted(ends, key=_id_bytes))
    try:
        [[now, hits]] = await session.run(
            lambda session, tries: session.fetch(sql, *arguments),
            keep=_IN_THE_WAY,
            use=ConnectionUse.LOCKS,
        )
    except _IN_THE_WAY:
        return PlannedOutcome(0, [end.id for end in ends])
    if hits is None:
        return PlannedOutcome(now)
    return PlannedOutcome(now, {end.id for end in ends} - set(hits))


def _id_bytes(end: PlannedEnd) -> bytes:
    return end.id.bytes


def _write_statement(ends: Sequence[PlannedEnd]) -> tuple[str, list[Any]]:
    """Choose the statement for these ends, and lay out its arguments."""
    plan, request_id = ends[0].plan, mint_request()
    if plan.start.event.beats or any(end.plan is not plan for end in ends):
        return commit_sql(rest=False, beats=False), planned_arrays(ends, request_id)
    events = [
        (event.type.code, change.record.state.code, event.to_state.code)
        for change in (plan.start, plan.success)
        for event in (change.event,)
    ]
    return _alike_sql(plan_shape(plan).flags, *events), _lay_out_alike(plan, ends, request_id)


def _lay_out_alike(plan: Plan, ends: Sequence[PlannedEnd], request_id: str) -> list[Any]:
    before = plan.start.record
    return [
        [end.id for end in ends],
        [-end.ago for end in ends],
        [end.body.decode() for end in ends],
        [end.digest for end in ends],
        before.rev,
        before.attempt,
        plan.granted,
        plan.start.event.actor,
        request_id,
        before.tenant,
        before.queue,
    ]


@cache
def _alike_sql(flags: int, start: tuple[int, int, int], success: tuple[int, int, int]) -> str:
    """Write the commit of jobs that share a plan; an event is its type and its two states."""

    def part(name: str) -> str:
        return without_comment(SQL[name])

    parts = {
        "rows": part("planned_rows"),
        "returned": part("planned_returned"),
        "events": part("planned_events"),
        "counts": part("planned_counts"),
        "run_at": "j.run_at",
        "held_by": "j.held_by",
        **dict.fromkeys(("beats", "marks", "signals", "rest"), ""),
    }
    shape = {
        "shape.state": f"{success[2]}::smallint",
        "shape.expected": "$5::int",
        "shape.events": "2",
        "shape.flags": str(flags),
        "shape.owned": "false",
        **dict.fromkeys(("shape.beats", "shape.lease", "shape.timeout"), "0"),
    }
    codes = {
        f"{name}.{column}": f"{code}::smallint"
        for name, event in (("start", start), ("success", success))
        for column, code in zip(("type", "from_state", "to_state"), event, strict=True)
    }
    # The planner drops what is NULL.
    return put_in(SQL["commit"], parts | shape | codes).replace("d.rest", "NULL::jsonb")
