"""What a reader of events gets (B18), and what each transition records (B25, C9)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import NoSuchJob
from holdfast.flow.command import perform
from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor, JobId, LoggedEvent
from holdfast.lifecycle.states import Role
from holdfast.maintenance.verify import derived
from holdfast.ports.store import Store
from holdfast.queries import history as history_module
from holdfast.queries.history import read_all_events, read_history
from tests.flow.test_command import PEOPLE, claimed, submitted


@pytest.mark.req("B18", "B25", "C9")
async def test_every_event_is_complete_in_itself(store: Store) -> None:
    job = await submitted(store, correlation_id="order-7", trace_id="trace-9", body=b'{"n":1}')
    _, owner = await claimed(store)
    await perform(store, job.id, c.Start(actor=owner, request_id="go", reason="slot free"))
    events = await read_history(store, job.id)
    assert [event.type for event in events] == ["job_created", "job_claimed", "job_started"]
    assert {event.correlation_id for event in events} == {"order-7"}
    assert {event.trace_id for event in events} == {"trace-9"}
    assert {event.job_id for event in events} == {str(job.id)}
    assert len({event.id for event in events}) == 3
    started = events[2]
    assert (started.from_status, started.to_status) == ("claimed", "running")
    assert (started.actor, started.request_id, started.cause) == ("w", "go", "slot free")
    assert events[0].payload == {"n": 1}
    assert [event.ts for event in events] == sorted(event.ts for event in events)
    assert {event.version for event in events} == {1}


async def test_a_given_job_id_is_the_one_a_reader_sees(store: Store) -> None:
    job = await submitted(store, job_id="invoice-1")
    assert [event.job_id for event in await read_history(store, job.id)] == ["invoice-1"]


@pytest.mark.req("E6")
async def test_reading_by_events_agrees_with_reading_the_projection(store: Store) -> None:
    job = await submitted(store)
    _, owner = await claimed(store)
    await perform(store, job.id, c.Start(actor=owner))
    await perform(store, job.id, c.Heartbeat(actor=owner))
    await perform(store, job.id, c.RequestCancel(actor=PEOPLE))
    record, state = await derived(store, job.id)
    assert [record] == await store.get([job.id])
    assert record is not None
    assert state is record.state


async def test_the_history_of_no_job_is_an_error(store: Store) -> None:
    with pytest.raises(NoSuchJob):
        await read_history(store, mint_id())


async def test_a_sweep_says_who_lost_the_job(store: Store) -> None:
    job = await submitted(store)
    _, owner = await claimed(store)
    await perform(store, job.id, c.Release(actor=owner, reason="shutting down"))
    last = (await read_history(store, job.id))[-1]
    assert (last.type, last.actor, last.cause) == ("job_released", "w", "shutting down")
    assert Actor(Role.RECONCILER, "r").label == "reconciler:r"


class Reads:
    """A store whose reads of events are counted."""

    def __init__(self, store: Store) -> None:
        """Count from none."""
        self._store = store
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        """All else is the store's."""
        return getattr(self._store, name)

    async def events(self, id: JobId, **asked: Any) -> list[LoggedEvent]:
        """Count."""
        self.count += 1
        return await self._store.events(id, **asked)


@pytest.mark.parametrize(("page", "reads"), [(2, 2), (3, 2), (4, 1), (1000, 1)])
async def test_a_history_is_read_to_its_end_and_no_more_often_than_it_has_pages(
    store: Store, monkeypatch: pytest.MonkeyPatch, page: int, reads: int
) -> None:
    job = await submitted(store)
    _, owner = await claimed(store)
    await perform(store, job.id, c.Start(actor=owner, request_id="go"))
    monkeypatch.setattr(history_module, "PAGE", page)
    counting: Any = Reads(store)
    assert [event.rev for event in await read_all_events(counting, job.id)] == [1, 2, 3]
    assert counting.count == reads
    assert await read_all_events(counting, mint_id()) == []
