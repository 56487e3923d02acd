"""A clock that was a day ahead for a moment: what it wrote is found and repaired by events."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.flow.recover import sweep
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import EventType, Role, State
from holdfast.lifecycle.times import SECOND
from holdfast.maintenance.health import examine_times
from holdfast.maintenance.repair_times import repair_times
from holdfast.ports.models import Announcement
from holdfast.ports.store import Store
from holdfast.queries.times_ahead import find_jobs_ahead
from holdfast.queries.why.why import why
from holdfast.stores.findings import FindingSeverity
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import claimed_ids, do, running_job, stored, submit_one
from tests.stores.ledgers import assert_proven, make_ledger
from tests.stores.raw import POSTGRES, SQLITE
from tests.stores.test_clock_set_back import Machine, PostgresMachine, SqliteMachine

DAY = 24 * 3600 * SECOND
RECONCILER = Actor(Role.RECONCILER, "operator")


@pytest.fixture(params=[SQLITE, POSTGRES])
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SqliteMachine | PostgresMachine:
    ledger = make_ledger(request, tmp_path_factory)
    made = SqliteMachine if ledger.engine == SQLITE else PostgresMachine
    return made(ledger.place)


@pytest.fixture
async def store(machine: Machine) -> AsyncIterator[Store]:
    store = await machine.store()
    await store.due()
    yield store
    await assert_proven(store)
    await store.close()


async def test_a_job_submitted_while_the_clock_was_ahead_can_be_claimed_after_the_repair(
    machine: Machine, store: Store
) -> None:
    await machine.set_clock(DAY)
    job = await submit_one(store)
    await machine.set_clock(0)
    assert await claimed_ids(store) == []
    assert (await examine_times(store)).verdict is FindingSeverity.WARNING
    assert "times_ahead" in [reason.code for reason in (await why(store, job.id)).also]

    report = await repair_times(store, "operator", jitter=lambda: 0.5)

    assert (report.found, report.rescheduled, report.left) == (1, 1, {})
    assert await claimed_ids(store) == [job.id]
    events = await store.events(job.id)
    assert [event.type for event in events][1] is EventType.RESCHEDULED
    assert events[1].at >= events[0].at, "within a job time never goes back"


async def test_a_dead_owners_job_claimed_while_the_clock_was_ahead_is_taken_back(
    machine: Machine, store: Store
) -> None:
    await machine.set_clock(DAY)
    job = await running_job(store)
    await machine.set_clock(0)
    job = await do(store, job, c.Heartbeat(actor=owner_of(job)))
    await sweep(store, RECONCILER, jitter=lambda: 0.5)
    assert (await stored(store, job.id)).state is State.RUNNING

    report = await repair_times(store, "operator", jitter=lambda: 0.5)

    assert (report.taken, report.rescheduled, report.left) == (1, 1, {})
    now, job = (await store.clock()).now, await stored(store, job.id)
    assert job.state is State.STALLED
    assert (job.run_at or 0) <= now + job.policy.backoff_max


async def test_a_live_owner_keeps_its_job(machine: Machine, store: Store) -> None:
    await machine.set_clock(DAY)
    job = await running_job(store)
    await machine.set_clock(0)
    owner = job.owner or ""
    worker = Announcement(name=owner, queues=("default",), host="h", pid=1, concurrency=1)
    await store.announce(worker)
    report = await repair_times(store, "operator", jitter=lambda: 0.5)
    assert list(report.left) == [job.id]
    assert (await stored(store, job.id)).owner == owner


async def test_a_heartbeat_alone_in_the_wrong_moment_is_found_too(
    machine: Machine, store: Store
) -> None:
    # A lease that is long enough to live through the moment.
    job = await running_job(store, policy=Policy(lease=2 * DAY, heartbeat=2 * DAY))
    await machine.set_clock(DAY)
    job = await do(store, job, c.Heartbeat(actor=owner_of(job)))
    await machine.set_clock(0)
    assert [one.id async for one in find_jobs_ahead(store)] == []
    assert [one.id async for one in find_jobs_ahead(store, owned=True)] == [job.id]


async def test_a_due_time_that_may_be_an_instant_is_left(machine: Machine, store: Store) -> None:
    await machine.set_clock(DAY)
    now = (await store.clock()).now
    job = await submit_one(store, run_at=now + DAY)
    await machine.set_clock(0)
    report = await repair_times(store, "operator", jitter=lambda: 0.5)
    assert list(report.left) == [job.id]


async def test_nothing_is_repaired_where_the_clock_was_right(store: Store) -> None:
    job = await submit_one(store, run_at=(await store.clock()).now + DAY)
    assert "times_ahead" not in [reason.code for reason in (await why(store, job.id)).also]
    await running_job(store)
    report = await repair_times(store, "operator", jitter=lambda: 0.5)
    assert report.found == 0
    assert (await examine_times(store)).verdict is FindingSeverity.OK
