"""The loop that cleans: goes through all jobs, outlives trouble, ends when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.flow.clean import CleanSweep, RetentionTerms
from holdfast.flow.purge import Purged, PurgeTerms
from holdfast.lifecycle.states import Retention, State
from holdfast.ports.models import Aged
from holdfast.ports.store import Store
from holdfast.services import janitor as janitor_module
from holdfast.services import loop
from holdfast.services.janitor import Janitor
from holdfast.telemetry import Meters
from holdfast.testing.store_actions import all_jobs, job_in, submit_one
from holdfast.wiring import Address, opened

AT_ONCE = RetentionTerms(succeeded=0, unsuccessful=0)
LIMIT_SECONDS = 20


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with opened(Address(engine="sqlite", place=":memory:")) as opened_store:
        yield opened_store


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody rest."""
    for name in ("BUSY_SECONDS", "IDLE_SECONDS", "PASS_SECONDS"):
        monkeypatch.setattr(janitor_module, name, 0.001)
    monkeypatch.setattr(loop, "LONGEST_PAUSE_SECONDS", 0.001)


class Troubled:
    """A store whose database is away for the first looks."""

    def __init__(self, store: Store, times: int) -> None:
        self._store, self._left = store, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def aged(self, **wishes: Any) -> Aged:
        if self._left:
            self._left -= 1
            raise StoreUnavailable("away") if self._left % 2 else RuntimeError("odd")
        return await self._store.aged(**wishes)


async def run_until_all_clean(store: Any, meters: Meters, **wishes: Any) -> Janitor:
    """Run the loop until it has gone through all and has nothing left to do."""

    def seen(report: CleanSweep) -> None:
        if report.next is None:
            janitor.stop()

    janitor = Janitor(store, "j", AT_ONCE, on_look=seen, meters=meters, **wishes)
    await asyncio.wait_for(janitor.run(), LIMIT_SECONDS)
    return janitor


@pytest.mark.usefixtures("_impatient")
async def test_the_loop_purges_records_whose_term_is_over_stretch_after_stretch(
    store: Store,
) -> None:
    jobs = [await job_in(store, State.SUCCEEDED) for _ in range(5)]
    # The store keeps the job of its newest event; the janitor's own events are soon older.
    left = await submit_one(store)
    meters = Meters()
    janitor: Janitor

    def seen(report: Purged) -> None:
        if meters.purged >= len(jobs) - 1:
            janitor.stop()

    janitor = Janitor(
        store,
        "j",
        AT_ONCE,
        purge_terms=PurgeTerms(succeeded=0),
        look_at=2,
        on_purge=seen,
        meters=meters,
    )
    await asyncio.wait_for(janitor.run(), LIMIT_SECONDS)

    assert len(await all_jobs(store)) <= 2
    assert await store.get([left.id]) != [None]
    assert sum(entry.jobs for entry in await store.purges()) == meters.purged


@pytest.mark.usefixtures("_impatient")
async def test_the_loop_cleans_stretch_after_stretch(store: Store) -> None:
    for _ in range(5):
        await job_in(store, State.SUCCEEDED)
    meters = Meters()
    await run_until_all_clean(store, meters, look_at=2)

    assert {job.retention for job in await all_jobs(store)} == {Retention.CLEANED}
    assert meters.cleaned == 5
    assert meters.pulses["janitor"].stopped, "it ended in order"


@pytest.mark.usefixtures("_impatient")
async def test_trouble_is_waited_out_and_told(store: Store) -> None:
    await job_in(store, State.SUCCEEDED)
    janitor = await run_until_all_clean(Troubled(store, 3), Meters())

    assert {job.retention for job in await all_jobs(store)} == {Retention.CLEANED}
    assert janitor.health.last_error is not None
    assert janitor.health.failures_in_a_row == 0


async def test_one_pass_sums_up_what_it_did(store: Store) -> None:
    for _ in range(5):
        await job_in(store, State.SUCCEEDED, body=b"1")
    total = await Janitor(store, "j", AT_ONCE, look_at=2).clean_all()

    assert (total.cleaned, total.erased, total.failed) == (5, 10, {})


class Killed(BaseException):
    """What no loop catches."""


class Deadly(Troubled):
    """A store that ends whoever looks."""

    async def aged(self, **wishes: Any) -> Aged:
        raise Killed


async def test_a_janitor_that_died_is_missed(store: Store) -> None:
    meters = Meters()
    deadly: Any = Deadly(store, 1)
    with pytest.raises(Killed):
        await Janitor(deadly, "j", AT_ONCE, meters=meters).run()
    assert not meters.pulses["janitor"].stopped


async def test_it_ends_while_it_rests(store: Store) -> None:
    looked = asyncio.Event()
    janitor = Janitor(store, "j", on_look=lambda _: looked.set())
    running = asyncio.create_task(janitor.run())
    async with asyncio.timeout(LIMIT_SECONDS):
        await looked.wait()
        janitor.stop()
        await running
