"""What a worker asks in each of its rounds costs by what it holds, not by what it has done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from bench.contenders import OWNER, StoreContender, new_job
from holdfast.ports import Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.wiring import opened, read_address
from tests.budgets.file import counting_disk, watch
from tests.budgets.server import Server
from tests.support.postgres import PostgresCluster

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
