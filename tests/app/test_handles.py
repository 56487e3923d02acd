"""A handle tells how a job ended, waits for it, and acts on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import (
    Holdfast,
    JobCancelled,
    JobDeadLettered,
    JobDenied,
    JobError,
    JobFailed,
    JobTimedOut,
    ResultTimeout,
)
from holdfast.errors import BadData, NoSuchJob, ResultErased, StoreUnavailable
from holdfast.flow.command import perform
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.payload import encode_body
from holdfast.lifecycle.states import State
from holdfast.testing.factories import CONTROL, JANITOR, SCHEDULER, owner_of, worker
from holdfast.testing.store_actions import do
from tests.app.acts import end, taken, watched_app
from tests.app.test_submit import greeter

ERROR = {"type": "ValueError", "message": "no paper", "traceback": "Traceback …", "code": "x"}


class Answer(BaseModel):
    """A typed result."""

    number: int


async def test_a_result_is_read_by_its_annotation(app: Holdfast) -> None:
    @app.task
    def ask() -> Answer: ...  # type: ignore[empty-body]

    job = await ask.submit()
    body = ask.pack_result(Answer(number=42))
    await end(app, job, State.SUCCEEDED, lambda r: c.Complete(actor=owner_of(r), body=body))
    assert await job.result() == Answer(number=42)
    assert job.state is State.SUCCEEDED
    assert await (await app.get(job.id)).result() == Answer(number=42)


async def test_a_result_that_comes_while_it_is_waited_for_arrives(app: Holdfast) -> None:
    job = await app.submit("elsewhere", n=1)
    waiting = asyncio.create_task(job.result("30s"))
    await asyncio.sleep(0)
    await end(app, job, State.SUCCEEDED)
    assert await waiting == {"answer": 42}


@pytest.mark.parametrize(
    ("state", "kind", "says"),
    [
        (State.FAILED, JobFailed, "failed: boom"),
        (State.CANCELLED, JobCancelled, "was cancelled"),
        (State.TIMED_OUT, JobTimedOut, "timed out: timeout"),
        (State.DEAD_LETTERED, JobDeadLettered, "ended in the dead letters: exhausted_retries"),
    ],
)
async def test_each_bad_end_is_an_error_of_its_own(
    app: Holdfast, state: State, kind: type[JobError], says: str
) -> None:
    job = await greeter(app).options(timeout="1h").submit("Ada")
    await end(app, job, state)
    with pytest.raises(kind, match=rf"job {job.id} \(greet\) {says}") as caught:
        await job.result()
    assert type(caught.value) is kind
    assert caught.value.job_id == job.id
    assert await job.wait() is state


async def test_a_denied_job_is_an_error_of_its_own(app: Holdfast) -> None:
    job = await greeter(app).submit("Ada")
    await do(await app.store(), job.record, c.Deny(actor=SCHEDULER, rule="no", body=b'"no"'))
    with pytest.raises(JobDenied, match="was denied"):
        await job.result()


async def test_a_failure_tells_what_the_handler_raised(app: Holdfast) -> None:
    job = await greeter(app).submit("Ada")
    body = encode_body(ERROR)
    await end(
        app,
        job,
        State.FAILED,
        lambda r: c.Fail(actor=owner_of(r), error_code="permanent", body=body),
    )
    with pytest.raises(JobFailed, match="failed: ValueError: no paper") as caught:
        await job.result()
    error = caught.value
    assert (error.error_code, error.error_type, error.error_message, error.traceback) == (
        "permanent", "ValueError", "no paper", "Traceback …",
    )  # fmt: skip
    assert (error.code, error.error) == ("job_failed", ERROR)


async def test_a_result_is_found_behind_later_annotations(app: Holdfast) -> None:
    job = await greeter(app).submit("Ada")
    await end(app, job, State.SUCCEEDED, lambda r: c.Complete(actor=owner_of(r), body=b'"hi"'))
    late = c.LateResult(actor=worker(), state="failed")
    await perform(await app.store(), job.record.id, late)
    assert await (await app.get(job.id)).result() == "hi"


async def test_an_erased_result_says_so(app: Holdfast) -> None:
    job = await greeter(app).submit("Ada")
    await end(app, job, State.SUCCEEDED, lambda r: c.Complete(actor=owner_of(r), body=b'"hi"'))
    store = await app.store()
    await perform(store, job.record.id, c.Clean(actor=JANITOR))
    await store.erase_bodies([job.record.id])
    with pytest.raises(ResultErased, match="was erased"):
        await job.result()


async def test_a_wait_that_ends_first_says_where_the_job_stands(app: Holdfast) -> None:
    job = await greeter(app).submit("Ada")
    with pytest.raises(ResultTimeout, match=r"is queued and has not ended within 2 s") as caught:
        await job.result("2s")
    assert isinstance(caught.value, TimeoutError)
    assert caught.value.code == "result_timeout"
    assert await job.cancel() is State.CANCELLED


async def test_many_who_wait_share_their_looks(url: str) -> None:
    app, store = watched_app(url)
    async with app:
        jobs = await greeter(app).submit_many([(str(number),) for number in range(50)])
        waiting = [asyncio.create_task(job.wait("30s")) for job in jobs]
        await asyncio.sleep(0)
        for job in jobs:
            await job.cancel()
        assert set(await asyncio.gather(*waiting)) == {State.CANCELLED}
        # A look of one is a cancel's.
        together = [look for look in store.looks if look > 1]
        assert together[0] == 50
        assert len(together) < 50


async def test_whoever_waits_is_told_when_the_store_is_away(url: str) -> None:
    app, store = watched_app(url)
    async with app:
        job = await greeter(app).submit("Ada")

        async def away(ids: Any, **wishes: Any) -> Any:
            raise StoreUnavailable("away")

        store.get = away  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await job.wait("30s")


async def test_a_cancel_asks_the_worker_of_a_running_job(app: Holdfast) -> None:
    job = await greeter(app).submit("Ada")
    store = await app.store()
    record = (await taken(app, job)).job
    await do(store, record, c.Start(actor=owner_of(record)))
    assert await job.cancel(hard=True, reason="enough") is State.RUNNING
    assert str(job.record.cancel_requested) == "hard"
    assert (await job.events())[-1].cause == "enough"
    assert (await app.cancel(job.id)).state is State.RUNNING


async def test_a_history_is_every_event_in_order(app: Holdfast) -> None:
    job = await greeter(app).submit("Ada")
    await end(app, job, State.SUCCEEDED)
    assert [event.type for event in await job.events()] == [
        "job_created", "job_claimed", "job_started", "job_succeeded",
    ]  # fmt: skip


async def test_refresh_looks_again(app: Holdfast) -> None:
    job = await greeter(app).submit("Ada")
    await app.cancel(job.id, reason="enough")
    assert job.state is State.QUEUED
    assert (await job.refresh()).state is State.CANCELLED


@pytest.mark.req("E5")
async def test_a_signal_wakes_a_waiting_job(app: Holdfast) -> None:
    job = await greeter(app).submit("Ada")
    store = await app.store()
    record = (await taken(app, job)).job
    running = await do(store, record, c.Start(actor=owner_of(record)))
    await do(store, running, c.Wait(actor=owner_of(running), signal="go"))
    await job.signal("go", {"yes": True})
    assert job.state is State.QUEUED
    assert {"yes": True} in [event.payload for event in await job.events()]


async def test_a_job_is_found_by_either_id_within_its_tenant(app: Holdfast) -> None:
    greet = greeter(app)
    job = await greet.options(job_id="mine").submit("Ada")
    assert (await app.get("mine")).record == job.record
    assert (await app.get(job.record.id)).record == job.record
    for unknown in ("yours", str(job.record.id)[::-1]):
        with pytest.raises(NoSuchJob, match="no job"):
            await app.get(unknown)
    with pytest.raises(NoSuchJob, match="tenant 'acme'"):
        await app.get("mine", tenant="acme")


@pytest.mark.req("E6")
async def test_jobs_are_listed_newest_first_by_what_they_are(app: Holdfast) -> None:
    greet = greeter(app)
    jobs = await greet.submit_many([(str(number),) for number in range(230)])
    await app.submit("other")
    listed = [job.id async for job in app.jobs(task="greet", state="queued")]
    assert listed == sorted((job.id for job in jobs), reverse=True)
    assert len([job async for job in app.jobs(limit=120)]) == 120
    assert [job async for job in app.jobs(state=["failed", State.CANCELLED])] == []
    with pytest.raises(BadData, match="state must be one of pending"):
        _ = [job async for job in app.jobs(state="done")]


async def test_a_paused_queue_says_who_paused_it_and_why_its_jobs_wait(app: Holdfast) -> None:
    job = await greeter(app).submit("Ada")
    status = await app.pause("default", reason="inventory")
    assert (status.paused_by, status.reason) == ("control:app", "inventory")
    reason = await app.why(job.id)
    assert "paused" in reason.reason.code
    assert (await app.resume("default")).paused_at is None


async def test_a_handle_shows_its_job(app: Holdfast) -> None:
    job = await greeter(app).options(job_id="mine").submit("Ada")
    assert repr(job) == "<JobHandle mine greet queued>"
    assert CONTROL.role is app.control.role
