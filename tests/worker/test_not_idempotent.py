"""Handlers that must not run twice: their start is durable first, their retry is another job."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import Backoff, Context, PermanentError, TransientError
from holdfast.app.app import Holdfast
from holdfast.errors import JobDeadLettered, JobFailed, ResultTimeout
from holdfast.lifecycle.plan import PlannedEnd
from holdfast.lifecycle.record import Change
from holdfast.lifecycle.states import Link, State
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Outcome, PlannedOutcome
from holdfast.tasks.handles import JobHandle
from tests.worker.test_worker import LIMIT, types

ONCE: dict[str, Any] = {"idempotent": False, "backoff": "1ms"}


async def chain(job: JobHandle[Any]) -> list[JobHandle[Any]]:
    """List a job and its linked retries."""
    found = [job]
    while (again := await found[-1].retried_as()) is not None:
        found.append(again)
    return [await one.refresh() for one in found]


@pytest.mark.req("A16")
async def test_what_is_not_idempotent_is_not_retried_unless_asked_for(app: Holdfast) -> None:
    ran: list[str] = []

    @app.task(idempotent=False)
    async def pay(ctx: Context) -> None:
        ran.append(ctx.job.id)
        raise OSError("no answer")

    async with app.worker():
        job = await pay.submit()
        with pytest.raises(JobDeadLettered):
            await job.result(LIMIT)
    assert len(ran) == 1
    assert await job.retried_as() is None


@pytest.mark.req("A16")
async def test_a_retry_of_what_is_not_idempotent_is_a_new_linked_job(app: Holdfast) -> None:
    ran: list[tuple[str, int]] = []

    @app.task(retries=2, queue="money", priority="critical", **ONCE)
    async def pay(ctx: Context, amount: int) -> str:
        ran.append((ctx.job.id, ctx.attempt))
        if len(ran) < 3:
            raise OSError("no answer")
        return f"{amount} {ctx.job.labels['of']} {ctx.job.env['at']} {ctx.job.correlation_id}"

    wishes: dict[str, Any] = {
        "labels": {"of": "order"},
        "env": {"at": "home"},
        "correlation_id": "c-1",
        "job_id": "payment-7",
        "dedupe_key": "order-7",
        "deadline": "1h",
    }
    async with app.worker(queues=["money"], poll="20ms"):
        job = await pay.options(**wishes).submit(5)
        assert await job.result(LIMIT) == "5 order home c-1"
    tries = await chain(job)
    records = [one.record for one in tries]
    assert [one.id for one in tries] == [id_ for id_, _ in ran]
    assert [attempt for _, attempt in ran] == [1, 1, 1]
    assert [one.state for one in records] == [State.FAILED, State.FAILED, State.SUCCEEDED]
    assert [one.parent_id for one in records] == [None, records[0].id, records[1].id]
    assert {one.link_kind for one in records[1:]} == {Link.RETRY}
    assert [one.policy.max_attempts for one in records] == [3, 2, 1]
    assert {(one.queue, one.priority, one.deadline_at) for one in records} == {
        ("money", "critical", records[0].deadline_at)
    }
    assert [one.job_id for one in records] == ["payment-7", None, None]
    assert (await app.get("payment-7")).record.id == records[0].id
    assert await types(job) == ["created", "claimed", "started", "failed"]


@pytest.mark.req("A16")
async def test_the_last_try_decides_and_the_error_names_both(app: Holdfast) -> None:
    @app.task(retries=1, on_exhausted="fail", letter_on_fail=True, **ONCE)
    async def pay() -> None:
        raise OSError("no answer")

    async with app.worker(poll="20ms"):
        job = await pay.submit()
        with pytest.raises(JobFailed, match="OSError: no answer") as caught:
            await job.result(LIMIT)
    first, last = await chain(job)
    assert f"job {last.id} (pay), the last try of job {first.id}, failed" in str(caught.value)
    assert caught.value.job_id == last.id
    # Only the failure that nobody retries is one that somebody has to look at (B31).
    assert (first.record.letter, last.record.letter) == (None, "open")


@pytest.mark.req("A16")
async def test_the_wait_for_a_result_is_one_wait_for_all_tries(app: Holdfast) -> None:
    @app.task(retries=1, idempotent=False, backoff="1h")
    async def pay() -> None:
        raise OSError

    async with app.worker():
        job = await pay.submit()
        assert await job.wait(LIMIT) is State.FAILED
        again = await job.retried_as()
        assert again is not None
        with pytest.raises(ResultTimeout, match=again.id):
            await job.result("10ms")


@pytest.mark.req("A16", "B10")
async def test_linked_retries_back_off_as_one_job_would(app: Holdfast) -> None:
    @app.task(retries=3, idempotent=False, backoff=Backoff("2s", 3, "5s"))
    async def pay() -> None:
        raise OSError

    async with app.worker():
        job = await pay.submit()
        await job.wait(LIMIT)
    again = await job.retried_as()
    assert again is not None
    assert SECOND <= _delay(again) <= 2 * SECOND
    assert again.record.policy.backoff_first == 5 * SECOND


def _delay(job: JobHandle[Any]) -> int:
    assert job.record.run_at is not None
    return job.record.run_at - job.record.created_at


@pytest.mark.req("A16", "B26")
async def test_a_transient_error_says_when_the_linked_retry_is_due(app: Holdfast) -> None:
    @app.task(retries=1, idempotent=False)
    async def pay() -> None:
        raise TransientError("busy", retry_in="7h")

    async with app.worker():
        job = await pay.submit()
        await job.wait(LIMIT)
    again = await job.retried_as()
    assert again is not None
    assert _delay(again) == 7 * 3600 * SECOND


@pytest.mark.req("A16", "B26")
async def test_a_permanent_error_ends_it_for_good(app: Holdfast) -> None:
    @app.task(retries=3, **ONCE)
    async def pay() -> None:
        raise PermanentError("no such account")

    async with app.worker():
        job = await pay.submit()
        with pytest.raises(JobFailed):
            await job.result(LIMIT)
    assert await job.retried_as() is None


@pytest.mark.req("A16")
async def test_a_run_killed_at_its_time_limit_is_retried_as_a_new_job(app: Holdfast) -> None:
    seen: list[str] = []

    @app.task(retries=20, timeout="100ms", **ONCE)
    async def pay(ctx: Context) -> str:
        seen.append(ctx.job.id)
        if len(seen) == 1:
            await ctx.cancelled
            raise OSError
        return "paid"

    async with app.worker(poll="20ms"):
        job = await pay.submit()
        assert await job.result(LIMIT) == "paid"
    assert (job.state, job.record.error_code) == (State.TIMED_OUT, "timeout")


@pytest.mark.req("A16")
@pytest.mark.parametrize("idempotent", [False, True])
async def test_what_must_not_run_twice_acts_only_once_its_start_is_in_the_ledger(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch, idempotent: bool
) -> None:
    """The commit of the start is held up; the other kind of handler does not wait for it."""
    sent, gate = asyncio.Event(), asyncio.Event()
    begun: list[list[str]] = []

    @app.task(idempotent=idempotent)
    async def act(ctx: Context) -> None:
        begun.append(await types(await app.get(ctx.job.id)) if gate.is_set() else [])

    worker = app.worker()
    commit = worker._store.commit

    async def held_up(changes: Sequence[Change]) -> list[Outcome]:
        if changes:  # a sweep finds nothing, and says so
            sent.set()
            await gate.wait()
        return await commit(changes)

    async def leave_to_commit(ends: Sequence[PlannedEnd]) -> PlannedOutcome:
        return PlannedOutcome(0, [end.id for end in ends])

    monkeypatch.setattr(worker._store, "commit", held_up)
    monkeypatch.setattr(worker._store, "commit_planned", leave_to_commit)
    async with worker:
        job = await act.submit()
        await asyncio.wait_for(sent.wait(), LIMIT)
        assert begun == ([[]] if idempotent else [])
        gate.set()
        await job.result(LIMIT)
    assert begun == ([[]] if idempotent else [["created", "claimed", "started"]])
