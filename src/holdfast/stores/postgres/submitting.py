"""Submit on PostgreSQL: one statement without keys, one short transaction with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg

from holdfast.lifecycle.job import Key, NewJob
from holdfast.stores.postgres.arrays import submit_arrays
from holdfast.stores.postgres.connections import Connection
from holdfast.stores.submitting import Holder, Plan

Sql: TypeAlias = dict[str, str]


async def insert_jobs(connection: Connection, sql: Sql, jobs: Sequence[NewJob]) -> int:
    """Insert jobs that hold their keys, and return the clock they were stamped with."""
    now: int = await connection.fetchval(sql["submit"], *submit_arrays(jobs))
    return now


async def known_ids(connection: Connection, sql: Sql, jobs: Sequence[NewJob]) -> set[UUID]:
    """Tell which of these jobs are there already: their first reply was lost."""
    rows = await connection.fetch(sql["known_ids"], [job.record.id for job in jobs])
    return {row[0] for row in rows}


async def take_keys(connection: Connection, sql: Sql, plan: Plan) -> None:
    """Take the keys of all jobs, and settle who holds those that were taken.

    A key that another transaction is just inserting makes this one wait for its end; the look at
    the holder is a statement of its own, so that it sees what that transaction committed.
    """
    wanted = plan.wanted()
    if not wanted:
        return
    taken = await connection.fetch(sql["submit_keys"], *_key_columns(wanted))
    plan.took({(row[0], row[1]) for row in taken})
    asked = plan.to_look_up()
    if asked:
        rows = await connection.fetch(sql["held_keys"], *_asked_columns(asked))
        plan.held({asked[row[0] - 1]: Holder(row[1], row[2]) for row in rows})
    losers = plan.losers()
    if losers:
        await connection.execute(sql["drop_keys"], losers)


def _key_columns(wanted: Sequence[tuple[str, Key, UUID]]) -> list[list[Any]]:
    rows = sorted(
        (tenant, key.kind, key.key, id_.bytes, id_, key.digest) for tenant, key, id_ in wanted
    )
    return [
        [row[0] for row in rows],
        [row[1] for row in rows],
        [row[2] for row in rows],
        [row[4] for row in rows],
        [row[5] for row in rows],
    ]


def _asked_columns(asked: Sequence[tuple[str, int, str]]) -> list[list[Any]]:
    return [list(column) for column in zip(*asked, strict=True)]


DATA_ERRORS = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.exceptions.UntranslatableCharacterError,
    asyncpg.ProgramLimitExceededError,
    OverflowError,
    # A lone surrogate, which no encoder of ours or of the driver's writes.
    UnicodeEncodeError,
)
"""What one bad row causes: the batch is bisected and the culprit alone refused."""
