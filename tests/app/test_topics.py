"""`submit_topic` of an app and of a client: where a job goes, and under which terms."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from holdfast import Client, Holdfast
from holdfast.admission.topics import Route, Topics, read_topics
from holdfast.errors import (
    BadConfig,
    BadData,
    KeyConflict,
    NoPoolForTopic,
    TooManyNames,
    ValidationError,
)
from holdfast.flow.bus_job import bus_policy
from holdfast.http.app import make_server
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import Kind, Priority
from holdfast.lifecycle.times import SECOND
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.ports.models import ClaimRequest
from holdfast.ports.store import Store
from holdfast.testing.factories import fresh
from holdfast.wiring import make_store, read_address
from tests.http.conftest import Names

Submitter: TypeAlias = Holdfast | Client
TABLE: dict[str, Any] = {
    "job.chat.*": {"queue": "chat"},
    "job.chat.special": {"queue": "special", "adapter": "prefer"},
    "job.code.>": {"queue": "code"},
    "job.bus.>": {"bus": "main"},
    "job.bus.again": {
        "bus": "main",
        "idempotent": True,
        "retries": 2,
        "start_timeout_seconds": 30,
        "timeout_seconds": 1.5,
        "adapter": "prefer",
    },
}
TOPICS = read_topics(TABLE, "test")


@pytest.fixture
async def app(url: str) -> AsyncIterator[Holdfast]:
    """An app with topics, on either engine."""
    async with Holdfast(url, topics=TOPICS) as made:
        yield made
        problems: list[LedgerProblem] = []
        await verify(await made.store(), on_problem=problems.append)
        assert problems == []


@pytest.fixture
async def store(app: Holdfast) -> Store:
    """Where its jobs are."""
    return await app.store()


@pytest.fixture(params=["app", "client"])
async def submitter(request: pytest.FixtureRequest, app: Holdfast) -> AsyncIterator[Submitter]:
    """The app, or a client of a server on the same store."""
    if request.param == "app":
        yield app
        return
    server = make_server(make_store(read_address(app.url)), Names(), topics=TOPICS)
    async with (
        server.lifespan_context(server),
        Client("http://test", transport=httpx.ASGITransport(server)) as client,
    ):
        yield client


async def claimed(store: Store, queue: str, *capabilities: str) -> list[Job]:
    """Claim what a worker of a queue would get."""
    request = ClaimRequest(
        request_id=fresh("claim"),
        owner="worker-1",
        queues=(queue,),
        limit=10,
        capabilities=frozenset(capabilities),
    )
    return [one.job for one in await store.claim(request)]


@pytest.mark.req("A2")
async def test_a_topic_names_the_pool_whose_workers_get_the_job(
    app: Holdfast, store: Store, submitter: Submitter
) -> None:
    @app.task(name="job.chat.simple")
    async def simple(text: str) -> str:
        return text.upper()

    job = await submitter.submit_topic("job.chat.simple", {"text": "hello"})
    record = job.record
    assert (record.kind, record.task, record.queue) == (Kind.FUNCTION, "job.chat.simple", "chat")
    assert await claimed(store, "code") == []
    async with app.worker(queues=["chat"]):
        assert await job.result(timeout=60) == "HELLO"


@pytest.mark.req("A2")
async def test_the_most_specific_route_is_taken(submitter: Submitter) -> None:
    queues = [
        (await submitter.submit_topic(topic)).record.queue
        for topic in ("job.chat.simple", "job.chat.special", "job.code.a.b")
    ]
    assert queues == ["chat", "special", "code"]


@pytest.mark.req("A2")
async def test_a_job_by_topic_has_the_terms_of_its_task(app: Holdfast) -> None:
    @app.task(name="job.chat.simple", queue="elsewhere", retries=7, needs=["gpu"])
    async def simple(text: str) -> None: ...

    record = (await app.submit_topic("job.chat.simple", {"text": "a"})).record
    assert (record.queue, record.policy.max_attempts) == ("chat", 8)
    assert record.needs == {"gpu"}
    with pytest.raises(ValidationError, match="text"):
        await app.submit_topic("job.chat.simple", {"txt": "a"})


@pytest.mark.req("A2")
async def test_published_terms_apply_to_a_topic_that_is_known_by_name(
    app: Holdfast, url: str
) -> None:
    elsewhere = Holdfast(url)

    @elsewhere.task(name="job.chat.simple", queue="elsewhere", idempotent=False, needs=["gpu"])
    async def simple(text: str) -> None: ...

    async with elsewhere.worker(queues=["other"]):
        given: Any = {"adapter_id": "x", "job_id": "j"}
        record = (await app.submit_topic("job.chat.simple", {"text": "a"}, **given)).record
        app.topics = Topics(routes={"job.>": Route(queue="moved")})
        assert not (await app.submit_topic("job.chat.simple", {"text": "a"}, **given)).created
    assert (record.queue, record.policy.idempotent) == ("chat", False)
    assert record.needs == {"gpu", "adapter:x"}


@pytest.mark.req("A2")
async def test_a_topic_of_a_bus_is_its_queue_under_the_terms_of_the_route(
    app: Holdfast, submitter: Submitter
) -> None:
    @app.task(name="job.bus.plain", retries=7)
    async def never(text: str) -> None: ...

    record = (await submitter.submit_topic("job.bus.plain", {"memory_id": "m"})).record
    assert (record.kind, record.task, record.queue) == (Kind.BUS, "job.bus.plain", "job.bus.plain")
    policy = record.policy
    assert (policy.max_attempts, policy.idempotent, policy.on_silence) == (1, False, "time_out")
    # The same as those of a job that was submitted on the bus: without a limit of time nothing
    # would end one whose worker died, or that never left.
    assert policy == bus_policy(TOPICS.routes["job.bus.>"])
    assert (policy.start_timeout, policy.timeout) == (3600 * SECOND, 3600 * SECOND)

    policy = (await submitter.submit_topic("job.bus.again")).record.policy
    assert (policy.max_attempts, policy.idempotent, policy.on_silence) == (3, True, "stall")
    assert (policy.start_timeout, policy.timeout) == (30 * SECOND, 1_500_000)


@pytest.mark.req("A2", "B26")
@pytest.mark.parametrize("args", [{"text": "hello"}, {"memory_id": 7}, {"env": {"k": "v"}}])
async def test_arguments_that_a_bus_cannot_carry_are_refused_and_not_lost(
    app: Holdfast, submitter: Submitter, args: dict[str, Any]
) -> None:
    with pytest.raises(BadData, match=next(iter(args))) as refused:
        await submitter.submit_topic("job.bus.plain", args)
    assert refused.value.code == "validation_failed"
    assert (refused.value.field or "").removeprefix("$.") == "args"
    assert [job async for job in app.jobs()] == []


@pytest.mark.req("A2")
async def test_a_topic_without_a_pool_is_refused_and_makes_no_job(
    app: Holdfast, submitter: Submitter
) -> None:
    with pytest.raises(NoPoolForTopic, match=r"job\.code\.>.*Add \[topics\.") as refused:
        await submitter.submit_topic("job.mail.send")
    assert refused.value.code == "no_pool_for_topic"
    for topic in ("sys.job.submit", "job.*", "job.chat", "chat"):
        with pytest.raises(BadData):
            await submitter.submit_topic(topic)
    assert [job async for job in app.jobs()] == []


@pytest.mark.req("A2")
async def test_a_job_keeps_the_pool_that_it_was_born_with(app: Holdfast, store: Store) -> None:
    args = {"memory_id": "m"}
    first = await app.submit_topic("job.chat.simple", args, job_id="j", adapter_id="a")
    app.topics = Topics(routes={"job.>": Route(bus="main", adapter="prefer")})
    again = await app.submit_topic("job.chat.simple", args, job_id="j", adapter_id="a")
    assert (first.created, again.created) == (True, False)
    assert [one.queue for one in await claimed(store, "chat", "adapter:a")] == ["chat"]
    later = await app.submit_topic("job.chat.simple", args, job_id="k")
    assert later.record.kind is Kind.BUS


async def test_options_reach_the_job(submitter: Submitter, store: Store) -> None:
    parent = await submitter.submit_topic("job.chat.parent")
    job = await submitter.submit_topic(
        "job.chat.simple",
        {"a": 1},
        job_id="j",
        priority="batch",
        needs=("gpu",),
        delay="5m",
        deadline="1h",
        labels={"x": "y"},
        correlation_id="c",
        workflow_id="w",
        step_index=3,
        parent=parent,
    )
    record = job.record
    assert (record.job_id, record.priority) == ("j", Priority.BATCH)
    assert record.needs == {"gpu"}
    assert (record.workflow_id, record.step_index) == ("w", 3)
    assert record.parent_id == parent.record.id
    assert record.run_at is not None
    assert record.run_at > record.created_at
    [first] = await store.events(record.id, limit=1)
    assert first.created is not None
    assert (first.created.labels, first.correlation_id) == ({"x": "y"}, "c")
    assert first.body == b'{"a":1}'


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": "q"}, "no option 'queue'"),
        ({"retries": 3}, "no option 'retries'"),
        ({"unique": "live"}, "dedupe_key"),
    ],
)
async def test_what_the_pool_determines_is_not_an_option(
    submitter: Submitter, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(BadData, match=text):
        await submitter.submit_topic("job.chat.simple", **options)


async def test_arguments_are_an_object(app: Holdfast) -> None:
    with pytest.raises(BadData, match="args must be a mapping") as refused:
        await app.submit_topic("job.chat.simple", [1])  # type: ignore[arg-type]
    assert refused.value.field == "args"


def test_a_thread_without_a_loop_submits_by_topic(sqlite_path: Path) -> None:
    app = Holdfast(str(sqlite_path), topics=TABLE)
    try:
        assert app.submit_topic_sync("job.chat.simple", {"a": 1}).record.queue == "chat"
    finally:
        app.close_sync()


def test_an_app_takes_topics_from_a_file_a_mapping_or_none(tmp_path: Path) -> None:
    file = tmp_path / "holdfast.toml"
    file.write_text('port = 7\n[topics]\n"job.chat.*" = { queue = "chat" }\n')
    expected = Topics(routes={"job.chat.*": Route(queue="chat")})
    for given in (file, str(file), {"job.chat.*": {"queue": "chat"}}, expected):
        assert Holdfast(":memory:", topics=given).topics == expected
    assert Holdfast(":memory:").topics == Topics()
    with pytest.raises(BadConfig, match=r"topics: \[topics"):
        Holdfast(":memory:", topics={"job.a": {}})


@pytest.mark.req("A5")
async def test_a_job_goes_to_a_worker_that_has_its_adapter(app: Holdfast, store: Store) -> None:
    @app.task
    async def work() -> None: ...

    await work.options(adapter_id="a", job_id="of-a").submit()
    await work.options(job_id="of-any").submit()
    await app.submit_topic("job.chat.simple", job_id="topic-a", adapter_id="a")
    await app.submit_command("true", job_id="command-a", adapter_id="a", queue="default")
    assert [job.job_id for job in await claimed(store, "default", "adapter:b")] == ["of-any"]
    assert await claimed(store, "chat", "adapter:b") == []
    assert [job.job_id for job in await claimed(store, "default", "adapter:a")] == ["of-a"]
    assert [job.job_id for job in await claimed(store, "chat", "adapter:a")] == ["topic-a"]
    found = await claimed(store, "default", "command", "adapter:a")
    assert [job.job_id for job in found] == ["command-a"]


@pytest.mark.req("A5")
async def test_a_worker_of_an_app_has_adapters(app: Holdfast, submitter: Submitter) -> None:
    @app.task(name="job.chat.simple")
    async def simple() -> str | None:
        return "done"

    named = await submitter.submit_topic("job.chat.simple", adapter_id="llama-8b")
    plain = await submitter.submit_topic("job.chat.simple")
    async with app.worker(queues=["chat"], adapters=["other"]):
        assert await plain.result(timeout=60) == "done"
        async with asyncio.timeout(60):
            # Until the worker has announced itself.
            while (why := await submitter.why(named)).reason.code != "no_capable_worker":  # noqa: ASYNC110  another task
                await asyncio.sleep(0.05)
        assert "lacks adapter llama-8b" in why.text
        assert why.advice is not None
        assert "--adapter llama-8b" in why.advice
        async with app.worker(queues=["chat"], adapters=["llama-8b", "llama-70b"]):
            assert await named.result(timeout=60) == "done"


@pytest.mark.req("A5")
async def test_a_pool_may_prefer_the_adapter_only(submitter: Submitter, store: Store) -> None:
    for topic in ("job.chat.special", "job.bus.again"):
        record = (await submitter.submit_topic(topic, adapter_id="a")).record
        assert record.needs == frozenset()
        [first] = await store.events(record.id, limit=1)
        assert first.created is not None
        assert first.created.adapter_id == "a"
    record = (await submitter.submit_topic("job.bus.plain", adapter_id="a")).record
    assert record.needs == {"adapter:a"}


@pytest.mark.req("A5")
@pytest.mark.parametrize("adapter", ["", "x" * 193, "a\0b", 7])
async def test_an_adapter_that_no_worker_could_offer_is_refused(
    submitter: Submitter, adapter: Any
) -> None:
    with pytest.raises(BadData) as refused:
        await submitter.submit_topic("job.chat.simple", adapter_id=adapter)
    assert "adapter_id" in str(refused.value.field)


def test_the_adapters_of_a_worker_are_a_list(app: Holdfast) -> None:
    with pytest.raises(BadData, match="adapters must be a list"):
        app.worker(adapters="llama")


@pytest.mark.req("A5")
async def test_a_tenant_has_a_bounded_number_of_adapters(app: Holdfast) -> None:
    for number in range(100):
        await app.submit_topic("job.chat.simple", adapter_id=f"a{number}")
    with pytest.raises(TooManyNames):
        await app.submit_topic("job.chat.simple", adapter_id="one-more")


@pytest.mark.req("A5")
async def test_a_key_compares_what_was_asked_for_and_not_the_need(app: Holdfast) -> None:
    @app.task
    async def work() -> None: ...

    for _ in range(2):
        job = await work.options(adapter_id="a", job_id="j").submit()
        assert job.record.needs == {"adapter:a"}
    with pytest.raises(KeyConflict):
        await work.options(adapter_id="b", job_id="j").submit()


@pytest.mark.req("A2")
@pytest.mark.parametrize("topic", ["job.chat.simple", "job.bus.plain"])
async def test_why_names_the_topic_that_nobody_serves(
    app: Holdfast, submitter: Submitter, topic: str
) -> None:
    @app.task
    async def other() -> None: ...

    job = await submitter.submit_topic(topic)
    async with app.worker(queues=["chat"]):
        why = await submitter.why(job)
    assert why.reason.code == "no_topic_worker"
    assert f"no worker serves topic {topic!r}: " in why.text
    assert why.advice is not None
    assert topic in why.advice
