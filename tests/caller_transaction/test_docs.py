"""The page on transactional submit: its code is run as it stands, and what it names is there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from holdfast import errors
from tests.support.postgres import PostgresCluster

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "transactional-submit.md").read_text("utf-8")


@pytest.fixture
def page(url: str, sqlite_path: Path) -> dict[str, Any]:
    """The page's code, run top to bottom."""
    names: dict[str, Any] = {"DATABASE_URL": url, "SQLITE_PATH": str(sqlite_path)}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "docs/transactional-submit.md", "exec"), names)
    return names


async def test_each_way_on_postgres_writes_an_order_and_its_job(
    page: dict[str, Any], url: str
) -> None:
    app = page["app"]
    async with app, app.worker():
        assert await page["order_with_asyncpg"](1) == "order 1 is on its way"
        await page["order_with_psycopg"](2)
        await asyncio.to_thread(page["order_with_blocking_psycopg"], 3)
        await page["order_with_async_sqlalchemy"](4)
        await asyncio.to_thread(page["order_with_sqlalchemy"], 5)
        connection = await asyncpg.connect(url)
        once = await page["order_once"](connection, 6)
        found = await connection.fetch("SELECT number FROM orders ORDER BY number")
        await connection.close()
        jobs = [job async for job in app.jobs()]
        results = [await job.result("20s") for job in jobs]
    page["blocking"].dispose()

    assert [row[0] for row in found] == [1, 2, 3, 4, 5, 6]
    assert sorted(results) == [f"order {number} is on its way" for number in range(1, 7)]
    assert once in {job.id for job in jobs}


async def test_each_way_on_sqlite_writes_an_order_and_its_job(page: dict[str, Any]) -> None:
    small = page["small"]
    async with small:
        first = await page["order_on_sqlite"](1)
        assert await page["next_order"]() == 2
        jobs = [job async for job in small.jobs()]
        assert first in {job.id for job in jobs}
        assert len(jobs) == 2


def test_the_grants_of_the_page_are_statements_that_work(
    page: dict[str, Any], url: str, postgres_cluster: PostgresCluster
) -> None:
    grants = "".join(re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL))
    database = url.rpartition("/")[2]
    postgres_cluster.sql(
        f"BEGIN; CREATE ROLE web; {grants} SELECT 1 / has_function_privilege("
        "'web', 'holdfast.holdfast_submit(jsonb)', 'EXECUTE')::int, 1 / has_table_privilege("
        "'web', 'holdfast.task_terms', 'SELECT')::int; ROLLBACK",
        database,
    )


def test_the_errors_of_the_page_are_there() -> None:
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)`", PAGE))
    kinds = {"PendingHandle", "AsyncConnection", "AsyncSession"}
    assert named - kinds <= set(vars(errors))
