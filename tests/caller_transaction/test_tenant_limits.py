"""Limits of tenants hold inside a caller's transaction, too."""

from __future__ import annotations

import asyncpg
import pytest

from holdfast.ports.models import Limits
from holdfast.stores.outcomes import Enlisted
from holdfast.stores.postgres.caller_transaction import enlist_sql, enlist_text, read_outcomes
from holdfast.testing.factories import fresh, new_job
from holdfast.testing.store_actions import submit_one
from tests.stores.ledgers import postgres_store


@pytest.mark.parametrize("name", ["queue", "needs"])
async def test_one_name_too_many_is_refused_in_a_callers_transaction(
    postgres_url: str, name: str
) -> None:
    tenant = fresh("tenant")
    known, other = (
        {"queue": queue} if name == "queue" else {"needs": frozenset({queue})}
        for queue in ("known", "other")
    )
    async with postgres_store(postgres_url) as store:
        await store.set_limits(Limits(queues=1, needs=1))
        await submit_one(store, tenant=tenant, **known)
        connection = await asyncpg.connect(postgres_url)
        await connection.fetchval(enlist_sql("$1"), enlist_text([new_job(tenant=tenant, **known)]))
        with pytest.raises(asyncpg.ConfigurationLimitExceededError, match="too_many_names"):
            await connection.fetchval(
                enlist_sql("$1"), enlist_text([new_job(tenant=tenant, **other)])
            )
        await connection.close()


async def test_a_repeat_in_a_callers_transaction_brings_no_name(postgres_url: str) -> None:
    tenant = fresh("tenant")
    async with postgres_store(postgres_url) as store:
        await store.set_limits(Limits(queues=1))
        first = await submit_one(store, tenant=tenant, queue="known", dedupe_key="k")
        connection = await asyncpg.connect(postgres_url)
        again = new_job(tenant=tenant, queue="other", dedupe_key="k")
        answer = await connection.fetchval(enlist_sql("$1"), enlist_text([again]))
        await connection.close()
    [outcome] = read_outcomes([again], answer)
    assert outcome == Enlisted(id=first.id, job_id=first.public_id, created=False)
