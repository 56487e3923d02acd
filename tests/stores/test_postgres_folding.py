"""Folding PostgreSQL's summaries: all that piled up, not one batch of it."""

from __future__ import annotations

import asyncpg

from holdfast.stores.postgres import upkeep as module
from holdfast.stores.postgres.store import PostgresStore


async def test_a_pile_of_deltas_is_folded_to_little_by_one_call(empty_postgres_url: str) -> None:
    raw = await asyncpg.connect(empty_postgres_url)
    await raw.execute(
        "INSERT INTO counts SELECT 't', 'q', 2, 1 FROM generate_series(1, $1)"
        .replace("$1", str(module.FOLD_BATCH * 3 + 7))
    )  # fmt: skip
    store = PostgresStore(empty_postgres_url)
    await store.open()
    try:
        await store.fold_counts()
        assert await raw.fetchval("SELECT count(*) FROM counts") == 1
        [count] = await store.counts()
        assert count.jobs == module.FOLD_BATCH * 3 + 7
    finally:
        await store.close()
        await raw.execute("DELETE FROM counts")
        await raw.close()
