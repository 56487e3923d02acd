"""What no job has any more is forgotten: sets of needs, and queues in the summaries."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.lifecycle.execution_policy import needs_key
from holdfast.services.reconciler import Reconciler
from holdfast.stores.postgres.session import WRITE_NEEDS_AGAIN_SECONDS, WrittenNeeds
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import fresh
from holdfast.testing.store_actions import claimed_ids, submit_one
from tests.stores.ledgers import Ledger, make_ledger
from tests.stores.raw import POSTGRES, SQLITE

GPU, FAST = frozenset({"gpu"}), frozenset({"gpu", "fast"})


@pytest.fixture(params=[SQLITE, POSTGRES])
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A ledger of its own."""
    return make_ledger(request, tmp_path_factory)


async def change(store: Any, statement: str) -> None:
    """Change the ledger behind the store's back."""
    if isinstance(store, SqliteStore):
        await store._session.perform(lambda turn: turn.connection.execute(statement))
    else:
        await store._session.fetch(statement)


async def sets(ledger: Ledger) -> set[int]:
    """Read which sets of needs are kept."""
    async with ledger.raw() as raw:
        rows = await raw.rows("SELECT id FROM needs WHERE id <> 0")
    return {row[0] for row in rows}


async def test_a_set_of_needs_that_no_job_has_is_forgotten(ledger: Ledger) -> None:
    unused = needs_key(frozenset({"unused"}))
    async with ledger.store() as store:
        await submit_one(store, needs=GPU)
        row = f"""({unused}, '["unused"]', 1)"""
        await change(store, f"INSERT INTO needs (id, body, used_at) VALUES {row}")
        await change(store, "UPDATE needs SET used_at = 1")
        assert await store.forget_unused() == 1
        assert await sets(ledger) == {needs_key(GPU)}
        # One that a submit has just named is kept: its job may be on its way.
        await submit_one(store, needs=FAST)
        assert await store.forget_unused() == 0
        assert len(await claimed_ids(store, capabilities=FAST)) == 2


async def test_a_sweep_forgets_sets_of_needs_that_no_job_has(ledger: Ledger) -> None:
    async with ledger.store() as store:
        row = f"""({needs_key(FAST)}, '["fast","gpu"]', 1)"""
        await change(store, f"INSERT INTO needs (id, body, used_at) VALUES {row}")
        await submit_one(store, needs=GPU)
        await Reconciler(store, "sweeper", jitter=lambda: 1.0).sweep()
    assert await sets(ledger) == {needs_key(GPU)}


async def test_a_set_that_was_forgotten_is_there_again_with_its_next_job(ledger: Ledger) -> None:
    async with ledger.store() as store:
        queue = fresh("queue")
        await submit_one(store, needs=GPU, queue=queue)
        if isinstance(store, PostgresStore):
            # As if the store had written it more than ten minutes ago.
            store._session.needs_written = WrittenNeeds()
        await change(store, "DELETE FROM needs WHERE id <> 0")
        await submit_one(store, needs=GPU, queue=queue)
        assert await sets(ledger) == {needs_key(GPU)}
        assert len(await claimed_ids(store, queue, capabilities=GPU)) == 2


def test_a_set_is_written_again_after_a_while() -> None:
    now = [1000.0]
    written = WrittenNeeds(lambda: now[0])
    assert not written.is_fresh(8)
    written.note([8])
    now[0] += WRITE_NEEDS_AGAIN_SECONDS - 1
    assert written.is_fresh(8)
    now[0] += 2
    assert not written.is_fresh(8)
