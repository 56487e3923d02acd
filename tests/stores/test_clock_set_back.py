"""A machine's clock that is set: the store's goes on, for those who wait and for those who died."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import asyncpg
import pytest

from holdfast.flow.recover import sweep
from holdfast.lifecycle.clock import RESERVE, ClockState
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import Role, State
from holdfast.lifecycle.times import SECOND, After
from holdfast.maintenance.health import examine_clock
from holdfast.ports.store import Store
from holdfast.queries.why.why import why
from holdfast.stores.findings import FindingSeverity
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite import clock as sqlite_clock
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.store_actions import claimed_ids, running_job, stored, submit_one
from tests.stores.ledgers import Ledger, assert_proven, make_ledger
from tests.stores.raw import POSTGRES, SQLITE

HOUR = 3600 * SECOND
NOW = 1_800_000_000 * SECOND
RECONCILER = Actor(Role.RECONCILER, "test")


class Machine(Protocol):
    """A machine whose clock can be set, and the stores on it."""

    async def set_clock(self, offset: int) -> None: ...

    async def store(self) -> Store: ...

    async def steps(self) -> int: ...


class SqliteMachine:
    """Every process reads the machine's clock."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._offset = 0

    async def set_clock(self, offset: int) -> None:
        self._offset = offset

    async def store(self) -> Store:
        store = SqliteStore(self._path, clock=lambda: sqlite_clock.wall_clock() + self._offset)
        await store.open()
        return store

    async def steps(self) -> int:
        async with Ledger(SQLITE, self._path).raw() as raw:
            return len(await raw.rows("SELECT * FROM clock_steps"))


class PostgresMachine:
    """Only the server's clock counts."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def set_clock(self, offset: int) -> None:
        raw = await asyncpg.connect(self._url)
        await raw.execute(
            "CREATE OR REPLACE FUNCTION holdfast.holdfast_machine_now() RETURNS bigint LANGUAGE sql"
            f" AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + {offset} $$"
        )
        await raw.close()

    async def store(self) -> Store:
        store = PostgresStore(self._url)
        await store.open()
        return store

    async def steps(self) -> int:
        async with Ledger(POSTGRES, self._url).raw() as raw:
            return len(await raw.rows("SELECT * FROM clock_steps"))


@pytest.fixture(params=[SQLITE, POSTGRES])
def machine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SqliteMachine | PostgresMachine:
    ledger = make_ledger(request, tmp_path_factory)
    made = SqliteMachine if ledger.engine == SQLITE else PostgresMachine
    return made(ledger.place)


@pytest.fixture
async def store(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Store]:
    # Look at the clock each time: a test does not wait for the next look.
    monkeypatch.setattr(sqlite_clock, "TEND_SECONDS", 0.0)
    store = await machine.store()
    await store.due()
    yield store
    await assert_proven(store)
    await store.close()


@pytest.mark.req("B8")
async def test_a_job_queued_before_the_clock_was_set_back_can_be_claimed(
    machine: Machine, store: Store
) -> None:
    job = await submit_one(store)
    await machine.set_clock(-HOUR)
    await store.due()
    assert await claimed_ids(store) == [job.id]


@pytest.mark.req("B8")
async def test_a_clock_that_is_set_right_again_brings_no_job_forward(
    machine: Machine, store: Store
) -> None:
    await submit_one(store, queue="later", run_at=After(HOUR * 2 // 3))
    due = await submit_one(store, queue="later")
    await machine.set_clock(-HOUR)
    await store.due()
    await machine.set_clock(10 * SECOND)
    for _ in range(2):
        # Before a sweep has noticed it, and afterwards.
        assert (await store.clock()).now < due.created_at + 60 * SECOND
        await store.due()
    assert await claimed_ids(store, "later") == [due.id]


@pytest.mark.req("B8")
async def test_no_time_is_given_out_twice_when_the_clock_is_set_back(
    machine: Machine, store: Store
) -> None:
    await machine.set_clock(RESERVE - SECOND)
    # The mark is not moved on: this time is only reserved.
    job = await submit_one(store)
    last = (await store.clock()).now
    await machine.set_clock(-HOUR)
    other = await machine.store()
    for one in (store, other):
        # Before a sweep has noticed it, and afterwards.
        times = [job.created_at, last, (await one.clock()).now, (await submit_one(one)).created_at]
        await one.due()
        times += [(await one.clock()).now, (await submit_one(one)).created_at]
        assert times == sorted(times)
        assert times[-1] < last + 60 * SECOND
    await other.close()


@pytest.mark.req("B8")
async def test_a_dead_workers_job_is_found_after_the_clock_was_set_back(
    machine: Machine, store: Store
) -> None:
    job = await running_job(store)
    await machine.set_clock(-HOUR)
    await store.due()
    ends = (job.lease_expires_at or 0) - (await store.clock()).now
    assert 0 < ends <= job.policy.running_lease + 10 * SECOND
    # A tenth of the time is taken to let the machine's clock catch up.
    await machine.set_clock(-HOUR + job.policy.running_lease * 2)
    await sweep(store, RECONCILER, jitter=lambda: 0.5)
    assert (await stored(store, job.id)).state is State.STALLED


async def test_a_clock_that_was_set_back_while_nobody_ran_goes_on_after_the_restart(
    machine: Machine, store: Store
) -> None:
    before = await store.clock()
    job = await submit_one(store)
    await machine.set_clock(-HOUR)
    restarted = await machine.store()
    await restarted.due()
    after = await restarted.clock()
    assert before.now <= after.now < before.now + HOUR // 2
    assert HOUR - 60 * SECOND < after.ahead <= HOUR + RESERVE
    assert await claimed_ids(restarted) == [job.id]
    # All processes agree, also one that began before.
    await store.due()
    assert abs((await store.clock()).now - (await restarted.clock()).now) < 60 * SECOND
    await restarted.close()


async def test_even_before_a_sweep_notices_it_the_clock_does_not_go_behind_its_mark(
    machine: Machine, store: Store
) -> None:
    before = (await store.clock()).now
    await machine.set_clock(-HOUR)
    other = await machine.store()
    assert (await other.clock()).now > before - 60 * SECOND
    await other.close()


async def test_the_shift_shrinks_until_the_machines_clock_has_caught_up(
    machine: Machine, store: Store
) -> None:
    await machine.set_clock(-HOUR)
    await store.due()
    await machine.set_clock(9 * HOUR + 60 * SECOND)
    clock = await store.clock()
    assert clock.ahead == 0


async def test_a_clock_that_is_a_day_ahead_for_a_moment_takes_the_store_nowhere(
    machine: Machine, store: Store
) -> None:
    before = (await store.clock()).now
    await machine.set_clock(24 * HOUR)
    await store.due()
    await machine.set_clock(0)
    await store.due()
    clock = await store.clock()
    assert before <= clock.now < before + HOUR
    assert (clock.ahead, clock.step) == (0, None)


async def test_a_step_back_is_noted_once_and_told(machine: Machine, store: Store) -> None:
    assert (await examine_clock(store)).verdict is FindingSeverity.OK
    job = await submit_one(store, queue="nobody serves it")
    await machine.set_clock(-HOUR)
    other = await machine.store()
    for one in (other, store, other):
        await one.due()
    clock = await store.clock()
    assert await machine.steps() == 1
    step = clock.step
    assert step is not None
    assert abs(step.by - HOUR) < 60 * SECOND
    finding = await examine_clock(store)
    assert finding.verdict is FindingSeverity.WARNING
    assert "set back by 3,6" in finding.text or "set back by 3,5" in finding.text
    answer = await why(store, job.id)
    assert "clock_set_back" in [reason.code for reason in answer.also]
    await other.close()


@pytest.mark.parametrize("machine", [POSTGRES], indirect=True)
async def test_the_mark_is_not_written_by_every_sweep(machine: Any, store: Store) -> None:
    raw = await asyncpg.connect(machine._url)
    written = "SELECT xmin::text FROM holdfast.store_clock"
    before = await raw.fetchval(written)
    for _ in range(5):
        await store.due()
        await submit_one(store)
    assert await raw.fetchval(written) == before
    await raw.close()


@pytest.mark.parametrize("machine", [POSTGRES], indirect=True)
@pytest.mark.parametrize(
    "state",
    [
        ClockState(),
        ClockState(1_900_000_000 * SECOND),
        ClockState(5, HOUR, 1_700_000_000 * SECOND),
        ClockState(5, HOUR, 1_900_000_000 * SECOND),
        ClockState(NOW - 5, HOUR, NOW - HOUR),
        ClockState(NOW + HOUR - 5, HOUR, NOW),
        ClockState(NOW - 5, 50 * SECOND, NOW),
        ClockState(5, 40 * 365 * 24 * HOUR, 1_700_000_000 * SECOND),
    ],
)
async def test_the_servers_function_is_the_law(
    machine: Any, store: Store, state: ClockState
) -> None:
    now = NOW
    raw = await asyncpg.connect(machine._url, server_settings={"search_path": "holdfast"})
    await raw.execute(
        "CREATE OR REPLACE FUNCTION holdfast_machine_now() RETURNS bigint LANGUAGE sql"
        f" AS $$ SELECT {now}::bigint $$"
    )
    values = (state.mark, state.shift, state.since)
    await raw.execute("UPDATE store_clock SET mark = $1, shift = $2, since = $3", *values)
    assert await raw.fetchval("SELECT holdfast_now()") == state.now(now)
    await raw.close()
