"""What was found written is acknowledged only once the synchronous standby has it.

A repeated request writes nothing, so no commit of its own would wait for the standby. The row that
it finds may be on the primary alone: the wait of whoever wrote it may have been cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.errors import StoreUnavailable
from holdfast.flow import cancel, hold, signal
from holdfast.flow.redrive import discard, redrive
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import State
from holdfast.lifecycle.times import After
from holdfast.ports.store import Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.testing.factories import (
    CONTROL,
    fresh,
    new_token,
    new_webhook,
)
from holdfast.testing.store_actions import claimed_job, job_in, running_job, stored, submit_one
from holdfast.worker_protocol.apply_reports import apply_reports
from holdfast.worker_protocol.reports import CompleteReport, StartReport
from tests.stores.ledgers import assert_proven, postgres_store
from tests.stores.standby import ONE_TRY, TWO_TRIES, interrupt_wait, standby_away
from tests.support.postgres import PostgresCluster

Act: TypeAlias = Callable[[Store], Awaitable[Any]]
NEXT_TRANSACTION = "SELECT pg_snapshot_xmax(pg_current_snapshot())"


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresCluster]:
    """A server that can be told to wait for a standby that is away."""
    with PostgresCluster({"fsync": "off"}) as cluster:
        yield cluster


@pytest.fixture
async def url(primary: PostgresCluster) -> AsyncIterator[str]:
    url = primary.create_database()
    await migrate(url)
    yield url
    primary.drop_database(url)


async def _cancel(store: Store) -> Act:
    job = await submit_one(store)
    return lambda store: cancel.cancel(store, job.id, CONTROL)


async def _hard_cancel(store: Store) -> Act:
    job = await submit_one(store)
    return lambda store: cancel.cancel(store, job.id, CONTROL, hard=True)


async def _cancel_by_request(store: Store) -> Act:
    job, request_id = await running_job(store), fresh("request")
    return lambda store: cancel.cancel(store, job.id, CONTROL, request_id=request_id)


async def _cancel_that_was_requested(store: Store) -> Act:
    job = await running_job(store)
    return lambda store: cancel.cancel(store, job.id, CONTROL)


async def _signal(store: Store) -> Act:
    job, request_id = await submit_one(store), fresh("request")
    return lambda store: signal.signal(store, job.id, CONTROL, "go", request_id=request_id)


async def _hold(store: Store) -> Act:
    job = await submit_one(store)
    return lambda store: hold.hold(store, job.id, CONTROL)


async def _unhold(store: Store) -> Act:
    job = await submit_one(store)
    return lambda store: hold.unhold(store, job.id, CONTROL)


async def _reschedule(store: Store) -> Act:
    job, request_id = await submit_one(store), fresh("request")
    return lambda store: hold.reschedule(store, job.id, CONTROL, After(0), request_id=request_id)


async def _redrive(store: Store) -> Act:
    job = await job_in(store, State.DEAD_LETTERED)
    return lambda store: redrive(store, job.id, CONTROL)


async def _discard(store: Store) -> Act:
    job = await job_in(store, State.DEAD_LETTERED)
    return lambda store: discard(store, job.id, CONTROL)


def _reporting(job: Job, word: StartReport | CompleteReport) -> Act:
    async def act(store: Store) -> list[Any]:
        heard = await apply_reports(store, job.owner or "", [word], await store.get([job.id]))
        assert heard[0].error is None
        return heard

    return act


async def _report_start(store: Store) -> Act:
    job = await claimed_job(store)
    return _reporting(job, StartReport(internal_id=job.id, attempt=job.attempt))


async def _report_end(store: Store) -> Act:
    job = await running_job(store)
    return _reporting(job, CompleteReport(internal_id=job.id, attempt=job.attempt))


async def _nothing_decided_under_the_lock(store: Store) -> Act:
    job = await submit_one(store)
    return lambda store: store.commit_locked(job.id, lambda *_: [])


async def _pause(store: Store) -> Act:
    return lambda store: store.pause("default", actor="ann")


async def _pause_by_request(store: Store) -> Act:
    return lambda store: store.pause("default", actor="ann", request_id="once")


async def _resume(store: Store) -> Act:
    return lambda store: store.resume("default", actor="ann")


async def _add_token(store: Store) -> Act:
    token = new_token()
    return lambda store: store.add_token(token)


async def _revoke_token(store: Store) -> Act:
    token = await store.add_token(new_token())
    return lambda store: store.revoke_token(token.id, actor="ann")


async def _add_webhook(store: Store) -> Act:
    hook = new_webhook()
    return lambda store: store.add_webhook(hook)


async def _remove_webhook(store: Store) -> Act:
    hook = await store.add_webhook(new_webhook())
    return lambda store: store.remove_webhook(hook.id, tenant=hook.tenant, actor="ann")


async def _quarantine(store: Store) -> Act:
    job = await submit_one(store)
    return lambda store: store.quarantine([job.id], reason="damaged")


async def _release_quarantined(store: Store) -> Act:
    job = await submit_one(store)
    return lambda store: store.release_quarantined([job.id])


ACTS = [
    _cancel,
    _hard_cancel,
    _cancel_by_request,
    _cancel_that_was_requested,
    _signal,
    _hold,
    _unhold,
    _reschedule,
    _redrive,
    _discard,
    _report_start,
    _report_end,
    _nothing_decided_under_the_lock,
    _pause,
    _pause_by_request,
    _resume,
    _add_token,
    _revoke_token,
    _add_webhook,
    _remove_webhook,
    _quarantine,
    _release_quarantined,
]


@pytest.mark.req("B4", "E2")
@pytest.mark.parametrize("make", ACTS, ids=lambda make: make.__name__.strip("_"))
async def test_a_repeated_request_is_acknowledged_only_once_the_standby_has_what_it_repeats(
    primary: PostgresCluster, url: str, make: Callable[[Store], Awaitable[Act]]
) -> None:
    async with postgres_store(url) as store, postgres_store(url, **TWO_TRIES) as brief:
        act = await make(store)
        await act(store)
        await brief.clock()
        async with standby_away(primary):
            with pytest.raises(StoreUnavailable):
                await act(brief)
        await act(store)
        if make is not _quarantine:
            await assert_proven(store)


@pytest.mark.req("B4", "E2")
async def test_a_cancel_that_only_the_primary_has_is_not_acknowledged_to_another_process(
    primary: PostgresCluster, url: str
) -> None:
    async with (
        postgres_store(url) as store,
        postgres_store(url, **ONE_TRY) as impatient,
        postgres_store(url, **TWO_TRIES) as brief,
    ):
        job = await submit_one(store)
        async with standby_away(primary):
            first = asyncio.create_task(cancel.cancel(impatient, job.id, CONTROL))
            await interrupt_wait(primary, "pg_cancel_backend")
            with pytest.raises(StoreUnavailable):
                await first
            assert (await stored(store, job.id)).state is State.CANCELLED
            with pytest.raises(StoreUnavailable):
                await cancel.cancel(brief, job.id, CONTROL)


@pytest.mark.req("B4", "E2")
async def test_a_callers_transaction_waits_for_the_standby_when_its_submit_found_the_job(
    primary: PostgresCluster, url: str
) -> None:
    async with Holdfast(url) as app:

        @app.task
        async def ship(number: int) -> None: ...

        await ship.options(job_id="order-7").submit(7)
        caller = await asyncpg.connect(url)
        async with standby_away(primary):
            transaction = caller.transaction()
            await transaction.start()
            await ship.options(job_id="order-7").submit_in(caller, 7)
            with pytest.raises(TimeoutError):
                await caller.execute("COMMIT", timeout=0.4)
        await caller.close()


@pytest.mark.req("B4")
async def test_without_a_synchronous_standby_a_found_answer_writes_nothing(
    primary: PostgresCluster, url: str
) -> None:
    async with postgres_store(url) as store:
        job = await submit_one(store)
        await cancel.cancel(store, job.id, CONTROL)
        before = primary.sql(NEXT_TRANSACTION)
        await cancel.cancel(store, job.id, CONTROL)
        assert primary.sql(NEXT_TRANSACTION) == before
