"""Two versions beside each other: a worker that lives while `migrate` brings the next schema."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast import Holdfast
from holdfast.errors import SchemaMismatch
from holdfast.stores.sqlite.migrate import latest
from holdfast.tasks.handles import JobHandle
from holdfast.testing.factories import announcement
from holdfast.worker import ownership_check
from tests.worker.next_version import double


@pytest.fixture(autouse=True)
def _announced_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would take five seconds until a worker looks."""
    monkeypatch.setattr(ownership_check, "ANNOUNCE_EVERY", 1)


async def start(verb: str, url: str, min_reader: int) -> Process:
    """Start the next version."""
    module = "tests.worker.next_version"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, verb, url, str(min_reader), stdout=PIPE
    )


async def migrated(url: str, min_reader: int) -> None:
    migrator = await start("migrate", url, min_reader)
    assert await migrator.wait() == 0


@asynccontextmanager
async def load(app: Holdfast) -> AsyncIterator[list[JobHandle[int]]]:
    """Submit all the while; all must be done in the end, whoever does it."""
    submitted: list[JobHandle[int]] = []
    task = app.tasks["double"]

    async def submit() -> None:
        while True:
            submitted.append(await task.submit(len(submitted)))
            await asyncio.sleep(0)

    submitting = asyncio.create_task(submit())
    try:
        yield submitted
    finally:
        submitting.cancel()


async def done(submitted: list[JobHandle[int]]) -> None:
    for number, job in enumerate(submitted):
        assert await job.result("60s") == 2 * number


async def test_an_old_worker_stops_claiming_when_the_schema_leaves_its_version_behind(
    app: Holdfast, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app.task(double)
    async with load(app) as submitted:
        async with app.worker() as old:
            await (await app.tasks["double"].submit(0)).result("60s")
            assert not old.failed
            with caplog.at_level(logging.ERROR):
                await migrated(url, min_reader=latest() + 1)
                await asyncio.wait_for(old.stopped(), 60)
        assert isinstance(old.failed, SchemaMismatch)
        said = f"at migration {latest() + 1}, not {latest()}; upgrade Holdfast"
        assert said in str(old.failed)
        assert f"the worker claims no more jobs and stops: the schema is {said}" in caplog.text

    left = await app.tasks["double"].submit(1)
    assert (await left.refresh()).state == "queued"
    new = await start("work", url, latest() + 1)
    try:
        assert new.stdout is not None
        assert await new.stdout.readline() == b"working\n"
        await done(submitted)
        assert await left.result("60s") == 2
    finally:
        new.kill()
        await new.wait()


async def test_an_old_worker_goes_on_beside_a_migration_that_says_it_may(
    app: Holdfast, url: str
) -> None:
    app.task(double)
    async with load(app) as submitted, app.worker() as old:
        await migrated(url, min_reader=latest())
        new = await start("work", url, latest())
        try:
            assert new.stdout is not None
            assert await new.stdout.readline() == b"working\n"
            await (await app.store()).announce(announcement())
            async with Holdfast(url) as late:
                assert old.name in {one.name for one in await (await late.store()).workers()}
            await done(submitted[: len(submitted)])
        finally:
            new.kill()
            await new.wait()
        assert old.failed is None
        assert await (await app.tasks["double"].submit(7)).result("60s") == 14


async def test_a_sweep_stops_when_the_schema_leaves_its_version_behind(
    app: Holdfast, url: str
) -> None:
    store = await app.store()
    await store.due()
    await migrated(url, min_reader=latest() + 1)
    store._recheck._at = float("-inf")  # type: ignore[attr-defined]
    with pytest.raises(SchemaMismatch, match="upgrade Holdfast"):
        await store.due()
