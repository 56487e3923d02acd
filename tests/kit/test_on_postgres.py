"""The kit on PostgreSQL: the same tests, on a database of the test's own whose clock it moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from holdfast import Context, Holdfast
from holdfast.testing import Kit

START = datetime(2026, 2, 27, 9, 30, tzinfo=UTC)


@pytest.fixture
def app() -> Holdfast:
    return Holdfast()


async def test_three_days_and_a_crash_pass_in_no_time_and_the_clock_is_put_back(
    app: Holdfast, postgres_url: str
) -> None:
    effects: list[str] = []

    @app.task
    async def order(ctx: Context) -> str:
        await ctx.step("charge", effects.append, "charge")
        await ctx.sleep("3d")
        return "done"

    async with Kit(app, url=postgres_url, start=START) as kit:
        kit.crash_after("charge")
        job = await order.submit()
        await kit.drain()
        assert await job.result() == "done"
        assert effects == ["charge"]
        assert timedelta(days=3) < kit.clock.now - START < timedelta(days=3, minutes=2)
        assert job.record.created_at == START.timestamp() * 1_000_000
    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval(
        "SELECT abs(holdfast_now() - extract(epoch FROM clock_timestamp()) * 1e6) < 60e6"
    )
    assert await connection.fetchval("SELECT to_regclass('holdfast_test_clock')") is None
    await connection.close()


async def test_a_database_that_holds_jobs_is_refused_and_its_clock_left_alone(
    app: Holdfast, postgres_url: str
) -> None:
    async with Kit(app, url=postgres_url):
        await app.submit("something")
    with pytest.raises(Exception, match="there are jobs"):
        await Kit(app, url=postgres_url).__aenter__()
    assert app.rehearsal is None
