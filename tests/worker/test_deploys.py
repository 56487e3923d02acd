"""Workers of two versions of an app beside each other: a job goes only to one that can run it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.app.app import Holdfast
from holdfast.errors import BadTask
from holdfast.lifecycle.retry import UNSERVED_PAUSE
from holdfast.lifecycle.states import State
from holdfast.ports.models import Claimed, ClaimRequest
from holdfast.tasks.handles import JobHandle
from holdfast.wiring import make_store, read_address
from tests.crashes.waiting import until
from tests.crashes.wrapped import Wrapped
from tests.worker.test_worker import LIMIT, types


@pytest.fixture
async def old(url: str, app: Holdfast) -> AsyncIterator[Holdfast]:
    """The app as it was before a deploy, on the same store."""
    async with Holdfast(url, unbounded_leases=True) as opened:
        yield opened


async def state_of(app: Holdfast, job: JobHandle[Any]) -> tuple[State, int, int]:
    """Read a job's state, and how many attempts and failures it has."""
    record = (await app.get(job.id)).record
    return record.state, record.attempt, record.failures


async def test_a_worker_without_a_new_task_leaves_its_jobs_alone(
    app: Holdfast, old: Holdfast
) -> None:
    @app.task
    async def fresh() -> str:
        return "done"

    @old.task
    async def seen() -> None: ...

    job = await fresh.options(retries=0).submit()
    async with old.worker():
        # Of two the older goes first: had the worker claimed it, it would be over by now.
        await (await seen.submit()).result(LIMIT)
        assert await state_of(app, job) == (State.QUEUED, 0, 0)
        async with app.worker():
            assert await job.result(LIMIT) == "done"
    assert await types(job) == ["created", "claimed", "started", "succeeded"]


class ClaimsAnything(Wrapped):
    """A store for a worker that does not say which tasks it has, as an older one."""

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Claim jobs of any task."""
        return await self.store.claim(replace(request, tasks=None))


async def test_a_job_that_its_worker_cannot_run_is_given_back_at_no_cost(
    app: Holdfast, url: str
) -> None:
    @app.task
    async def seen() -> None: ...

    job = await app.named("fresh").options(retries=0).submit()
    older = Holdfast(
        store=lambda: ClaimsAnything(make_store(read_address(url))), unbounded_leases=True
    )
    older.tasks.add(app.tasks["seen"])

    async def given_back() -> bool:
        return (await app.get(job.id)).record.state is State.STALLED

    async with older, older.worker():
        await until(given_back, "the job to be given back")
    record = (await app.get(job.id)).record
    assert (record.state, record.failures, record.releases) == (State.STALLED, 0, 0)
    assert (record.run_at or 0) - record.updated_at == UNSERVED_PAUSE
    [*_, released] = await job.events()
    assert released.cause == "this worker has no task fresh"


async def test_a_job_goes_only_to_a_worker_with_the_version_that_it_was_submitted_with(
    app: Holdfast, old: Holdfast
) -> None:
    @old.task(name="charge", version=1)
    async def first() -> str:
        return "by the first"

    @app.task(name="charge", version=2)
    async def second() -> str:
        return "by the second"

    before, after = await first.submit(), await second.submit()
    async with app.worker():
        assert await after.result(LIMIT) == "by the second"
        assert await state_of(app, before) == (State.QUEUED, 0, 0)
        why = await app.why(before.id)
        assert "has task 'charge' version '1' (there is version 2)" in why.text
        async with old.worker():
            assert await before.result(LIMIT) == "by the first"


async def test_a_job_without_a_version_is_run_by_any_version_of_its_task(
    app: Holdfast, old: Holdfast
) -> None:
    @app.task(version="2024.1")
    async def charge() -> str:
        return "done"

    versioned, plain = await charge.submit(), await old.named("charge").submit()
    assert (await app.get(versioned.id)).record.task_version == "2024.1"
    assert (await app.get(plain.id)).record.task_version is None
    async with app.worker():
        assert await versioned.result(LIMIT) == await plain.result(LIMIT) == "done"


@pytest.mark.parametrize("version", ["", "a b", "1@2", "é", "x" * 65, 1.5, True])
def test_a_version_is_a_short_plain_name(version: Any) -> None:
    app = Holdfast(":memory:")
    with pytest.raises(BadTask, match="version"):
        app.task(version=version)(state_of)


def test_a_task_is_not_named_like_a_version_of_another() -> None:
    app = Holdfast(":memory:")
    with pytest.raises(BadTask, match="must not contain '@'"):
        app.task(name="charge@2")(state_of)
