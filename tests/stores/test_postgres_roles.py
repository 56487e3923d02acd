"""The role that docs/operate.md gives to workers, servers and reconcilers, and its reach."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.testing.factories import new_token, new_webhook
from tests.support.postgres import PostgresCluster, database_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operate.md").read_text("utf-8")


@pytest.fixture
def role_url(postgres_cluster: PostgresCluster, postgres_url: str) -> Iterator[str]:
    """The url of a role that has what the page grants."""
    [grants] = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
    database = database_of(postgres_url)
    postgres_cluster.sql(f"CREATE ROLE jobs LOGIN; {grants}", database)
    yield postgres_url.replace("postgres@", "jobs@")
    postgres_cluster.sql("DROP OWNED BY jobs CASCADE; DROP ROLE jobs", database)


def double(number: int) -> int:
    """Do the work."""
    return 2 * number


async def test_a_role_with_the_grants_of_the_page_runs_everything_that_goes_on(
    role_url: str,
) -> None:
    async with Holdfast(role_url) as app:
        task = app.task(double)
        async with app.worker():
            job = await task.options(dedupe_key="a", delay="10ms").submit(4)
            assert await job.result("60s") == 8
            connection = await asyncpg.connect(role_url)
            async with connection.transaction():
                handle = await task.submit_in(connection, 5)
            await connection.close()
            assert await (await handle.refresh()).result("60s") == 10
        store = await app.store()
        await store.pause("other", actor="ann")
        await store.resume("other", actor="ann")
        await store.add_token(new_token())
        await store.add_webhook(new_webhook())
        await store.move_cursor("webhooks", before=None, to=await store.tail_end())
        await store.fold_counts()
        await store.drop_beats(before=2**62)
        await store.due()
        problems: list[LedgerProblem] = []
        await verify(store, on_problem=problems.append)
        assert problems == []


BEYOND = (
    "ALTER TABLE holdfast.events DISABLE TRIGGER ALL",
    "ALTER TABLE holdfast.jobs DISABLE TRIGGER USER",
    "CREATE TABLE holdfast.mine (number integer)",
    "CREATE OR REPLACE FUNCTION holdfast.holdfast_now() RETURNS bigint LANGUAGE sql AS 'SELECT 1'",
    "TRUNCATE holdfast.events",
    "DROP TABLE holdfast.cursors",
    "UPDATE holdfast.policies SET lease = 1",
    "DELETE FROM holdfast.policies",
    "UPDATE holdfast.needs SET body = '[]'",
    "UPDATE holdfast.migrations SET number = 99",
    "INSERT INTO holdfast.migrations VALUES (99, 'x', 99)",
    "UPDATE holdfast.queue_events SET actor = 'x'",
    "DELETE FROM holdfast.queue_events",
    "DELETE FROM holdfast.tokens",
    "DELETE FROM holdfast.webhooks",
)


@pytest.mark.parametrize("statement", BEYOND)
async def test_that_role_reaches_no_further(role_url: str, statement: str) -> None:
    connection = await asyncpg.connect(role_url)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute(statement)
    await connection.close()
