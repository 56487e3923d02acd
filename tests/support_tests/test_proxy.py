"""The proxy's faults, each seen from the client and checked at the server."""

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from tests.support.postgres import PostgresCluster, database_of
from tests.support.proxy import FaultProxy

# The last is what asyncpg says of a connection that it has already seen closing.
CUT_OFF = (asyncpg.PostgresConnectionError, OSError, asyncpg.InterfaceError)
INSERT = "INSERT INTO kept VALUES ($1)"


@pytest.fixture
def proxy(postgres_cluster: PostgresCluster, postgres_url: str) -> Iterator[FaultProxy]:
    postgres_cluster.sql("CREATE TABLE kept (number int)", database_of(postgres_url))
    with FaultProxy("127.0.0.1", postgres_cluster.port) as proxy:
        yield proxy


@pytest.fixture
def url(proxy: FaultProxy, postgres_url: str) -> str:
    return proxy.url(postgres_url)


async def kept(postgres_url: str) -> list[int]:
    connection = await asyncpg.connect(postgres_url)
    rows = await connection.fetch("SELECT number FROM kept ORDER BY number")
    await connection.close()
    return [row["number"] for row in rows]


async def test_without_a_fault_it_forwards(url: str, postgres_url: str) -> None:
    connection = await asyncpg.connect(url)
    assert len(await connection.fetchval("SELECT repeat('x', 1000000)")) == 1_000_000
    await connection.execute(INSERT, 1)
    await connection.close()
    assert await kept(postgres_url) == [1]


async def test_a_cut_resets_every_connection_and_allows_new_ones(
    proxy: FaultProxy, url: str
) -> None:
    connections = [await asyncpg.connect(url) for _ in range(3)]
    assert proxy.cut() == 3
    for connection in connections:
        with pytest.raises(CUT_OFF):
            await connection.execute("SELECT 1")
    again = await asyncpg.connect(url)
    assert await again.fetchval("SELECT 1") == 1
    await again.close()


async def test_refused_clients_cannot_connect_while_others_stay(
    proxy: FaultProxy, url: str
) -> None:
    connection = await asyncpg.connect(url)
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        await asyncpg.connect(url)
    assert await connection.fetchval("SELECT 1") == 1
    proxy.accept()
    again = await asyncpg.connect(url)
    await asyncio.gather(connection.close(), again.close())


async def test_a_frozen_connection_is_half_open_until_the_thaw(proxy: FaultProxy, url: str) -> None:
    connection = await asyncpg.connect(url)
    fault = proxy.freeze()
    asked = asyncio.create_task(connection.fetchval("SELECT 7"))
    await fault.happened()
    assert not asked.done()
    proxy.thaw()
    assert await asyncio.wait_for(asked, 10) == 7
    await connection.close()


async def test_a_reply_lost_after_commit_leaves_the_row_committed(
    proxy: FaultProxy, url: str, postgres_url: str
) -> None:
    connection = await asyncpg.connect(url)
    fault = proxy.drop_reply_after(b"COMMIT")
    with pytest.raises(CUT_OFF):
        async with connection.transaction():
            await connection.execute(INSERT, 1)
    await fault.happened()
    assert fault.count == 1
    assert await kept(postgres_url) == [1]


async def test_a_prepared_statement_is_known_by_its_text(
    proxy: FaultProxy, url: str, postgres_url: str
) -> None:
    connection = await asyncpg.connect(url)
    statement = await connection.prepare(INSERT)
    await statement.fetch(1)
    fault = proxy.drop_reply_after(b"INSERT INTO kept")
    assert await connection.fetchval("SELECT 1") == 1
    assert not fault.bitten
    with pytest.raises(CUT_OFF):
        await statement.fetch(2)
    await fault.happened()
    assert await kept(postgres_url) == [1, 2]


async def test_the_next_reply_is_that_of_a_statement_not_of_its_preparation(
    proxy: FaultProxy, url: str, postgres_url: str
) -> None:
    connection = await asyncpg.connect(url)
    fault = proxy.drop_next_reply()
    with pytest.raises(CUT_OFF):
        await connection.execute(INSERT, 1)
    await fault.happened()
    assert await kept(postgres_url) == [1]


async def test_a_lost_request_looks_the_same_but_did_nothing(
    proxy: FaultProxy, url: str, postgres_url: str
) -> None:
    connection = await asyncpg.connect(url)
    fault = proxy.drop_request(b"INSERT INTO kept")
    with pytest.raises(CUT_OFF):
        await connection.execute(INSERT, 1)
    await fault.happened()
    assert await kept(postgres_url) == []


async def test_new_connections_go_to_the_new_target(proxy: FaultProxy, url: str) -> None:
    with PostgresCluster({"fsync": "off", "cluster_name": "other"}) as other:
        other.create_database(database_of(url))
        proxy.retarget("127.0.0.1", other.port)
        connection = await asyncpg.connect(url)
        assert await connection.fetchval("SHOW cluster_name") == "other"
        await connection.close()


def test_a_fault_that_never_bites_is_a_failure(proxy: FaultProxy) -> None:
    fault = proxy.drop_next_reply()
    with pytest.raises(TimeoutError, match="a reply was lost"):
        fault.wait(limit_seconds=0.01)
