"""Jobs that a sweep may not touch must not hide those that it must see to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.flow.recover import sweep
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.states import EventType, State
from holdfast.lifecycle.times import After
from holdfast.ports.store import Store
from holdfast.testing.factories import HOUR, RECONCILER, SHORT_RUN
from holdfast.testing.store_actions import passed, running_job, stored, submit_one
from holdfast.wiring import opened, read_address

OVERDUE = Policy(max_attempts=6, timeout=1)
COMMAND = Policy(max_attempts=1, on_silence="lose", heartbeat=1, idempotent=False)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store of either engine."""
    if request.param == "sqlite":
        return str(tmp_path / "jobs.db")
    return str(request.getfixturevalue("empty_postgres_url"))


@pytest_asyncio.fixture
async def store(place: str) -> AsyncIterator[Store]:
    async with opened(read_address(place)) as store:
        yield store


async def test_runs_past_their_timeout_do_not_hide_a_lost_lease(store: Store) -> None:
    await running_job(store, policy=OVERDUE)
    overdue = await running_job(store, policy=OVERDUE)
    lost = await running_job(store, policy=SHORT_RUN, owner="worker-2")
    await passed(store, overdue.timeout_at)
    await passed(store, lost.lease_expires_at)
    report = await sweep(store, RECONCILER, jitter=lambda: 0.0, limit=2)
    assert report.written == {EventType.STALLED: 1}
    assert (await stored(store, lost.id)).state is State.STALLED


async def test_a_run_past_its_timeout_is_due_only_when_its_owner_is_silent(store: Store) -> None:
    overdue = await running_job(store, policy=OVERDUE)
    await passed(store, overdue.timeout_at)
    assert (await store.due()).jobs == []
    silent = await running_job(store, policy=Policy(max_attempts=6, timeout=1, heartbeat=1))
    await passed(store, silent.lease_expires_at)
    assert [job.id for job in (await store.due()).jobs] == [silent.id]


async def test_commands_left_to_their_host_do_not_hide_a_lost_lease(store: Store) -> None:
    for _ in range(5):
        await running_job(store, policy=COMMAND, owner="host")
    lost = await running_job(store, policy=SHORT_RUN, owner="worker-2")
    await passed(store, lost.lease_expires_at)
    report = await sweep(store, RECONCILER, jitter=lambda: 0.0, limit=2)
    assert report.written == {EventType.STALLED: 1}


async def test_claims_are_looked_at_oldest_first(store: Store) -> None:
    older, newer = [
        await running_job(store, policy=Policy(lease=HOUR, heartbeat=1)) for _ in range(2)
    ]
    await passed(store, newer.lease_expires_at)
    # The first look moves each claim to when its own lease passes, whatever it was before.
    await store.due()
    assert [job.id for job in (await store.due(limit=1)).jobs] == [older.id]


async def test_more_untouchable_jobs_than_a_sweep_first_looks_at_hide_no_lost_lease(
    store: Store,
) -> None:
    for _ in range(40):
        await running_job(store, policy=COMMAND, owner="host")
    lost = await running_job(store, policy=SHORT_RUN, owner="worker-2")
    await passed(store, lost.lease_expires_at)
    # One sweep, whose limit doubled four times is still less than what is in its way.
    report = await sweep(store, RECONCILER, jitter=lambda: 0.0, limit=2)
    assert report.written == {EventType.STALLED: 1}


async def test_more_untouchable_deadlines_than_a_sweep_first_looks_at_hide_no_other(
    store: Store,
) -> None:
    # Past their deadline, with live owners, who are to kill them.
    for _ in range(40):
        late = await running_job(store, deadline_at=After(1))
        await passed(store, late.deadline_at)
    waiting = await submit_one(store, deadline_at=After(1))
    await passed(store, waiting.deadline_at)
    report = await sweep(store, RECONCILER, jitter=lambda: 0.0, limit=2)
    assert report.written == {EventType.TIMED_OUT: 1}


async def test_commands_left_to_their_host_are_not_looked_at_in_every_sweep(store: Store) -> None:
    jobs = [await running_job(store, policy=COMMAND, owner="host") for _ in range(5)]
    await passed(store, jobs[-1].lease_expires_at)
    assert len((await store.due()).jobs) == 5
    assert (await store.due()).jobs == []
