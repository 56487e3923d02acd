"""A job submitted by name runs under its task's terms, whoever submitted it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from msgspec.structs import replace

from holdfast import Backoff, Context, PermanentError
from holdfast.app.app import Holdfast
from holdfast.errors import JobDeadLettered
from holdfast.flow.command import perform
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import EventType, Role, State
from holdfast.lifecycle.times import SECOND
from holdfast.operations.requests import SubmitJobs, WantedJob
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.tasks.handles import JobHandle
from holdfast.testing.store_actions import claim_one
from tests.worker import isolated
from tests.worker.test_worker import LIMIT, types


async def by_name(url: str, task: str, **options: Any) -> str:
    """Submit from an app that knows nothing of the task."""
    async with Holdfast(url) as stranger:
        return (await stranger.named(task).options(**options).submit()).id


async def corrections(job: JobHandle[Any]) -> list[str | None]:
    """List the reasons of a job's corrections."""
    return [one.cause for one in await job.events() if one.type == EventType.TERMS_CORRECTED]


async def test_a_job_submitted_by_name_does_not_pay_twice(app: Holdfast, url: str) -> None:
    paid: list[str] = []

    @app.task(idempotent=False)
    async def pay(ctx: Context) -> None:
        paid.append(ctx.job.id)
        raise OSError("no answer")

    job = await app.get(await by_name(url, "pay"))
    async with app.worker(poll="20ms"):
        with pytest.raises(JobDeadLettered):
            await job.result(LIMIT)
    assert paid == [job.id]
    assert await job.retried_as() is None


async def test_terms_are_corrected_before_the_handler_runs(app: Holdfast, url: str) -> None:
    seen: list[Any] = []

    @app.task(idempotent=False, timeout="5m")
    async def pay(ctx: Context) -> None:
        stored = (await app.get(ctx.job.id)).record
        seen.append((stored.state, stored.policy == pay.policy, ctx.job.max_attempts))

    job = await app.get(await by_name(url, "pay"))
    async with app.worker():
        await job.result(LIMIT)
    assert seen == [(State.RUNNING, True, 1)]
    assert await types(job) == ["created", "claimed", "terms_corrected", "started", "succeeded"]
    [reason] = await corrections(job)
    assert "idempotent" in str(reason)


async def test_a_handler_in_a_process_of_its_own_is_corrected_too(url: str) -> None:
    isolated.app.use(url)
    async with isolated.app as app:
        job = await app.get(await by_name(url, "pays_once"))
        async with app.worker():
            assert await job.result(LIMIT) == 1
        assert "terms_corrected" in await types(job)
        assert not (await job.refresh()).record.policy.idempotent


async def test_a_submit_by_name_takes_the_terms_that_a_worker_published(
    app: Holdfast, url: str
) -> None:
    @app.task(idempotent=False, queue="money", priority="critical", timeout="5m")
    async def pay() -> None: ...

    async with app.worker(queues=["money"]):
        job = await app.get(await by_name(url, "pay"))
        await job.result(LIMIT)
    assert job.record.policy == pay.policy
    assert (job.record.queue, job.record.priority) == ("money", "critical")
    assert await types(job) == ["created", "claimed", "started", "succeeded"]


async def test_what_a_submitter_says_itself_stays_where_it_is_not_weaker(
    app: Holdfast, url: str
) -> None:
    @app.task(retries=7, timeout="5m", backoff=Backoff("1s", 3, "9s"), on_exhausted="fail")
    async def fetch() -> None: ...

    # One before any worker has published anything, one after.
    early = await app.get(await by_name(url, "fetch", retries=2, timeout="1m"))
    async with app.worker():
        late = await app.get(await by_name(url, "fetch", retries=2, timeout="1m"))
        for job in (early, late):
            await job.result(LIMIT)
    for job in (early, late):
        policy = (await job.refresh()).record.policy
        assert (policy.max_attempts, policy.timeout) == (3, 60 * SECOND)
        assert (policy.backoff_first, policy.on_exhausted) == (SECOND, "fail")


@pytest.mark.parametrize(
    ("terms", "asked"),
    [({"timeout": "1m"}, {"timeout": "1h"}), ({"idempotent": False}, {"retries": 5})],
)
async def test_weaker_terms_that_a_submitter_says_are_not_kept(
    app: Holdfast, url: str, terms: dict[str, Any], asked: dict[str, Any]
) -> None:
    @app.task(**terms)
    async def pay() -> None: ...

    early = await app.get(await by_name(url, "pay", **asked))
    async with app.worker():
        late = await app.get(await by_name(url, "pay", **asked))
        for job in (early, late):
            await job.result(LIMIT)
    for job in (early, late):
        assert (await job.refresh()).record.policy == pay.policy


async def test_a_worker_that_dies_after_the_correction_leaves_the_corrected_terms(
    app: Holdfast, url: str
) -> None:
    """The next claim must not bring back what the submit said."""
    store = await app.store()
    job = await app.get(await by_name(url, "pay"))
    claimed = await claim_one(store)
    owner = Actor(Role.OWNER, claimed.job.owner or "", 1)

    @app.task(retries=2)
    async def pay() -> None:
        raise PermanentError("no")

    policy = pay.policy
    await perform(store, claimed.job.id, c.CorrectTerms(actor=owner, policy=policy))
    await perform(store, claimed.job.id, c.Release(actor=owner))
    again = await claim_one(store)
    assert again.job.policy == policy
    assert (await job.refresh()).record.policy == policy


async def test_a_repeated_submit_is_the_same_whether_the_terms_are_known_or_not(
    app: Holdfast, url: str
) -> None:
    @app.task(idempotent=False, queue="money", retries=3)
    async def pay() -> None: ...

    first = await by_name(url, "pay", job_id="order-7", queue="money")
    async with app.worker(queues=["money"]):
        assert await by_name(url, "pay", job_id="order-7", queue="money") == first


async def test_a_submit_by_name_in_a_transaction_of_the_callers_has_the_terms(
    app: Holdfast, url: str
) -> None:
    @app.task(idempotent=False)
    async def pay() -> None: ...

    async def submit() -> JobHandle[Any]:
        async with Holdfast(url) as stranger:
            task = stranger.named("pay")
            if url.startswith("postgres"):
                connection = await asyncpg.connect(url)
                async with connection.transaction():
                    made = await task.submit_in(connection)
                await connection.close()
            else:
                async with stranger.transaction() as transaction:
                    made = await task.submit_in(transaction)
        return await app.get(made.id)

    early = await submit()
    async with app.worker():
        late = await submit()
        await asyncio.gather(early.result(LIMIT), late.result(LIMIT))
    assert late.record.policy == pay.policy
    assert (await early.refresh()).record.policy == pay.policy


def in_blocking_transaction(stranger: Holdfast, url: str) -> str:
    """Submit by name in a transaction of the caller's that blocks; return the job's id."""
    task = stranger.named("pay")
    if url.startswith("postgres"):
        with psycopg.connect(url) as connection:
            return task.submit_in_sync(connection).id
    with stranger.transaction() as transaction:
        made = task.submit_in_sync(transaction)
    return made.id


async def test_a_submit_by_name_in_a_blocking_transaction_has_the_terms(
    app: Holdfast, url: str
) -> None:
    @app.task(idempotent=False, queue="money")
    async def pay() -> None: ...

    stranger = Holdfast(url)
    async with app.worker(queues=["money"]):
        late = await app.get(await asyncio.to_thread(in_blocking_transaction, stranger, url))
        await late.result(LIMIT)
    await asyncio.to_thread(stranger.close_sync)
    assert (late.record.policy, late.record.queue) == (pay.policy, "money")
    assert await corrections(late) == []


async def test_a_blocking_submit_in_a_coroutine_has_the_terms(app: Holdfast, url: str) -> None:
    """Its connection blocks the loop as well; the terms are read beside it."""

    @app.task(idempotent=False)
    async def pay() -> None: ...

    await (await app.store()).publish_terms([pay.published])
    async with Holdfast(url) as stranger:
        if url.startswith("postgres"):
            made = in_blocking_transaction(stranger, url)
        else:
            async with stranger.transaction() as transaction:
                pending = stranger.named("pay").submit_in_sync(transaction)
            made = pending.id
    assert (await app.get(made)).record.policy == pay.policy


async def test_a_blocking_submit_on_the_apps_background_loop_does_not_wait_for_itself(
    app: Holdfast, url: str
) -> None:
    stranger = Holdfast(url)

    async def submit() -> str:
        if url.startswith("postgres"):
            return in_blocking_transaction(stranger, url)
        async with stranger.transaction() as transaction:
            pending = stranger.named("pay").submit_in_sync(transaction)
        return pending.id

    made = await asyncio.wait_for(asyncio.to_thread(stranger.run_sync, submit(), "it"), LIMIT)
    await asyncio.to_thread(stranger.close_sync)
    assert (await app.get(made)).record.task == "pay"


async def test_a_submit_by_name_on_the_writers_thread_has_the_terms(tmp_path: Path) -> None:
    """What runs there may not wait for anything that waits for the writer."""
    async with Holdfast(str(tmp_path / "jobs.db")) as app:

        @app.task(idempotent=False)
        async def pay() -> None: ...

        await (await app.store()).publish_terms([pay.published])
        async with Holdfast(app.url) as stranger, stranger.transaction() as transaction:
            made = transaction.run(lambda host: stranger.named("pay").submit_in_sync(host).id)
        assert (await app.get(made.value)).record.policy == pay.policy


async def test_many_submits_in_blocking_transactions_ask_for_the_terms_once(
    app: Holdfast, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(idempotent=False)
    async def pay() -> None: ...

    await (await app.store()).publish_terms([pay.published])
    asked: list[Any] = []
    for kind in (SqliteStore, PostgresStore):
        monkeypatch.setattr(kind, "task_terms", _counted(kind.task_terms, asked))
    stranger = Holdfast(url)

    def submit() -> None:
        for _ in range(10):
            in_blocking_transaction(stranger, url)
        stranger.close_sync()

    await asyncio.to_thread(submit)
    assert len(asked) == 1
    assert {job.record.policy async for job in app.jobs()} == {pay.policy}


def _counted(read: Any, asked: list[Any]) -> Any:
    async def counted(*args: Any) -> Any:
        asked.append(args)
        return await read(*args)

    return counted


async def test_a_child_of_a_task_that_is_registered_elsewhere_has_its_terms(
    app: Holdfast, url: str
) -> None:
    children: list[str] = []

    @app.task
    async def parent(ctx: Context) -> None:
        named = app.named("pay")
        children.append((await ctx.spawn(named)).id)
        children.append((await ctx.spawn(named.options(queue="mine", timeout="1h"))).id)

    other = Holdfast(url)

    @other.task(idempotent=False, queue="money", priority="critical", timeout="5m", retries=2)
    async def pay() -> None: ...

    await (await app.store()).publish_terms([pay.published])
    async with app.worker():
        await (await parent.submit()).result(LIMIT)
    one, two = [(await app.get(child)).record for child in children]
    assert (one.policy, one.queue, one.priority) == (pay.policy, "money", "critical")
    # Its queue is the handler's own; a longer timeout than the task's is weaker.
    assert (two.policy, two.queue) == (pay.policy, "mine")


async def test_a_child_whose_terms_nobody_knew_gets_all_of_them_when_it_is_claimed(
    app: Holdfast, url: str
) -> None:
    children: list[str] = []

    @app.task
    async def parent(ctx: Context) -> None:
        children.append((await ctx.spawn(app.named("fetch").options(timeout="1m"))).id)

    async with app.worker():
        await (await parent.submit()).result(LIMIT)
    async with Holdfast(url) as other:

        @other.task(retries=7, timeout="5m", on_exhausted="fail")
        async def fetch() -> None: ...

        async with other.worker():
            child = await other.get(children[0])
            await child.result(LIMIT)
    policy = (await child.refresh()).record.policy
    assert policy == replace(fetch.policy, timeout=60 * SECOND)


async def test_a_child_spawned_from_a_process_of_its_own_has_its_terms(url: str) -> None:
    isolated.app.use(url)
    async with isolated.app as app:
        other = Holdfast(url)

        @other.task(idempotent=False)
        async def pay() -> None: ...

        await (await app.store()).publish_terms([pay.published])
        async with app.worker():
            job = await isolated.spawns_by_name.submit("pay")
            child = await app.get(await job.result(LIMIT))
        assert child.record.policy == pay.policy


async def test_many_children_by_name_ask_for_the_terms_once(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def parent(ctx: Context) -> None:
        for _ in range(10):
            await ctx.spawn(app.named("pay"))

    asked: list[Any] = []
    for kind in (SqliteStore, PostgresStore):
        monkeypatch.setattr(kind, "task_terms", _counted(kind.task_terms, asked))
    async with app.worker():
        await (await parent.submit()).result(LIMIT)
    assert len(asked) == 1


async def test_many_submits_by_name_ask_for_the_terms_once(app: Holdfast, url: str) -> None:
    @app.task(idempotent=False)
    async def pay() -> None: ...

    async with app.worker(), Holdfast(url) as stranger:
        store: Any = await stranger.store()
        asked: list[Any] = []
        read = store.task_terms

        async def counted(*args: Any) -> Any:
            asked.append(args)
            return await read(*args)

        store.task_terms = counted
        operations = await stranger.operations()
        await operations.do(SubmitJobs(jobs=[WantedJob(task="pay") for _ in range(50)]))
        await asyncio.gather(*(stranger.submit("pay") for _ in range(50)))
    assert len(asked) == 1


async def test_a_compensation_keeps_its_own_terms(app: Holdfast) -> None:
    undone: list[str] = []

    async def undo(ctx: Context) -> None:
        undone.append(ctx.job.id)

    @app.task(idempotent=False, compensate=undo, timeout="5m")
    async def pay() -> None:
        raise PermanentError("no")

    async with app.worker(poll="20ms"):
        job = await pay.submit()
        await job.wait(LIMIT)
        found = [one async for one in app.jobs(parent=job)]
        await found[0].result(LIMIT)
    assert undone == [found[0].id]
    assert "terms_corrected" not in await types(found[0])
