"""PostgreSQL's tables live in a schema of their own, beside whatever else a database holds."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.errors import BadAddress, SchemaMismatch
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.ports.models import Query
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.wakeup import _read_notice
from holdfast.testing.factories import new_job
from holdfast.wiring import examine, make_store, migrate, opened, read_address
from tests.stores.test_migrations import NUMBERS
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresCluster, database_of
from tests.support.waiting import wait_until

THEIRS = ("jobs", "events", "keys", "meta", "policies", "migrations", "tokens", "workers")


@pytest.fixture
def crowded_url(postgres_cluster: PostgresCluster) -> Iterator[str]:
    """A database of somebody else, whose tables have the names of Holdfast's."""
    url = postgres_cluster.create_database()
    database = database_of(url)
    postgres_cluster.sql(f"ALTER DATABASE {database} SET search_path = public")
    for name in THEIRS:
        postgres_cluster.sql(f"CREATE TABLE {name} (theirs integer)", database)
    yield url
    postgres_cluster.drop_database(url)


def tables(cluster: PostgresCluster, url: str, schema: str) -> set[str]:
    found = f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'"
    return set(cluster.sql(found, database_of(url)).split())


@pytest.mark.parametrize("way", ["directly", "through a pooler"])
async def test_foreign_tables_of_the_same_names_are_neither_met_nor_touched(
    postgres_cluster: PostgresCluster, pgbouncer: PgBouncer, crowded_url: str, way: str
) -> None:
    url = crowded_url if way == "directly" else f"{pgbouncer.url(crowded_url)}?pooled=true"
    address = read_address(url)
    assert await migrate(address) == NUMBERS

    async with Holdfast(url) as app:
        task = app.task(_double)
        async with app.worker():
            assert await (await task.submit(4)).result("20s") == 8
        problems: list[LedgerProblem] = []
        await verify(await app.store(), on_problem=problems.append)
        assert problems == []
    found = {finding.check: finding.verdict for finding in await examine(address)}
    assert found["migrations"] == "ok"
    assert tables(postgres_cluster, crowded_url, "public") == set(THEIRS)
    assert tables(postgres_cluster, crowded_url, "holdfast") >= set(THEIRS)


def _double(number: int) -> int:
    return 2 * number


async def test_two_instances_in_two_schemas_do_not_meet(crowded_url: str) -> None:
    urls = [crowded_url, f"{crowded_url}?schema=Other-one"]
    await asyncio.gather(*(migrate(read_address(url)) for url in urls))
    apps = [Holdfast(url) for url in urls]
    async with apps[0], apps[1]:
        tasks = [app.task(_double) for app in apps]
        job = await tasks[0].submit(1)
        async with apps[1].worker(reconcile=True):
            assert await (await tasks[1].submit(2)).result("20s") == 4
        assert (await job.refresh()).state == "queued"
        assert [len([job async for job in app.jobs()]) for app in apps] == [1, 1]


async def test_hints_of_another_instance_in_the_same_database_are_not_heard(
    postgres_cluster: PostgresCluster, crowded_url: str
) -> None:
    addresses = [read_address(crowded_url), read_address(f"{crowded_url}?schema=other")]
    for address in addresses:
        await migrate(address)
    async with opened(addresses[0]) as mine, opened(addresses[1]) as theirs:
        waiting = asyncio.create_task(mine.wake_up(["default"], limit_seconds=60))
        await _listening(postgres_cluster, crowded_url, "holdfast")
        connection = await asyncpg.connect(crowded_url)
        heard: asyncio.Queue[str] = asyncio.Queue()
        await connection.add_listener("holdfast.other", lambda *news: heard.put_nowait(news[3]))
        await connection.execute("SET application_name = 'holdfast listener other'")
        await theirs.submit([new_job()])
        assert _read_notice(await asyncio.wait_for(heard.get(), 20))[0] == "default"
        assert isinstance(mine, PostgresStore)
        assert mine._wake.number == 0
        waiting.cancel()
        await connection.close()


async def _listening(cluster: PostgresCluster, url: str, schema: str) -> None:
    asked = (
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        f" AND application_name = 'holdfast listener {schema}'"
    )
    there = functools.partial(cluster.sql, asked, database_of(url))
    await asyncio.to_thread(wait_until, lambda: there() == "1", "the store to listen")


async def test_a_job_is_enlisted_in_the_schema_of_its_app_whatever_the_callers_search_path(
    crowded_url: str,
) -> None:
    urls = [crowded_url, f"{crowded_url}?schema=other"]
    for url in urls:
        await migrate(read_address(url))
    connection = await asyncpg.connect(crowded_url, server_settings={"search_path": "holdfast"})
    async with Holdfast(urls[0]) as first, Holdfast(urls[1]) as second:
        task = second.task(_double)
        async with connection.transaction():
            handle = await task.submit_in(connection, 1)
        assert (await handle.refresh()).created
        assert [job async for job in first.jobs()] == []
    await connection.close()


async def test_triggers_find_their_tables_whatever_the_search_path(crowded_url: str) -> None:
    await migrate(read_address(crowded_url))
    async with opened(read_address(crowded_url)) as store:
        await store.set_sealing(True)
        await store.submit([new_job()])
        connection = await asyncpg.connect(crowded_url)
        with pytest.raises(asyncpg.IntegrityConstraintViolationError, match="removal of an event"):
            await connection.execute("DELETE FROM holdfast.events")
        await connection.execute("DROP TABLE events")
        copied = await connection.fetchval(
            "INSERT INTO holdfast.events SELECT (e).* FROM (SELECT jsonb_populate_record("
            'e, \'{"id": "00000000-0000-7000-8000-000000000001"}\') AS e FROM holdfast.events AS e)'
            " AS e RETURNING seal"
        )
        assert len(copied) == 32
        await connection.execute(
            "DELETE FROM holdfast.events WHERE id = '00000000-0000-7000-8000-000000000001'"
        )
        await connection.close()


async def test_a_schema_that_was_made_ahead_needs_no_right_to_make_schemas(
    postgres_cluster: PostgresCluster, crowded_url: str
) -> None:
    database = database_of(crowded_url)
    postgres_cluster.sql("CREATE ROLE keeper LOGIN", database)
    postgres_cluster.sql("CREATE SCHEMA kept AUTHORIZATION keeper", database)
    address = read_address(f"{crowded_url.replace('postgres@', 'keeper@')}?schema=kept")
    assert await migrate(address) == NUMBERS
    async with opened(address) as store:
        await store.submit([new_job()])
        assert len((await store.find(Query(limit=2))).jobs) == 1
    postgres_cluster.sql("DROP OWNED BY keeper CASCADE; DROP ROLE keeper", database)


async def test_a_schema_without_the_tables_is_refused_with_what_to_do(crowded_url: str) -> None:
    await migrate(read_address(crowded_url))
    with pytest.raises(SchemaMismatch, match=r"run `holdfast migrate`, or name the schema"):
        await make_store(read_address(f"{crowded_url}?schema=other")).open()


@pytest.mark.parametrize("name", ["", "pg_mine", 'a"b', "a b", "1st", "é", "x" * 49])
def test_a_schema_name_that_could_not_be_used_everywhere_is_refused(name: str) -> None:
    with pytest.raises(BadAddress, match="is not a valid schema name"):
        read_address(f"postgresql://me@host/jobs?schema={name}")
