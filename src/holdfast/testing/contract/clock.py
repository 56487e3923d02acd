"""The store's clock: it never goes back, and it is what every write is stamped with."""

from __future__ import annotations

import pytest

from holdfast.lifecycle import commands as c
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do, running_job, submit_one


class ClockContract:
    """What `clock` owes."""

    @pytest.mark.req("B8")
    async def test_the_clock_never_goes_back(self, store: Store) -> None:
        times = []
        for _ in range(5):
            times.append((await store.clock()).now)
            await submit_one(store)
            times.append((await store.due()).now)

        assert times == sorted(times)

    @pytest.mark.req("B8", "C9")
    async def test_writes_are_stamped_with_a_clock_that_never_goes_back(self, store: Store) -> None:
        times = []
        for _ in range(3):
            times.append((await store.clock()).now)
            job = await running_job(store)
            done = await do(store, job, c.Complete(actor=owner_of(job)))
            times += [event.at for event in await store.events(job.id)]
            assert done.finished_at == times[-1]
            times.append((await store.clock()).now)

        assert times == sorted(times)
