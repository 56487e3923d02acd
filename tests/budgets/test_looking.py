"""What a worker asks in each of its rounds costs by what it holds, not by what it has done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.contenders import OWNER, QUEUE, StoreContender, new_job
from bench.soak_load import Pin
from holdfast.ids import mint_request
from holdfast.ports.models import ClaimRequest
from holdfast.ports.store import Store
from holdfast.stores.postgres import claim_start
from holdfast.stores.postgres.migrate import migrate
from holdfast.wiring import opened, read_address
from tests.budgets.file import counting_disk, watch
from tests.budgets.server import Server
from tests.support.postgres import PostgresCluster, database_of
from tests.support.waiting import wait_until

DONE = 500
FEW = 20


async def _work_and_look(store: Store) -> None:
    """Finish jobs in an owner's name, and let it see that it holds none of them any more."""
    contender = StoreContender(store)
    await contender.submit([new_job() for _ in range(DONE)])
    for _ in range(DONE // 100):
        await contender.cycle(100)
    assert await store.owned(OWNER) == []


async def _look(store: Store) -> None:
    for _ in range(FEW):
        assert await store.owned(OWNER) == []


def on(url: str, work: Callable[[Store], object]) -> Callable[[], None]:
    """Open a store for some work."""

    async def main() -> None:
        async with opened(read_address(url)) as store:
            await work(store)  # type: ignore[misc]  # a coroutine function

    return lambda: asyncio.run(main())


def test_an_owner_does_not_look_twice_at_what_it_has_finished(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    asyncio.run(migrate(postgres_url))
    on(postgres_url, _work_and_look)()
    seen = Server(postgres_cluster, postgres_url).watch_rows(on(postgres_url, _look))
    assert seen["jobs"].looks == 0


def test_an_owner_does_not_look_twice_at_what_it_has_finished_on_sqlite(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    on(path, _work_and_look)()
    with counting_disk() as disk:
        seen = watch(disk, on(path, _look))
    assert seen.calls("The claims of an owner") == FEW
    assert seen.calls("if that owner holds it") == 0


async def _work_and_claim_in_vain(store: Store) -> None:
    contender = StoreContender(store)
    for _ in range(DONE // 25):
        await contender.submit([new_job() for _ in range(25)])
        await contender.cycle(25)
    for _ in range(CLAIMS):
        request = ClaimRequest(request_id=mint_request(), owner=OWNER, queues=(QUEUE,), limit=9)
        assert await store.claim(request) == []


CLAIMS = 100
READ = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'jobs_claim'"
OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = '{}'"


async def test_claims_do_not_read_again_and_again_what_a_pinned_snapshot_keeps(
    postgres_cluster: PostgresCluster, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_start, "CHEAP_SECONDS", -1.0)
    monkeypatch.setattr(claim_start, "CHEAP_SECONDS_A_JOB", 0.0)
    monkeypatch.setattr(claim_start, "REST", 1e6)
    monkeypatch.setattr(claim_start, "SLACK", 0)
    await migrate(postgres_url)
    pin = Pin(postgres_url)
    await pin.hold()
    try:
        async with opened(read_address(postgres_url)) as store:
            await _work_and_claim_in_vain(store)
        name = database_of(postgres_url)
        # What a backend counted is complete only when it has ended; the pin's has not.
        await asyncio.to_thread(
            wait_until,
            lambda: int(postgres_cluster.sql(OTHERS.format(name))) == 1,
            "the store's backends to end",
        )
        read = int(postgres_cluster.sql(READ, name))
    finally:
        await pin.let_go()
    # 6,470; it was 100,670 when each claim began at the beginning.
    assert read < CLAIMS * DONE / 5
