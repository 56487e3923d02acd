"""An address that names several PostgreSQL servers: whoever can be written to is found."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.errors import BadAddress, StoreUnavailable
from holdfast.stores.postgres.hosts import split_url
from holdfast.stores.postgres.migrate import migrate
from holdfast.stores.postgres.wakeup import WakeUp
from holdfast.testing.store_actions import all_jobs, submit_one
from holdfast.wiring import read_address
from tests.stores.ledgers import assert_proven, postgres_store
from tests.support.postgres import PostgresCluster, database_of
from tests.support.proxy import FaultProxy
from tests.support.waiting import wait_until


@pytest.fixture
def first(postgres_cluster: PostgresCluster) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", postgres_cluster.port) as proxy:
        yield proxy


@pytest.fixture
def second(postgres_cluster: PostgresCluster) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", postgres_cluster.port) as proxy:
        yield proxy


def both(first: FaultProxy, second: FaultProxy, url: str) -> str:
    """One address with both hosts, in this order."""
    hosts = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
    return f"postgresql://postgres@{hosts}/{database_of(url)}"


async def test_a_first_host_that_hangs_does_not_keep_the_store_from_the_second(
    first: FaultProxy, second: FaultProxy, postgres_url: str
) -> None:
    hung = first.freeze()
    async with postgres_store(both(first, second, postgres_url), attempt_seconds=1.0) as store:
        assert hung.bitten
        await submit_one(store)
        await assert_proven(store)


async def test_a_host_that_hangs_later_is_left_for_the_other(
    first: FaultProxy, second: FaultProxy, postgres_url: str
) -> None:
    url = both(first, second, postgres_url)
    async with postgres_store(url, attempt_seconds=1.0) as store:
        await submit_one(store)
        hung = first.freeze()
        await submit_one(store)
        assert hung.bitten
        assert len(await all_jobs(store)) == 2


async def test_the_host_that_last_worked_is_tried_first(
    first: FaultProxy, second: FaultProxy, postgres_url: str
) -> None:
    hung = first.freeze()
    async with postgres_store(both(first, second, postgres_url), attempt_seconds=1.0) as store:
        await store.clock()
        tried = hung.count
        # New connections go straight to the second host; the first is not asked again.
        second.cut()
        await asyncio.gather(*(store.clock() for _ in range(4)))
        assert hung.count == tried


async def test_all_hosts_are_named_when_none_can_be_reached(
    first: FaultProxy, second: FaultProxy, postgres_url: str
) -> None:
    url = both(first, second, postgres_url)
    async with postgres_store(url, deadline_seconds=0.2, attempt_seconds=0.5) as store:
        await store.clock()
        for proxy in (first, second):
            proxy.refuse()
            proxy.cut()
        with pytest.raises(StoreUnavailable, match=f"{first.port}.*{first.port}") as caught:
            await store.clock()
        assert str(second.port) in str(caught.value)


async def test_whoever_listens_reaches_the_second_host_too(
    first: FaultProxy, second: FaultProxy, postgres_url: str
) -> None:
    hung = first.freeze()
    wake = WakeUp(both(first, second, postgres_url), answer_seconds=1.0)
    try:
        listening = asyncio.create_task(wake.wait(["q"], 20.0, since=0))
        await asyncio.to_thread(_somebody_listens, second)
        assert hung.bitten
    finally:
        listening.cancel()
        await wake.close()


def _somebody_listens(proxy: FaultProxy) -> None:
    wait_until(lambda: proxy.connected > 0, "a connection to listen on")


@pytest.mark.req("E2")
async def test_a_primary_that_hangs_is_left_for_the_standby_that_was_promoted() -> None:
    with PostgresCluster({"fsync": "off"}) as primary:
        url = primary.create_database("ledger")
        await migrate(url)
        with primary.make_standby() as standby:
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            address = f"postgresql://postgres@{hosts}/ledger"
            async with postgres_store(address, attempt_seconds=2.0) as store:
                before = await submit_one(store)
                with primary.stopped():
                    await asyncio.to_thread(standby.promote)
                    after = await submit_one(store, request_id="after")
                    assert {job.id for job in await all_jobs(store)} == {before.id, after.id}
                    await assert_proven(store)


def test_every_way_to_name_several_hosts_is_split() -> None:
    assert split_url("postgresql://me:pw@a:1,b/jobs?x=y") == [
        "postgresql://me:pw@a:1/jobs?x=y",
        "postgresql://me:pw@b/jobs?x=y",
    ]
    assert split_url("postgresql:///jobs?host=a,b&port=1,2") == [
        "postgresql:///jobs?host=a&port=1",
        "postgresql:///jobs?host=b&port=2",
    ]
    assert split_url("postgresql:///jobs?host=/run/a,/run/b") == [
        "postgresql:///jobs?host=%2Frun%2Fa",
        "postgresql:///jobs?host=%2Frun%2Fb",
    ]
    assert split_url("postgresql:///jobs") == ["postgresql:///jobs"]


@pytest.mark.parametrize("wanted", ["standby", "read-only", "prefer-standby"])
def test_an_address_that_asks_for_a_standby_is_refused(wanted: str) -> None:
    with pytest.raises(BadAddress, match="primary or read-write"):
        read_address(f"postgresql://a,b/jobs?target_session_attrs={wanted}")


@pytest.mark.parametrize("wanted", ["any", "primary", "read-write"])
def test_an_address_may_say_which_server_it_wants(wanted: str) -> None:
    address = read_address(f"postgresql://a,b/jobs?target_session_attrs={wanted}")
    assert address.place.endswith(f"target_session_attrs={wanted}")
