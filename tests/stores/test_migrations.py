"""Migrations: numbered, alike in both engines, applied once each, and in sum the schema."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from holdfast.errors import SchemaMismatch, StoreError, StoreUnavailable
from holdfast.lifecycle.invariants import RULES
from holdfast.stores.postgres import migrate as postgres
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql_files import read_migrations
from holdfast.stores.sqlite import migrate as sqlite
from holdfast.stores.sqlite.store import SqliteStore
from tests.stores.catalogue import (
    Catalogue,
    postgres_catalogue,
    postgres_names,
    sqlite_catalogue,
    sqlite_names,
)
from tests.support.postgres import PostgresCluster, database_of
from tests.support.waiting import wait_until
from tools.generate import schemas

PACKAGES = {"postgres": "holdfast.stores.postgres", "sqlite": "holdfast.stores.sqlite"}
NUMBERS = [number for number, _, _ in read_migrations(PACKAGES["sqlite"])]
MORE = [
    (1, "ledger", "CREATE TABLE first_one (number integer)"),
    (2, "more", "CREATE TABLE second_one (number integer)"),
    (3, "most", "CREATE TABLE third_one (number integer)"),
]


@pytest.fixture
def empty_url(postgres_cluster: PostgresCluster) -> Iterator[str]:
    """A database without any table."""
    url = postgres_cluster.create_database()
    yield url
    postgres_cluster.drop_database(url)


async def described(url: str) -> Catalogue:
    connection = await asyncpg.connect(url)
    try:
        return await postgres_catalogue(connection)
    finally:
        await connection.close()


def described_file(path: Path) -> Catalogue:
    connection = apsw.Connection(str(path))
    try:
        return sqlite_catalogue(connection)
    finally:
        connection.close()


@pytest.mark.parametrize("package", PACKAGES.values(), ids=PACKAGES)
def test_migrations_are_numbered_without_a_gap(package: str) -> None:
    numbers = [number for number, _, _ in read_migrations(package)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_both_engines_have_the_same_migrations() -> None:
    listed = [[(number, name) for number, name, _ in read_migrations(p)] for p in PACKAGES.values()]
    assert listed[0] == listed[1]


async def test_the_migrations_of_postgres_sum_up_to_its_schema(
    postgres_cluster: PostgresCluster, empty_url: str
) -> None:
    await postgres.migrate(empty_url)
    made = postgres_cluster.create_database()
    connection = await asyncpg.connect(made)
    await connection.execute("CREATE SCHEMA holdfast")
    await connection.execute(schemas()["docs/schema/postgres.sql"])
    await connection.close()
    expected, found = await described(made), await described(empty_url)
    postgres_cluster.drop_database(made)
    assert found == expected
    assert {key.split(":")[0] for key in found} == {
        "columns", "options", "constraints", "indexes", "triggers", "functions", "views", "settings"
    }  # fmt: skip


def test_the_migrations_of_sqlite_sum_up_to_its_schema(tmp_path: Path) -> None:
    sqlite.migrate(tmp_path / "migrated.db")
    connection = apsw.Connection(str(tmp_path / "made.db"))
    connection.execute(schemas()["docs/schema/sqlite.sql"])
    connection.close()
    assert described_file(tmp_path / "migrated.db") == described_file(tmp_path / "made.db")


POSTGRES_ALONE: dict[str, set[tuple[str, str]]] = {
    # Its transactions end in another order than they begin: the tail goes by their number. A claim
    # is one statement there, which reads off the policy what SQLite's reads in Python.
    "columns": {("events", "xid"), ("counts", "delta"), ("policies", "running_lease")},
    # Read in blocks, where SQLite has `position`.
    "indexes": {("events", "events_ranges")},
    # SQLite's one writer seals in Python.
    "triggers": {
        *(("events", "events_seal"), ("beats", "beats_seal")),
        # And lists jobs under their holds in Python.
        *(("jobs", "jobs_held"), ("jobs", "jobs_unheld")),
        # There it is made when a policy is applied; here it can be disabled.
        ("events", "events_judged"),
    },
    # One CHECK that calls a function, because the text of each is read for every statement.
    "constraints": {("jobs", "lawful")},
}
SQLITE_ALONE: dict[str, set[tuple[str, str]]] = {
    # One writer at a time: `position` alone is the order, and a count is kept as it stands. What
    # a claim finds a job by are expressions of an index on PostgreSQL.
    "columns": {
        ("events", "position"),
        ("counts", "jobs"),
        ("jobs", "route"),
        ("jobs", "lane"),
    },
    "indexes": set(),
    "triggers": set(),
    # PostgreSQL has a type for it.
    "constraints": {("jobs", "id_is_uuid"), *(("jobs", rule.name) for rule in RULES)},
}


@pytest.mark.parametrize("kind", POSTGRES_ALONE)
async def test_both_engines_have_the_same_names_but_for_the_listed_ones(
    postgres_url: str, tmp_path: Path, kind: str
) -> None:
    sqlite.migrate(tmp_path / "ledger.db")
    theirs = postgres_names(await described(postgres_url), kind)
    mine = sqlite_names(described_file(tmp_path / "ledger.db"), kind)
    assert theirs - mine == POSTGRES_ALONE[kind]
    assert mine - theirs == SQLITE_ALONE[kind]
    assert len(mine & theirs) > 5


async def test_migrating_twice_does_nothing_the_second_time(empty_url: str, tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    assert await postgres.migrate(empty_url, progress=lambda *one: told.append(one)) == NUMBERS
    before = await described(empty_url)
    assert await postgres.migrate(empty_url, progress=lambda *one: told.append(one)) == []
    assert await described(empty_url) == before
    assert told[:2] == [(1, "ledger"), (2, "tokens")]
    assert [number for number, _ in told] == NUMBERS

    path = tmp_path / "ledger.db"
    assert [sqlite.migrate(path), sqlite.migrate(path)] == [NUMBERS, []]


async def test_many_migrators_at_once_apply_each_migration_once(
    postgres_cluster: PostgresCluster, empty_url: str
) -> None:
    raw = await asyncpg.connect(empty_url)
    transaction = raw.transaction()
    await transaction.start()
    await raw.execute(postgres._LOCK, "holdfast")
    migrators = [asyncio.create_task(postgres.migrate(empty_url)) for _ in range(5)]
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    await asyncio.to_thread(
        wait_until, lambda: postgres_cluster.sql(waiting) == "5", "all migrators to wait"
    )
    await transaction.rollback()

    # Each takes its turn between two migrations, so that any of them may apply any.
    assert sorted(chain.from_iterable(await asyncio.gather(*migrators))) == NUMBERS
    found = await raw.fetch("SELECT number FROM migrations ORDER BY number")
    assert [number for (number,) in found] == NUMBERS
    await raw.close()


async def test_many_migrators_of_one_file_apply_each_migration_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    runs = await asyncio.gather(*(asyncio.to_thread(sqlite.migrate, path) for _ in range(5)))
    assert sorted(chain.from_iterable(runs)) == NUMBERS


@contextmanager
def having(module: Any, listed: list[tuple[int, str, str]]) -> Iterator[None]:
    """A version of Holdfast that has these migrations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "read_migrations", lambda package: listed)
        yield


def tables(cluster: PostgresCluster, url: str) -> set[str]:
    found = "SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'"
    return set(cluster.sql(found, database_of(url)).split()) - {"migrations"}


def tables_of(path: Path) -> set[str]:
    connection = apsw.Connection(str(path))
    found = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
    connection.close()
    return found - {"migrations"}


async def test_a_migration_that_fails_leaves_nothing_and_is_resumed(
    postgres_cluster: PostgresCluster, empty_url: str, tmp_path: Path
) -> None:
    halfway = [MORE[0], (2, "more", MORE[1][2] + "; SELECT * FROM nowhere"), MORE[2]]
    path = tmp_path / "ledger.db"
    with having(postgres, halfway), pytest.raises(StoreError, match="nowhere"):
        await postgres.migrate(empty_url)
    with having(sqlite, halfway), pytest.raises(StoreError, match="nowhere"):
        sqlite.migrate(path)
    assert tables(postgres_cluster, empty_url) == tables_of(path) == {"first_one"}

    with having(postgres, MORE):
        assert await postgres.migrate(empty_url) == [2, 3]
    with having(sqlite, MORE):
        assert sqlite.migrate(path) == [2, 3]


async def test_a_migrator_killed_in_between_is_resumed(
    postgres_cluster: PostgresCluster, empty_url: str
) -> None:
    def kill_at_the_second(number: int, name: str) -> None:
        if number == 2:
            postgres_cluster.kill_backends(empty_url)

    with having(postgres, MORE):
        with pytest.raises(StoreError):
            await postgres.migrate(empty_url, progress=kill_at_the_second)
        assert tables(postgres_cluster, empty_url) == {"first_one"}
        assert await postgres.migrate(empty_url) == [2, 3]


HELD_BEFORE = """INSERT INTO jobs (id, created_at, updated_at, run_at, needs, policy, rev, state,
    kind, priority, tenant, task, queue, held_by)
    VALUES ({id}, 1, 1, 1, 0, 1, 1, {state}, 1, 2, 'default', 't', 'q', {held_by})"""


async def test_jobs_that_were_held_before_holds_were_listed_are_found_by_them(
    postgres_cluster: PostgresCluster, empty_url: str, tmp_path: Path
) -> None:
    path, ids = tmp_path / "ledger.db", [f"{number:032x}" for number in (1, 2, 3)]
    rows = [(ids[0], 2, '\'["a","b"]\''), (ids[1], 1, "NULL"), (ids[2], 2, "NULL")]
    with having(postgres, read_migrations(PACKAGES["postgres"])[:3]):
        await postgres.migrate(empty_url)
    with having(sqlite, read_migrations(PACKAGES["sqlite"])[:3]):
        sqlite.migrate(path)
    connection = apsw.Connection(str(path))
    for id_, state, held_by in rows:
        theirs = HELD_BEFORE.format(id=f"'{id_}'", state=state, held_by=held_by)
        # PostgreSQL does not compute it: the one that may be claimed has an order.
        order = "1 + 300000000" if state == 2 and held_by == "NULL" else "NULL"
        theirs = theirs.replace("held_by)", "held_by, claim_order)", 1)[:-1] + f", {order})"
        postgres_cluster.sql(theirs, database_of(empty_url))
        connection.execute(HELD_BEFORE.format(id=f"x'{id_}'", state=state, held_by=held_by))
    await postgres.migrate(empty_url)
    sqlite.migrate(path)

    expected = [("", ids[1]), ("a", ids[0]), ("b", ids[0])]
    found = "SELECT hold, {id} FROM holds ORDER BY 1, 2"
    assert connection.execute(found.format(id="lower(hex(id))")).fetchall() == expected
    connection.close()
    theirs = postgres_cluster.sql(
        found.format(id="replace(id::text, '-', '')"), database_of(empty_url)
    )
    assert [tuple(line.split("|")) for line in theirs.splitlines()] == expected


async def test_a_server_that_cannot_be_reached_is_said_to_be_so(
    postgres_cluster: PostgresCluster,
) -> None:
    nowhere = postgres_cluster.url("there_is_no_such_database")
    with pytest.raises(StoreUnavailable, match="there_is_no_such_database"):
        await postgres.migrate(nowhere)


async def test_a_database_without_a_schema_is_refused_with_what_to_do(
    empty_url: str, tmp_path: Path
) -> None:
    with pytest.raises(SchemaMismatch, match="run `holdfast migrate`"):
        await PostgresStore(empty_url).open()
    foreign = tmp_path / "foreign.db"
    connection = apsw.Connection(str(foreign))
    connection.execute("CREATE TABLE somebody_elses (number integer)")
    connection.close()
    with pytest.raises(SchemaMismatch, match="run `holdfast migrate`"):
        await SqliteStore(foreign).open()


async def test_an_older_schema_is_refused_with_what_to_do(
    postgres_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "ledger.db"
    sqlite.migrate(path)
    newest = NUMBERS[-1]
    later = [*read_migrations(PACKAGES["sqlite"]), (newest + 1, "later", "SELECT 1")]
    said = f"at migration {newest}, not {newest + 1}; run"
    with having(postgres, later), pytest.raises(SchemaMismatch, match=said):
        await PostgresStore(postgres_url).open()
    with having(sqlite, later), pytest.raises(SchemaMismatch, match=said):
        await SqliteStore(path).open()


async def test_a_newer_schema_is_refused_with_what_to_do(
    postgres_cluster: PostgresCluster, postgres_url: str, tmp_path: Path
) -> None:
    newer = "INSERT INTO migrations (number, name, min_reader) VALUES (99, 'future', 99)"
    postgres_cluster.sql(newer, database_of(postgres_url))
    path = tmp_path / "ledger.db"
    sqlite.migrate(path)
    connection = apsw.Connection(str(path))
    connection.execute(newer)
    connection.close()
    said = f"at migration 99, not {NUMBERS[-1]}; upgrade Holdfast"
    for store in (PostgresStore(postgres_url), SqliteStore(path)):
        with pytest.raises(SchemaMismatch, match=said):
            await store.open()
    with pytest.raises(SchemaMismatch, match=said):
        await postgres.migrate(postgres_url)
    with pytest.raises(SchemaMismatch, match=said):
        sqlite.migrate(path)


async def test_somebody_elses_tables_are_not_migrated_into_unless_that_is_meant(
    postgres_cluster: PostgresCluster, empty_url: str, tmp_path: Path
) -> None:
    theirs = "CREATE TABLE somebody_elses (number integer)"
    postgres_cluster.sql("CREATE SCHEMA holdfast", database_of(empty_url))
    postgres_cluster.sql(theirs, database_of(empty_url))
    path = tmp_path / "foreign.db"
    connection = apsw.Connection(str(path))
    connection.execute(theirs)
    connection.close()
    with pytest.raises(SchemaMismatch, match=r"holds other tables .* --beside-others"):
        await postgres.migrate(empty_url)
    with pytest.raises(SchemaMismatch, match=r"holds other tables .* --beside-others"):
        sqlite.migrate(path)
    assert tables(postgres_cluster, empty_url) == tables_of(path) == {"somebody_elses"}

    assert await postgres.migrate(empty_url, beside_others=True) == NUMBERS
    assert sqlite.migrate(path, beside_others=True) == NUMBERS


async def test_a_new_file_gets_its_schema_by_being_opened(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "new.db")
    await store.open()
    await store.close()
    assert sqlite.migrate(tmp_path / "new.db") == []
