"""Anchors: what a seal without a key cannot show, and the comparison with an anchor does."""

from __future__ import annotations

from uuid import UUID

import pytest

from holdfast.errors import BadData
from holdfast.flow.purge import PurgeTerms, purge_all
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import State
from holdfast.maintenance.anchor import Anchored, list_anchors, read_anchors, write_anchor
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.ports.store import Store
from holdfast.testing.factories import JANITOR, owner_of
from holdfast.testing.store_actions import do, job_in, running_job, submit_one
from tests.stores.damage import vandal
from tests.stores.ledgers import Ledger, make_ledger
from tests.stores.raw import ENGINES


@pytest.fixture(params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return make_ledger(request, tmp_path_factory)


async def _anchored(store: Store) -> list[str]:
    return [write_anchor(one) async for one in list_anchors(store)]


async def _problems(store: Store, lines: list[str]) -> list[LedgerProblem]:
    found: list[LedgerProblem] = []
    await verify(store, on_problem=found.append, anchored=read_anchors(lines))
    return found


async def _sealed(store: Store) -> tuple[Job, Job]:
    """Two jobs whose events are sealed: one that succeeded, one that waits."""
    await store.set_sealing(True)
    return await job_in(store, State.SUCCEEDED, body=b"1"), await submit_one(store)


async def test_a_ledger_that_went_on_agrees_with_its_anchor(ledger: Ledger) -> None:
    async with ledger.store() as store:
        await _sealed(store)
        running = await running_job(store)
        lines = await _anchored(store)
        assert len(lines) == 3
        await do(store, running, c.Complete(actor=owner_of(running), body=b"1"))
        await submit_one(store)
        assert await _problems(store, lines) == []


async def test_a_history_that_was_cut_off_is_found(ledger: Ledger) -> None:
    async with ledger.store() as store, vandal(ledger) as hand:
        job, _ = await _sealed(store)
        lines = await _anchored(store)
        await hand.rows("DELETE FROM events WHERE id = $1 AND rev = $2", job.id, job.rev)
        texts = [one.text for one in await _problems(store, lines) if one.id == job.id]
        assert [text for text in texts if f"anchored at rev {job.rev}" in text]


async def test_a_job_that_was_removed_whole_is_found(ledger: Ledger) -> None:
    async with ledger.store() as store, vandal(ledger) as hand:
        first, last = await _sealed(store)
        lines = await _anchored(store)
        for job in (first, last):
            await hand.rows("DELETE FROM jobs WHERE id = $1", job.id)
            await hand.rows("DELETE FROM events WHERE id = $1", job.id)
        texts = {one.id: one.text for one in await _problems(store, lines) if one.id}
        assert set(texts) == {first.id, last.id}
        assert all("neither in the ledger nor was it purged" in text for text in texts.values())


async def test_a_chain_that_was_made_anew_is_found(ledger: Ledger) -> None:
    async with ledger.store() as store, vandal(ledger) as hand:
        job, _ = await _sealed(store)
        lines = await _anchored(store)
        await hand.rows("UPDATE events SET seal = $2 WHERE id = $1", job.id, b"x" * 32)
        texts = [one.text for one in await _problems(store, lines) if one.id == job.id]
        assert [text for text in texts if "its history was changed" in text]


async def test_a_purge_is_no_problem(ledger: Ledger) -> None:
    async with ledger.store() as store:
        job, _ = await _sealed(store)
        lines = await _anchored(store)
        await purge_all(store, JANITOR, PurgeTerms(succeeded=0))
        await submit_one(store)
        await purge_all(store, JANITOR, PurgeTerms(succeeded=0))
        assert await store.get([job.id]) == [None]
        assert await _problems(store, lines) == []


def test_an_anchor_that_cannot_be_read_is_refused() -> None:
    one = Anchored(UUID(int=2), 1, "00")
    for lines in (["nonsense"], [write_anchor(one), write_anchor(one)]):
        with pytest.raises(BadData, match="anchor"):
            list(read_anchors(lines))
