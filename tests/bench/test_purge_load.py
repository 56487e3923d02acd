"""A purge beside a running load: a small one of the real thing, and what it calls a problem."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from bench.purge_load import FILL, PurgeLoad, Waits, purge_load, table
from bench.soak_app import app
from holdfast.flow.purge import BATCH
from holdfast.stores.postgres.migrate import migrate

SOME = Waits(submits=10, p50=1.0, p99=2.0, longest=3.0)
GOOD = PurgeLoad(
    store="sqlite",
    jobs=100,
    purged=100,
    left=0,
    seconds=1.0,
    batches=1,
    largest_batch=100,
    load_submitted=10,
    load_succeeded=10,
    before=SOME,
    beside=SOME,
    bytes_before=2_000_000,
    bytes_after=1_000_000,
    verified=True,
)


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({}, None),
        ({"left": 3}, "3 old jobs are left"),
        ({"purged": 98}, "98 of 100 jobs were purged"),
        ({"store": "postgres", "purged": 99}, "99 of 100 jobs were purged"),
        ({"purged": 99, "left": 1}, None),
        ({"largest_batch": BATCH + 1}, f"a batch had {BATCH + 1} jobs"),
        ({"load_succeeded": 9}, "9 of 10 jobs of the load succeeded"),
        ({"beside": replace(SOME, submits=0)}, "the load submitted nothing beside the purge"),
        ({"verified": False}, "holdfast verify found problems"),
    ],
)
def test_what_is_not_as_it_must_be_is_named(bad: dict[str, Any], problem: str | None) -> None:
    result = replace(GOOD, **bad)
    assert result.problems == ([] if problem is None else [problem])
    assert problem is None or problem in table(result)


@pytest.fixture
def app_elsewhere() -> Iterator[None]:
    """Give the load's app its own address back."""
    url = app.url
    yield
    app.use(url)


def purged_beside_a_load(url: str) -> PurgeLoad:
    """Purge more jobs than one look sees, beside a small load."""
    return asyncio.run(purge_load(url, jobs=FILL + 500, rate=20, calm_seconds=0.5))


@pytest.mark.live
@pytest.mark.usefixtures("app_elsewhere")
def test_a_purge_beside_a_load_loses_no_job_of_it(postgres_url: str) -> None:
    asyncio.run(migrate(postgres_url))
    assert purged_beside_a_load(postgres_url).problems == []


@pytest.mark.live
@pytest.mark.usefixtures("app_elsewhere")
def test_a_purge_beside_a_load_shrinks_the_file_of_sqlite(tmp_path: Path) -> None:
    result = purged_beside_a_load(str(tmp_path / "jobs.db"))
    assert result.problems == []
    assert result.bytes_after < result.bytes_before
