"""What cannot be done is said, with what to do instead, and nothing is written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast import Holdfast
from holdfast.errors import BadConnection, BadTransaction, NotCommitted, SchemaMismatch, StoreError
from holdfast.ids import mint_id
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.terms import TaskTerms
from holdfast.stores.postgres.caller_transaction import enlist_sql, enlist_text
from tests.caller_transaction.callers import Asyncpg, AsyncSqlAlchemy, Caller, Psycopg, SyncPsycopg
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import PostgresCluster


async def no_jobs(app: Holdfast) -> bool:
    return [job async for job in app.jobs()] == []


async def refused_as_autocommit(app: Holdfast, connection: Any) -> None:
    with pytest.raises(BadTransaction, match="commits each statement") as refused:
        await app.tasks["ship"].submit_in(connection, 1)
    assert refused.value.code == "no_transaction"
    assert await no_jobs(app)


async def test_a_connection_without_a_transaction_is_refused(app: Holdfast, url: str) -> None:
    plain = await asyncpg.connect(url)
    await refused_as_autocommit(app, plain)
    await plain.close()
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await refused_as_autocommit(app, connection)
    with psycopg.connect(url, autocommit=True) as blocking:
        await refused_as_autocommit(app, blocking)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_sqlalchemy_in_autocommit_is_refused(app: Holdfast, url: str, driver: str) -> None:
    address = url.replace("postgresql:", f"postgresql+{driver}:")
    engine = create_async_engine(address, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await refused_as_autocommit(app, connection)
    await engine.dispose()
    if driver == "psycopg":
        blocking = create_engine(address)
        with blocking.connect().execution_options(isolation_level="AUTOCOMMIT") as one:
            await refused_as_autocommit(app, one)
        blocking.dispose()


async def test_a_transaction_that_only_reads_is_refused(app: Holdfast, caller: Caller) -> None:
    await caller.begin()
    await caller.run("SET TRANSACTION READ ONLY")
    with pytest.raises(BadTransaction, match="only reads"):
        await caller.submit(app.tasks["ship"], 1)
    await caller.rollback()


@pytest.mark.parametrize("kind", [Asyncpg, SyncPsycopg, AsyncSqlAlchemy])
async def test_a_database_without_holdfast_says_to_migrate(
    app: Holdfast, postgres_cluster: PostgresCluster, kind: type[Caller]
) -> None:
    bare = postgres_cluster.create_database()
    caller = kind(bare)
    await caller.open()
    await caller.begin()
    with pytest.raises(SchemaMismatch, match="holdfast migrate"):
        await caller.submit(app.tasks["ship"], 1)
    await caller.rollback()
    await caller.close()
    postgres_cluster.drop_database(bare)


async def test_what_is_no_connection_is_named(app: Holdfast) -> None:
    task = app.tasks["ship"]
    with pytest.raises(BadConnection, match=r"builtins\.object.*asyncpg or psycopg"):
        await task.submit_in(object(), 1)
    with pytest.raises(BadConnection, match="is for SQLite"):
        async with app.transaction():
            pass
    engine = create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(BadConnection, match=r"app\.transaction"):
        await task.submit_in(connection, 1)
    engine.dispose()


async def test_an_asynchronous_connection_is_to_be_awaited(app: Holdfast, url: str) -> None:
    caller = Psycopg(url)
    await caller.open()
    with pytest.raises(BadConnection, match=r"await task\.submit_in"):
        app.tasks["ship"].submit_in_sync(caller.connection, 1)
    await caller.close()


async def test_a_pending_job_can_be_a_parent_and_is_waited_for_after_the_commit(
    app: Holdfast, url: str
) -> None:
    caller = Asyncpg(url)
    await caller.open()
    await caller.begin()
    parent = await caller.submit(app.tasks["ship"], 1)
    child = await caller.submit(app.tasks["ship"], 2, parent=parent)
    with pytest.raises(NotCommitted, match=parent.id):
        await parent.wait()
    await caller.commit()

    job = await child.refresh()
    assert str(job.record.parent_id) == parent.id
    await caller.close()


# -- least privilege


@pytest.fixture
def web_url(postgres_cluster: PostgresCluster, url: str) -> Iterator[str]:
    """The way of a role that has its own table, and nothing of Holdfast's."""
    database = url.rpartition("/")[2]
    postgres_cluster.sql(
        "CREATE ROLE web LOGIN; GRANT ALL ON orders TO web; CREATE SCHEMA web AUTHORIZATION web",
        database,
    )
    yield url.replace("postgres@", "web@")
    postgres_cluster.sql("DROP OWNED BY web CASCADE; DROP ROLE web", database)


@pytest.fixture
async def web(web_url: str) -> AsyncIterator[Asyncpg]:
    """It, connected."""
    caller = Asyncpg(web_url)
    await caller.open()
    yield caller
    await caller.close()


async def granted(url: str) -> None:
    owner = await asyncpg.connect(url)
    await owner.execute(
        "GRANT USAGE ON SCHEMA holdfast TO web;"
        "GRANT EXECUTE ON FUNCTION holdfast.holdfast_submit(jsonb) TO web"
    )
    await owner.close()


async def test_nobody_submits_without_being_allowed_to(app: Holdfast, web: Asyncpg) -> None:
    await web.begin()
    with pytest.raises(StoreError, match=r"GRANT EXECUTE ON FUNCTION holdfast\.holdfast_submit"):
        await web.submit(app.tasks["ship"], 1)
    await web.rollback()


async def test_a_role_needs_the_function_and_nothing_else(
    app: Holdfast, url: str, web: Asyncpg
) -> None:
    await granted(url)
    await web.begin()
    await web.order(1)
    handle = await web.submit(app.tasks["ship"], 1, dedupe_key="order-1")
    await web.commit()

    assert (await handle.refresh()).created
    for table in ("jobs", "events", "keys", "counts", "policies"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await web.run(f"SELECT 1 FROM holdfast.{table}")


async def test_a_role_with_the_function_alone_submits_by_name(
    app: Holdfast, url: str, web: Asyncpg, web_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    await granted(url)
    stranger = Holdfast(web_url)
    await web.begin()
    made = [await web.submit(stranger.named("ship")) for _ in range(3)]
    await web.commit()
    await stranger.close()
    for one in made:
        assert (await app.get(one.id)).record.task == "ship"
    # It cannot read the terms: that is logged once, and not tried each time.
    assert caplog.text.count("terms of tasks could not be read") == 1


async def test_a_role_that_may_read_the_terms_of_tasks_submits_under_them(
    app: Holdfast, url: str, web: Asyncpg, web_url: str
) -> None:
    await granted(url)
    owner = await asyncpg.connect(url)
    await owner.execute("GRANT SELECT ON holdfast.migrations, holdfast.task_terms TO web")
    await owner.close()
    terms = TaskTerms(task="pay", policy=Policy(idempotent=False, max_attempts=1), queue="money")
    await (await app.store()).publish_terms([terms])
    stranger = Holdfast(web_url)
    await web.begin()
    made = await web.submit(stranger.named("pay"))
    await web.commit()
    await stranger.close()
    job = (await app.get(made.id)).record
    assert (job.policy, job.queue) == (terms.policy, "money")


async def test_a_callers_own_tables_and_functions_do_not_stand_in_for_holdfasts(
    app: Holdfast, url: str, web: Asyncpg
) -> None:
    await granted(url)
    for place in ("pg_temp", "web"):
        await web.run(
            f"CREATE TABLE {place}.keys (tenant text); CREATE TABLE {place}.jobs (id uuid);"
            f"CREATE FUNCTION {place}.holdfast_now() RETURNS bigint LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE 'as %', current_user; END $$"
        )
    await web.run("SET search_path = web, public")
    await web.begin()
    handle = await web.submit(app.tasks["ship"], 1, dedupe_key="order-1")
    await web.commit()

    assert (await handle.refresh()).created


async def test_a_role_that_may_submit_cannot_submit_a_job_of_holdfasts_own(
    app: Holdfast, url: str, web: Asyncpg
) -> None:
    await granted(url)
    delivery = Submission(id=mint_id(), task="holdfast.webhook", queue="holdfast.webhooks")
    made = submit(delivery, Actor(Role.GATEWAY, "web"), internal=True)
    await web.begin()
    with pytest.raises(asyncpg.CheckViolationError, match="reserved"):
        await web.connection.execute(enlist_sql("$1"), enlist_text([made]))
    await web.rollback()
    assert [job async for job in app.jobs()] == []


# -- poolers, and drivers that are not there


@pytest.fixture(scope="module")
def pooler(postgres_cluster: PostgresCluster) -> Iterator[PgBouncer]:
    """A pooler in transaction mode, whose server connections all share."""
    with PgBouncer(postgres_cluster, pool_size=2) as made:
        yield made


async def test_it_works_through_a_pooler_in_transaction_mode(
    app: Holdfast, url: str, pooler: PgBouncer
) -> None:
    first = await asyncpg.connect(pooler.url(url), statement_cache_size=0)
    engine = create_engine(pooler.url(url).replace("postgresql:", "postgresql+psycopg:"))
    for number in range(8):
        async with first.transaction():
            await app.tasks["ship"].submit_in(first, number)
        with engine.begin() as second:
            second.execute(text("SELECT 1"))
            app.tasks["ship"].submit_in_sync(second, number)
    await first.close()
    engine.dispose()

    assert len([job async for job in app.jobs()]) == 16


def test_no_driver_is_imported_that_the_user_did_not_import() -> None:
    script = (
        "import sys; from holdfast import Holdfast; app = Holdfast(':memory:')\n"
        "try: app.named('t').submit_in_sync(object())\n"
        "except Exception as error: assert error.code == 'bad_connection', error\n"
        "print(sorted({'asyncpg', 'psycopg', 'sqlalchemy'} & set(sys.modules)))"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert told.stdout == "[]\n"
