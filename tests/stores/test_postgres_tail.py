"""The tail on PostgreSQL: behind open transactions, and from one cluster into another."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from holdfast.errors import StoreError, StoreUnavailable
from holdfast.flow.notify import notify
from holdfast.flow.submit import NamedTask
from holdfast.lifecycle.record import Actor, JobId, NewJob
from holdfast.lifecycle.states import Role, State
from holdfast.ports.store import Store
from holdfast.stores.cursors import read_cursor, write_cursor
from holdfast.stores.postgres.caller_transaction import enlist_sql, enlist_text
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.factories import new_job, new_webhook
from holdfast.testing.store_actions import job_in
from holdfast.wiring import examine, migrate, opened, read_address
from tests.stores.ledgers import postgres_store
from tests.support.postgres import PostgresCluster, database_of
from tests.support.waiting import wait_until

GATEWAY = Actor(Role.GATEWAY, "test")
ROUTE = NamedTask("holdfast.webhook", queue="holdfast.webhooks")


async def told(store: Store, cursor: str | None) -> tuple[list[JobId], str]:
    """Whose first events the tail brings, and where it goes on."""
    tail = await store.tail(cursor)
    return [event.id for event in tail.events if event.rev == 1], tail.cursor


async def enlist(connection: asyncpg.Connection, job: NewJob) -> None:
    await connection.fetchval(enlist_sql("$1"), enlist_text([job]))


async def test_the_tail_waits_for_a_transaction_that_began_before_what_is_committed(
    postgres_url: str,
) -> None:
    slow, quick = new_job(), new_job()
    async with postgres_store(postgres_url) as store:
        # So that the policy is there, and nobody waits for whoever writes it.
        await store.submit([new_job()])
        _, cursor = await told(store, None)
        connection = await asyncpg.connect(postgres_url)
        transaction = connection.transaction()
        await transaction.start()
        await enlist(connection, slow)
        await store.submit([quick])

        meanwhile = await store.tail(cursor)
        pid = connection.get_server_pid()
        assert (meanwhile.events, meanwhile.held_back_by) == ([], pid)
        end = await store.tail_end()
        await transaction.commit()
        await connection.close()

        both = {slow.record.id, quick.record.id}
        for start in (cursor, meanwhile.cursor, end):
            assert set((await told(store, start))[0]) == both


# -- into another cluster


@pytest.fixture(scope="module")
def older_cluster() -> Iterator[PostgresCluster]:
    """A cluster that has had far more transactions than a new one has."""
    with PostgresCluster({"fsync": "off", "wal_level": "logical"}) as cluster:
        cluster.sql(
            "DO $$ BEGIN FOR i IN 1..5000 LOOP PERFORM txid_current(); COMMIT; END LOOP; END $$"
        )
        yield cluster


@pytest.fixture
async def old_url(older_cluster: PostgresCluster) -> str:
    """A ledger there."""
    url = older_cluster.create_database()
    await migrate(read_address(url))
    return url


@pytest.fixture
def new_url(postgres_cluster: PostgresCluster) -> Iterator[str]:
    """An empty database in a cluster that is younger."""
    url = postgres_cluster.create_database()
    yield url
    postgres_cluster.drop_database(url)


def dump(cluster: PostgresCluster, url: str, *options: str) -> bytes:
    command: list[str | Path] = [cluster.binaries / "pg_dump", *options, "--no-owner", url]
    return subprocess.run(command, check=True, capture_output=True).stdout


def load(cluster: PostgresCluster, url: str, dumped: bytes) -> None:
    command: list[str | Path] = [cluster.binaries / "psql", "-qX", "-v", "ON_ERROR_STOP=1", url]
    subprocess.run(command, check=True, input=dumped, capture_output=True)


async def followed(url: str) -> tuple[str, int]:
    """Somebody follows all events, webhooks are told, and all is read; gives where they are."""
    async with postgres_store(url) as store:
        await store.move_cursor("webhooks", before=None, to=await store.tail_end())
        await store.add_webhook(new_webhook())
        await job_in(store, State.SUCCEEDED)
        assert (await notify(store, GATEWAY, ROUTE)).messages == 1
        read = await store.tail(None)
        return read.cursor, len(read.events)


@pytest.mark.parametrize("noticed", ["epoch bump", "by the first reader", "after a while"])
async def test_feed_and_webhooks_go_on_after_a_restore_into_another_cluster(
    older_cluster: PostgresCluster, old_url: str, new_url: str, noticed: str
) -> None:
    cursor, count = await followed(old_url)
    load(older_cluster, new_url, dump(older_cluster, old_url))

    async with postgres_store(new_url) as store:
        if noticed == "epoch bump":
            assert await store.bump_epoch() == 2
        elif noticed == "by the first reader":
            assert (await store.tail(cursor)).events == []
        ended = [await job_in(store, State.SUCCEEDED) for _ in range(3)]
        assert (await notify(store, GATEWAY, ROUTE)).messages == 3
        new = await store.tail(cursor)
        assert {event.id for event in new.events} >= {job.id for job in ended}
        # From the oldest, in steps that end anywhere, each once and in their order.
        steps, at = [], None
        while (tail := await store.tail(at, limit=2)).events:
            steps += tail.events
            at = tail.cursor
        assert len({(event.id, event.rev) for event in steps}) == len(steps)
        assert steps[count:] == new.events
        assert steps == (await store.tail(None)).events


async def test_feed_and_webhooks_go_on_after_a_switch_by_logical_replication(
    older_cluster: PostgresCluster, postgres_cluster: PostgresCluster, old_url: str, new_url: str
) -> None:
    cursor, _ = await followed(old_url)
    old, new = database_of(old_url), database_of(new_url)
    load(postgres_cluster, new_url, dump(older_cluster, old_url, "--schema-only"))
    older_cluster.sql(f"CREATE PUBLICATION moving_{old} FOR ALL TABLES", old)
    postgres_cluster.sql(
        f"CREATE SUBSCRIPTION moving_{new} CONNECTION '{old_url}' PUBLICATION moving_{old}"
        " WITH (copy_data = true)",
        new,
    )
    try:
        async with postgres_store(old_url) as store:
            last = await job_in(store, State.SUCCEEDED)
            await store.fold_counts()
        await _arrived(postgres_cluster, new, last.id)
    finally:
        postgres_cluster.sql(f"DROP SUBSCRIPTION moving_{new}", new)

    async with postgres_store(new_url) as store:
        job = await job_in(store, State.SUCCEEDED)
        await store.pause("default", actor="ann")
        ids = {event.id for event in (await store.tail(cursor)).events}
        assert {last.id, job.id} <= ids
        assert (await notify(store, GATEWAY, ROUTE)).messages == 2


async def _arrived(cluster: PostgresCluster, database: str, id: JobId) -> None:
    asked = (
        f"SELECT count(*) FROM holdfast.jobs WHERE id = '{id}' AND finished_at IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM pg_subscription_rel WHERE srsubstate <> 'r')"
    )
    await asyncio.to_thread(
        wait_until, lambda: cluster.sql(asked, database) == "1", "the last job to be replicated"
    )


async def test_cursors_of_events_that_a_restore_took_back_do_not_pass_over_new_ones(
    postgres_url: str,
) -> None:
    async with postgres_store(postgres_url) as store:
        await job_in(store, State.SUCCEEDED)
        xid, id_, rev = read_cursor(await store.tail_end())
        lost = write_cursor(xid + 1000, id_, rev)
        await store.bump_epoch()
        job = await job_in(store, State.SUCCEEDED)
        assert {event.id for event in (await store.tail(lost)).events} == {job.id}


async def test_claims_are_fenced_though_a_reader_of_events_keeps_positions_from_moving_on(
    postgres_url: str,
) -> None:
    async with postgres_store(postgres_url, deadline_seconds=2.0) as store:
        reader = await asyncpg.connect(postgres_url)
        async with reader.transaction():
            await reader.execute("SELECT 1 FROM holdfast.events LIMIT 1")
            with pytest.raises(StoreUnavailable, match=r"are fenced .epoch 2.*is open .pg_dump"):
                await store.bump_epoch()
            assert (await store.clock()).epoch == 2
        await reader.close()
        assert await store.bump_epoch() == 3


async def test_an_examination_tells_of_a_move_and_that_it_was_followed(
    older_cluster: PostgresCluster, old_url: str, new_url: str
) -> None:
    await followed(old_url)
    load(older_cluster, new_url, dump(older_cluster, old_url))

    async def found() -> tuple[str, str]:
        [one] = [one for one in await examine(read_address(new_url)) if one.check == "events"]
        return one.verdict, one.text

    assert await found() == (
        "warning",
        "the database was moved to another PostgreSQL cluster since the last `epoch bump`",
    )
    async with opened(read_address(new_url)) as store:
        await store.bump_epoch()
    verdict, text = await found()
    assert (verdict, "in lineage 2" in text) == ("ok", True)


async def test_whoever_may_not_follow_a_move_is_told_and_not_left_in_silence(
    older_cluster: PostgresCluster, postgres_cluster: PostgresCluster, old_url: str, new_url: str
) -> None:
    cursor, _ = await followed(old_url)
    load(older_cluster, new_url, dump(older_cluster, old_url))
    database = database_of(new_url)
    postgres_cluster.sql(
        "CREATE ROLE reader LOGIN; GRANT USAGE ON SCHEMA holdfast TO reader;"
        "GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO reader",
        database,
    )
    store = PostgresStore(new_url.replace("postgres@", "reader@"))
    await store.open()
    with pytest.raises(StoreError, match=r"moved to another PostgreSQL cluster.*epoch bump"):
        await store.tail(cursor)
    await store.close()
    postgres_cluster.sql("DROP OWNED BY reader CASCADE; DROP ROLE reader", database)
