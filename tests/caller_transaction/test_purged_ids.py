"""The id of a purged job is never given again, inside a caller's transaction either."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast.lifecycle.record import Job, NewJob
from holdfast.ports.models import SubmitRefused
from holdfast.ports.store import Store
from holdfast.stores.postgres.caller_transaction import enlist_sql, enlist_text, read_outcomes
from holdfast.testing.contract.purge import cleaned_job
from holdfast.testing.factories import new_job
from tests.stores.ledgers import postgres_store


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[Store]:
    async with postgres_store(postgres_url) as store:
        yield store


async def purged_job(store: Store) -> Job:
    job = await cleaned_job(store)
    assert await store.purge([job.id], actor="ann") == [job.id]
    return job


async def test_a_job_id_that_is_the_id_of_a_purged_job_is_refused(
    postgres_url: str, store: Store
) -> None:
    gone = await purged_job(store)
    again = new_job(job_id=str(gone.id), body=b'"another"')
    connection = await asyncpg.connect(postgres_url)
    answer = await connection.fetchval(enlist_sql("$1"), enlist_text([again]))
    await connection.close()

    [outcome] = read_outcomes([again], answer)
    assert isinstance(outcome, SubmitRefused)
    assert (outcome.code, outcome.holder) == ("job_purged", gone.id)
    assert await store.get([again.record.id]) == [None]


async def test_the_internal_id_of_a_purged_job_is_refused(postgres_url: str, store: Store) -> None:
    gone = await purged_job(store)
    fresh = new_job()
    again = NewJob(record=replace(fresh.record, id=gone.id), event=replace(fresh.event, id=gone.id))
    connection = await asyncpg.connect(postgres_url)
    with pytest.raises(asyncpg.UniqueViolationError, match="purged"):
        await connection.fetchval(enlist_sql("$1"), enlist_text([again]))
    await connection.close()
