"""Commits that landed unheard, or were answered when their job had been given up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import Context
from holdfast.app.app import Holdfast
from holdfast.errors import StoreUnavailable
from holdfast.lifecycle.record import Change, Job
from holdfast.lifecycle.states import EventType
from holdfast.ports.models import Committed, Outcome
from holdfast.wiring import make_store, read_address
from holdfast.worker.owned_job import OwnedJob
from holdfast.worker.stop import Stopper
from tests.crashes.waiting import until
from tests.crashes.wrapped import Wrapped
from tests.worker.test_worker import LIMIT, types

LEASES: dict[str, Any] = {"lease": "2s", "heartbeat": "1s"}


class Unheard(Wrapped):
    """A store whose first commit of a kind lands, and fails once the worker has seen its work."""

    kind: EventType
    learned: set[int]
    lost = 0

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Write; the line is dead before the reply comes."""
        outcomes = await self.store.commit(changes)
        last = outcomes[-1]
        if self.kind in {change.event.type for change in changes} and not type(self).lost:
            type(self).lost += 1
            assert isinstance(last, Committed)
            await until(lambda: last.job.rev in self.learned, "others to show what was written")
            raise StoreUnavailable("the reply was lost")
        return outcomes


@pytest.mark.req("C6")
@pytest.mark.parametrize("kind", [EventType.STEP_COMPLETED, EventType.SUCCEEDED])
async def test_what_landed_unheard_is_not_written_again_though_its_record_is_known(
    app: Holdfast, url: str, kind: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: set[int] = set()
    learn = OwnedJob.learn

    def note(job: OwnedJob, record: Job) -> None:
        learn(job, record)
        learned.add(record.rev)

    monkeypatch.setattr(OwnedJob, "learn", note)

    class Deaf(Unheard):
        pass

    Deaf.kind, Deaf.learned = kind, learned
    troubled = Holdfast(store=lambda: Deaf(make_store(read_address(url))), unbounded_leases=True)

    @troubled.task(**LEASES)
    async def pays(ctx: Context) -> int:
        return await ctx.step("pay", lambda: 7) if kind is EventType.STEP_COMPLETED else 7

    async with troubled, troubled.worker(tick="50ms", poll="50ms") as worker:
        job = await pays.submit()
        assert await job.result(LIMIT) == 7
        told = await types(job)
    assert Deaf.lost == 1
    assert told.count("step_completed") == (kind is EventType.STEP_COMPLETED)
    assert (told.count("claimed"), told.count("succeeded")) == (1, 1)
    assert worker.meters.fences == 0, "what landed was not refused"


class HeldUp(Wrapped):
    """A store in which nothing of attempts is written until one of them is given up."""

    given_up: asyncio.Event

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Wait with what owners say; the keeper's words never come through."""
        kinds = {change.event.type for change in changes}
        if EventType.STEP_COMPLETED in kinds:
            await self.given_up.wait()
        elif EventType.LEASE_RENEWED in kinds:
            raise StoreUnavailable("nobody answers the keeper")
        return await self.store.commit(changes)


async def test_a_commit_answered_after_its_job_was_given_up_is_no_second_loss(
    app: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    HeldUp.given_up = asyncio.Event()
    lose = Stopper.lose

    def note(stopper: Stopper, job: OwnedJob, why: str) -> None:
        lose(stopper, job, why)
        HeldUp.given_up.set()

    monkeypatch.setattr(Stopper, "lose", note)
    troubled = Holdfast(store=lambda: HeldUp(make_store(read_address(url))), unbounded_leases=True)

    @troubled.task(lease="500ms", heartbeat="250ms", backoff="1ms", retries=5)
    async def steps(ctx: Context) -> int:
        return await ctx.step("one", lambda: 7) if ctx.attempt == 1 else 8

    async with troubled, troubled.worker(tick="50ms", poll="50ms") as worker:
        job = await steps.submit()
        assert await job.result(LIMIT) == 8
    assert worker.failed is None
    assert worker.meters.fences == job.record.attempt - 1
