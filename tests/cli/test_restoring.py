"""Backup beside live work, restore, `epoch bump`: as docs/operate.md describes it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.ports.models import Committed, Lost, Outcome
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import change, commit_one, running_job
from holdfast.wiring import migrate, read_address
from tests.cli.commands import answered, on
from tests.support.postgres import PostgresCluster, database_of


async def held_job(store: Store) -> Job:
    """A job that runs at the time of the backup."""
    return await running_job(store)


def reported(url: str, job: Job) -> Outcome:
    """Let its owner report its end."""
    end = change(job, c.Complete(actor=owner_of(job)))
    return on(url, lambda store: commit_one(store, end))


def check_restored(url: str, job: Job) -> None:
    """Do as the page describes, and check that the old owner is refused."""
    assert answered(url, "epoch", "bump") == {"epoch": 2}
    assert answered(url, "verify")["problems"] == []
    assert isinstance(reported(url, job), Lost)
    assert answered(url, "show", str(job.id))["job"]["state"] == "running"


def test_a_sqlite_file_is_copied_beside_live_work(tmp_path: Path) -> None:
    live, backup = str(tmp_path / "jobs.db"), tmp_path / "backup.db"
    asyncio.run(migrate(read_address(live)))

    async def copy_beside(store: Store) -> Job:
        job = await held_job(store)
        copying = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "apsw", live, f".backup {backup}"
        )
        assert await copying.wait() == 0
        return job

    job = on(live, copy_beside)
    check_restored(str(backup), job)
    # The one that was not restored goes on.
    assert isinstance(reported(live, job), Committed)


def test_a_postgresql_database_is_dumped_beside_live_work(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    asyncio.run(migrate(read_address(postgres_url)))
    job = on(postgres_url, held_job)
    restored = postgres_cluster.create_database()
    try:
        dump: list[str | Path] = [postgres_cluster.binaries / "pg_dump", "--no-owner", postgres_url]
        dumped = subprocess.run(dump, check=True, capture_output=True)
        load = ["psql", "-q", "-v", "ON_ERROR_STOP=1", restored]
        subprocess.run(load, check=True, input=dumped.stdout, capture_output=True)
        assert database_of(restored) != database_of(postgres_url)
        check_restored(restored, job)
        assert isinstance(reported(postgres_url, job), Committed)
    finally:
        postgres_cluster.drop_database(restored)
