"""The loop of sweeps: finds what is lost, outlives trouble, ends when told to."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.admission.book import Book
from holdfast.admission.verdicts import Decision
from holdfast.errors import BadPolicy, StoreUnavailable
from holdfast.flow import admit
from holdfast.flow.recover import Swept
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import EventType, Retention, State
from holdfast.ports.models import Due
from holdfast.ports.store import Store
from holdfast.services.reconciler import LOOK_EVERY, Reconciler
from holdfast.telemetry import Meters
from holdfast.testing.store_actions import job_in, stored
from holdfast.wiring import opened, read_address
from tests.flow.families import states, waiting_parent
from tests.flow.policies import DENIES, OPEN, submitted
from tests.flow.test_decide_admission import ASKS
from tests.flow.test_recover import lost_run


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A store in a file, so that another process can sweep it."""
    async with opened(read_address(str(tmp_path / "jobs.db"))) as opened_store:
        yield opened_store


class Troubled:
    """A store whose database is away for the first looks."""

    def __init__(self, store: Store, times: int) -> None:
        """Fail so many times."""
        self._store, self._left = store, times

    def __getattr__(self, name: str) -> Any:
        """All else is the store's."""
        return getattr(self._store, name)

    async def due(self, *, limit: int = 500) -> Due:
        """Fail first, then answer."""
        if self._left:
            self._left -= 1
            raise StoreUnavailable("away") if self._left % 2 else RuntimeError("odd")
        return await self._store.due(limit=limit)


async def run_until_written(store: Any, meters: Meters | None = None) -> Reconciler:
    """Run the loop until a sweep wrote something."""

    def seen(report: Swept) -> None:
        if report.written:
            reconciler.stop()

    reconciler = Reconciler(
        store, "r", jitter=lambda: 0.0, tick_seconds=0.01, on_sweep=seen, meters=meters
    )
    await asyncio.wait_for(reconciler.run(), 10)
    return reconciler


async def test_the_loop_finds_a_lost_job(store: Store) -> None:
    await lost_run(store)
    reconciler = await run_until_written(store)
    assert reconciler.written == 1


async def test_a_sweep_wakes_a_parent_whose_tender_died_before_it_could(store: Store) -> None:
    # Its last child has ended, and whoever ended it died between that and the wake.
    parent, _ = await waiting_parent(store, State.SUCCEEDED)
    reconciler = Reconciler(store, "r", jitter=lambda: 0.0)
    await reconciler.sweep()

    assert await states(store, parent) == [State.QUEUED]
    assert reconciler.written == 1


async def test_now_and_then_a_sweep_looks_at_families_that_are_not_marked(store: Store) -> None:
    parent, _ = await waiting_parent(store, State.SUCCEEDED)
    await store.unmark(await store.marked())
    reconciler = Reconciler(store, "r", jitter=lambda: 0.0)
    for _ in range(LOOK_EVERY - 1):
        await reconciler.sweep()
    assert await states(store, parent) == [State.WAITING]
    await reconciler.sweep()

    assert await states(store, parent) == [State.QUEUED]


async def test_trouble_is_waited_out_and_told(store: Store) -> None:
    await lost_run(store)
    reconciler = await run_until_written(Troubled(store, 3))
    assert reconciler.health.last_error is not None
    assert reconciler.health.failures_in_a_row == 0


@pytest.mark.req("B22")
async def test_sweeps_and_lost_leases_are_counted(store: Store) -> None:
    meters = Meters()
    job = await lost_run(store)
    await run_until_written(Troubled(store, 3), meters)
    assert (meters.sweeps, meters.sweep_failures, meters.expiries) == (1, 3, 1)
    assert meters.lane(job.task, job.queue).events[EventType.STALLED.code] == 1
    assert meters.pulses["reconciler"].stopped, "it ended in order"


class Killed(BaseException):
    """What no loop catches."""


class Deadly(Troubled):
    """A store that ends whoever looks."""

    async def due(self, *, limit: int = 500) -> Due:
        """Kill."""
        raise Killed


async def test_a_loop_that_died_is_missed_and_one_that_was_cancelled_is_not(store: Store) -> None:
    meters = Meters()
    with pytest.raises(Killed):
        await Reconciler(
            cast(Store, Deadly(store, 0)), "r", jitter=lambda: 0.0, meters=meters
        ).run()
    assert not meters.pulses["reconciler"].stopped
    looping = asyncio.create_task(Reconciler(store, "r", jitter=lambda: 0.0, meters=meters).run())
    await asyncio.sleep(0)
    looping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looping
    assert meters.pulses["reconciler"].stopped


async def test_a_stopped_loop_ends_though_nothing_is_due(store: Store) -> None:
    reconciler = Reconciler(store, "r", jitter=lambda: 0.0, tick_seconds=60)
    task = asyncio.create_task(reconciler.run())
    await asyncio.sleep(0)
    reconciler.stop()
    await asyncio.wait_for(task, 10)


def reconcile(place: str, *words: str) -> list[str]:
    """The command, as a process."""
    return [sys.executable, "-m", "holdfast.cli", "reconcile", "--url", place, *words]


async def test_the_command_sweeps_once_and_says_what_it_did(store: Store, tmp_path: Path) -> None:
    await lost_run(store)
    place = str(tmp_path / "jobs.db")
    done = await asyncio.to_thread(
        subprocess.run,
        reconcile(place, "--once", "--json"),
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert (answer.pop("written"), answer.pop("failed")) == ({"job_stalled": 1}, {})
    assert set(answer.values()) == {0}


async def test_the_command_cleans_what_is_over_and_keeps_the_rest(
    store: Store, tmp_path: Path
) -> None:
    won = await job_in(store, State.SUCCEEDED)
    failed = await job_in(store, State.FAILED)
    words = ("--once", "--json", "--keep", "0s", "--keep-unsuccessful", "forever")
    place = str(tmp_path / "jobs.db")
    done = await asyncio.to_thread(
        subprocess.run, reconcile(place, *words), capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert (told["cleaned"], told["erased"], told["heartbeats"]) == (1, 2, 0)
    retention = [(await stored(store, job.id)).retention for job in (won, failed)]
    assert retention == [Retention.CLEANED, Retention.LIVE]
    bad = await asyncio.to_thread(
        subprocess.run, reconcile(place, "--keep", "long"), capture_output=True, text=True
    )
    assert (bad.returncode, "--keep must be a span" in bad.stderr) == (2, True)


async def test_the_command_ends_on_sigterm_after_its_sweep(store: Store, tmp_path: Path) -> None:
    await lost_run(store)
    place = str(tmp_path / "jobs.db")
    process = await asyncio.create_subprocess_exec(
        *reconcile(place, "--json"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 20)
    assert json.loads(line)["written"] == {"job_stalled": 1}
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 10) == 0


async def until_swept(reconciler: Reconciler, times: int) -> None:
    """Wait until it has swept so many times."""
    async with asyncio.timeout(30):
        while reconciler.sweeps < times:  # noqa: ASYNC110  it gives no signal
            await asyncio.sleep(0.01)


class Hanging:
    """A kernel that never answers."""

    def __init__(self) -> None:
        """Nobody has asked it yet."""
        self.asked = asyncio.Event()
        self.left = False

    async def ask(self, book: Book, variables: Mapping[str, Any], job: JobId) -> Decision:
        """Wait until the asker gives up."""
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left = True
        raise AssertionError("unreachable")


@pytest.mark.req("A13")
async def test_a_kernel_that_hangs_stops_no_other_sweep_and_is_left_at_the_end(
    store: Store,
) -> None:
    await store.apply_policy(ASKS, actor="ann")
    held = await submitted(store)
    kernel = Hanging()
    reconciler = Reconciler(store, "r", tick_seconds=0.01, kernel=kernel)
    running = asyncio.create_task(reconciler.run())
    await asyncio.wait_for(kernel.asked.wait(), 30)
    lost = await lost_run(store)

    await until_swept(reconciler, reconciler.sweeps + 3)
    assert (await store.get([lost.id]))[0] != lost
    assert (await store.get([held.id]))[0] == held
    reconciler.stop()
    await asyncio.wait_for(running, 30)
    assert kernel.left


@pytest.mark.req("A13")
async def test_a_policy_that_cannot_be_read_stops_nothing_that_does_not_need_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(store: Store) -> None:
        raise BadPolicy("expressions need the extra 'policy'")

    await store.apply_policy(
        ASKS + DENIES.removeprefix(OPEN).replace("deploy", "ship"), actor="ann"
    )
    waits, denied = await submitted(store), await submitted(store, task="ship")
    # What a process lacks whose installation has no extra for expressions.
    monkeypatch.setattr(admit, "current_book", unreadable)

    await Reconciler(store, "r").sweep()

    found = await store.get([waits.id, denied.id])
    assert [job and job.state for job in found] == [State.PENDING, State.DENIED]


@pytest.mark.req("A13")
async def test_a_pass_that_admitted_is_followed_by_the_next_at_once(store: Store) -> None:
    await store.apply_policy(DENIES, actor="ann")
    job = await submitted(store)
    reconciler = Reconciler(store, "r", tick_seconds=600)
    running = asyncio.create_task(reconciler.run())

    await until_swept(reconciler, 2)

    reconciler.stop()
    await asyncio.wait_for(running, 30)
    [found] = await store.get([job.id])
    assert found is not None
    assert found.state is State.DENIED
