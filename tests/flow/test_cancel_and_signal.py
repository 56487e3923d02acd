"""Cancel and signal from outside, at whatever moment."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import Refused, StaleRevision
from holdfast.flow.cancel import cancel
from holdfast.flow.command import perform
from holdfast.flow.signal import resolve, signal
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import CancelMode, Role, State
from holdfast.ports.store import Store
from holdfast.testing.store_actions import do, job_in
from tests.flow.test_command import PEOPLE, Interrupting, claimed, submitted


@pytest.mark.req("A18")
async def test_a_job_that_nobody_holds_is_cancelled_at_once(store: Store) -> None:
    job = await submitted(store)
    after = await cancel(store, job.id, PEOPLE, reason="not needed")
    assert after.state is State.CANCELLED


@pytest.mark.req("A18")
async def test_the_owner_of_a_held_job_is_asked(store: Store) -> None:
    await submitted(store)
    job, _ = await claimed(store)
    after = await cancel(store, job.id, PEOPLE)
    assert (after.state, after.cancel_requested) == (State.CLAIMED, CancelMode.SOFT)
    harder = await cancel(store, job.id, PEOPLE, hard=True)
    assert harder.cancel_requested is CancelMode.HARD


@pytest.mark.req("B5")
async def test_what_has_ended_is_returned_whoever_used_the_request_id_before(store: Store) -> None:
    job = await submitted(store)
    ended = await cancel(store, job.id, PEOPLE, request_id="r")
    somebody = Actor(Role.CONTROL, "another")
    assert await cancel(store, job.id, somebody, request_id="r") == ended
    with pytest.raises(StaleRevision):
        await cancel(store, job.id, somebody, request_id="r", expected_rev=ended.rev - 1)


class Reads:
    """A store whose reads of single jobs and requests are noted."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("get", "request_event"):
            self.names.append(name)
        return getattr(self._store, name)


@pytest.mark.parametrize("request_id", [None, "r-1"])
async def test_a_cancel_reads_the_job_once_before_it_writes(
    store: Store, request_id: str | None
) -> None:
    job = await submitted(store)
    reads: Any = Reads(store)
    await cancel(reads, job.id, PEOPLE, request_id=request_id)
    assert reads.names == ["get"] + ["request_event"] * (request_id is not None)


async def test_a_job_that_is_claimed_at_that_moment_is_still_cancelled(store: Store) -> None:
    job = await submitted(store)
    racing: Any = Interrupting(store, lambda: claimed(store), 1)
    after = await cancel(racing, job.id, PEOPLE)
    assert after.cancel_requested is CancelMode.SOFT


async def test_a_job_that_is_released_at_that_moment_is_still_cancelled(store: Store) -> None:
    await submitted(store)
    job, owner = await claimed(store)

    async def release() -> None:
        await perform(store, job.id, c.Release(actor=owner))

    racing: Any = Interrupting(store, release, 1)
    assert (await cancel(racing, job.id, PEOPLE)).state is State.CANCELLED


async def test_a_cancel_is_not_refused_because_the_job_is_busy(either_store: Store) -> None:
    store = either_store
    await submitted(store)
    job, owner = await claimed(store)
    await perform(store, job.id, c.Start(actor=owner))

    async def report() -> None:
        await perform(store, job.id, c.Progress(actor=owner, body=b"1"))

    busy: Any = Interrupting(store, report, 99)
    assert (await cancel(busy, job.id, PEOPLE)).cancel_requested is CancelMode.SOFT


async def test_a_cancel_is_not_refused_because_the_job_changes_hands_all_the_time(
    either_store: Store,
) -> None:
    store = either_store
    job = await submitted(store)
    held: list[Actor] = []

    async def change_hands() -> None:
        if held:
            await perform(store, job.id, c.Release(actor=held.pop()))
        else:
            held.append((await claimed(store))[1])

    restless: Any = Interrupting(store, change_hands, 18)
    after = await cancel(restless, job.id, PEOPLE)
    assert after.state is State.CANCELLED or after.cancel_requested is CancelMode.SOFT


async def test_an_answer_about_a_step_is_not_refused_because_the_job_is_busy(
    either_store: Store,
) -> None:
    store = either_store
    await submitted(store)
    job, owner = await claimed(store)
    await perform(store, job.id, c.Start(actor=owner))
    await perform(store, job.id, c.Wait(actor=owner, signal="resolve:pay"))

    async def note() -> None:
        await signal(store, job.id, PEOPLE, "note")

    busy: Any = Interrupting(store, note, 99)
    assert (await resolve(busy, job.id, PEOPLE, "pay", happened=False)).state is State.QUEUED


async def test_cancelling_what_has_ended_changes_nothing(store: Store) -> None:
    await submitted(store)
    job, owner = await claimed(store)
    await perform(store, job.id, c.Start(actor=owner))
    done = await perform(store, job.id, c.Complete(actor=owner))
    assert await cancel(store, job.id, PEOPLE) == done


async def test_a_completion_that_came_first_wins_over_the_cancel(store: Store) -> None:
    await submitted(store)
    job, owner = await claimed(store)
    await perform(store, job.id, c.Start(actor=owner))

    async def complete() -> None:
        await perform(store, job.id, c.Complete(actor=owner))

    racing: Any = Interrupting(store, complete, 1)
    assert (await cancel(racing, job.id, PEOPLE)).state is State.SUCCEEDED


async def test_a_signal_wakes_the_job_that_waits_for_it(store: Store) -> None:
    await submitted(store)
    job, owner = await claimed(store)
    await perform(store, job.id, c.Start(actor=owner))
    await perform(store, job.id, c.Wait(actor=owner, signal="go"))
    assert (await signal(store, job.id, PEOPLE, "stop")).state is State.WAITING
    woken = await signal(store, job.id, PEOPLE, "go", b"1", request_id="r")
    assert woken.state is State.QUEUED
    assert [one.name for one in woken.signals] == ["stop"]


async def test_a_signal_sent_twice_under_one_request_is_one_signal(store: Store) -> None:
    job = await submitted(store)
    await signal(store, job.id, PEOPLE, "go", request_id="r")
    after = await signal(store, job.id, PEOPLE, "go", request_id="r")
    assert len(after.signals) == 1


async def test_the_thousand_and_first_pending_signal_is_refused(either_store: Store) -> None:
    store = either_store
    job = await job_in(store, State.QUEUED)
    for _ in range(1000):
        job = await do(store, job, c.SignalJob(actor=PEOPLE, name="go"))
    with pytest.raises(Refused) as caught:
        await signal(store, job.id, PEOPLE, "go", request_id="late")
    assert caught.value.code == "too_many_signals"
    assert (await store.get([job.id])) == [job]


async def test_a_signal_with_a_request_id_reads_no_history(store: Store) -> None:
    job = await job_in(store, State.QUEUED)
    events: Any = store.events
    asked: list[Any] = []

    async def counted(*args: Any, **more: Any) -> Any:
        asked.append(args)
        return await events(*args, **more)

    store.events = counted  # type: ignore[method-assign]
    for n in range(5):
        await signal(store, job.id, PEOPLE, "go", request_id=f"r{n}")
        await signal(store, job.id, PEOPLE, "go", request_id=f"r{n}")
    store.events = events  # type: ignore[method-assign]
    assert asked == []
    assert len((await store.get([job.id]))[0].signals) == 5  # type: ignore[union-attr]
