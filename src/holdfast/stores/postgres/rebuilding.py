"""Rebuild on PostgreSQL: the projection written anew, with the triggers set aside meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.lifecycle.job import Job, JobId
from holdfast.ports import KeyRow
from holdfast.stores.columns import JOB_COLUMNS, write_job
from holdfast.stores.postgres.connections import Connection

RECOUNT_SECONDS = 3600.0
"""How long all jobs may take to be counted: in one statement, so that the sums fit together."""


async def rebuild_rows(
    connection: Connection,
    sql: dict[str, str],
    all_jobs: Sequence[Job],
    all_keys: Sequence[tuple[JobId, KeyRow]],
) -> list[JobId]:
    """Replace the rows and keys of these jobs, in one transaction that locks everyone out.

    Returns those that have moved on since they were read; they are left as they are.
    """
    async with connection.transaction():
        await connection.execute(sql["rebuild_begin"])
        # Read under the lock: nobody writes an event without its row.
        last = dict(await connection.fetch(sql["last_revs"], [job.id for job in all_jobs]))
        moved = {job.id for job in all_jobs if last[job.id] != job.rev}
        jobs = [job for job in all_jobs if job.id not in moved]
        ids = [job.id for job in jobs]
        keys = [(id_, key) for id_, key in all_keys if id_ not in moved]
        await connection.execute(sql["rebuild_forget"], ids)
        await connection.execute(sql["drop_keys"], ids)
        await connection.execute(sql["remove_signals"], ids)
        rows = [_key_row(id_, key) for id_, key in keys]
        await connection.execute(sql["rebuild_keys"], *([row[n] for row in rows] for n in range(3)))
        await connection.copy_records_to_table(
            "jobs", records=[write_job(job) for job in jobs], columns=list(JOB_COLUMNS)
        )
        await connection.copy_records_to_table(
            "signals",
            records=[(job.id, one.rev, one.name) for job in jobs for one in job.signals],
            columns=["id", "rev", "name"],
        )
        await connection.copy_records_to_table(
            "keys",
            records=rows,
            columns=["tenant", "kind", "key", "id", "digest"],
        )
        await connection.execute(sql["add_claims"], [job.id for job in jobs if job.owner])
        await connection.execute(sql["rebuild_end"])
    return sorted(moved)


async def recount_jobs(connection: Connection, sql: dict[str, str]) -> None:
    """Count the summaries anew, however many jobs there are."""
    async with connection.transaction():
        # Who reads every row is best served by their order on the disk.
        # Nothing queues behind it, so it may wait for a lock as long as it may count.
        await connection.execute("SET LOCAL enable_seqscan = on; SET LOCAL lock_timeout = 0")
        await connection.execute(sql["recount"], timeout=RECOUNT_SECONDS)


def _key_row(id_: JobId, key: KeyRow) -> tuple[Any, ...]:
    return key.tenant, key.kind.code, key.key, id_, key.digest
