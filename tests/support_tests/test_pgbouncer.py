"""The private PgBouncer pools by transaction."""

import asyncio

import asyncpg

from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresCluster


async def test_many_clients_share_one_server_connection(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    with PgBouncer(postgres_cluster, pool_size=1) as bouncer:
        clients = [
            await asyncpg.connect(bouncer.url(postgres_url), statement_cache_size=0)
            for _ in range(5)
        ]
        pids = [await client.fetchval("SELECT pg_backend_pid()") for client in clients]
        assert len(set(pids)) == 1
        await asyncio.gather(*(client.close() for client in clients))


async def test_what_is_set_in_a_session_leaks_to_the_next_client(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    # It is this that makes transaction mode worth testing against.
    with PgBouncer(postgres_cluster, pool_size=1) as bouncer:
        first = await asyncpg.connect(bouncer.url(postgres_url), statement_cache_size=0)
        second = await asyncpg.connect(bouncer.url(postgres_url), statement_cache_size=0)
        await first.execute("SET work_mem = '3MB'")
        assert await second.fetchval("SHOW work_mem") == "3MB"
        await asyncio.gather(first.close(), second.close())
