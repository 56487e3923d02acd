"""Apps on either engine with short leases; every job is verified afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.app.app import Holdfast
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.stores.postgres.migrate import migrate
from tests.crashes.waiting import until
from tests.support.postgres import PostgresCluster
from tests.worker.silence import Silence


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: PostgresCluster) -> str:
    """A migrated, empty database: copying it is quicker than migrating another."""
    return postgres_cluster.make_template("services", lambda url: asyncio.run(migrate(url)))


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store of either engine is."""
    if request.param == "sqlite":
        return str(tmp_path / "jobs.db")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def app(url: str) -> AsyncIterator[Holdfast]:
    """An app on each engine in turn; tests may use leases shorter than the law's bounds."""
    async with Holdfast(url, unbounded_leases=True) as opened:
        yield opened
        problems: list[LedgerProblem] = []
        await verify(await opened.store(), on_problem=problems.append)
        assert problems == []


@pytest.fixture
async def silence() -> AsyncIterator[Silence]:
    """What silences stores; at the end all that waits for them goes on, and lets go."""
    silence = Silence()
    yield silence
    silence.on.clear()
    await until(lambda: silence.stores == 0, "what was left behind to end")
