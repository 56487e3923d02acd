"""The SDK's own client and workers, end to end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import redis.asyncio as redis_client
from cap.pb.cordum.agent.v1 import job_pb2
from cap.runtime import Agent
from pydantic import BaseModel

from holdfast import Holdfast
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.states import Kind, Priority
from tests.buses.site import Site, settings_of, succeed, until
from tests.support.nats import RedisServer

both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"])
with_and_without_streams = pytest.mark.parametrize("jetstream", [True, False])


@both_engines
@with_and_without_streams
@pytest.mark.req("A2", "A19")
async def test_a_client_s_job_reaches_a_worker_of_its_topic_and_ends_by_its_result(
    site: Site,
) -> None:
    async with site.bridge():
        await site.worker("job.once", succeed)
        for number in range(20):
            await site.submit(f"j{number}")
        for number in range(20):
            job = await site.ended(f"j{number}")
            assert job.succeeded
            assert (job.attempt, job.kind, job.queue) == (1, Kind.BUS, "job.once")
    kinds = [event.type for event in await site.events("j0")]
    assert kinds == ["job_created", "job_claimed", "job_started", "job_succeeded"]


@pytest.mark.req("A2", "A4", "A5", "A6")
async def test_a_worker_gets_what_the_client_asked_for_byte_for_byte(site: Site) -> None:
    got: list[Any] = []

    async def handle(request: Any) -> Any:
        got.append(request)
        return await succeed(request)

    asked: dict[str, Any] = {
        "priority": job_pb2.JOB_PRIORITY_BATCH,
        "context_ptr": "x:%00%ff?a=b#c",
        "env": {"tenant": "t", "locale": "de"},
        "labels": {"team": "a"},
        "workflow_id": "flow",
        "step_index": 3,
        "memory_id": "repo",
        "principal_id": "someone",
        "parent_job_id": "unknown-parent",
        "tenant_id": "default",
        "budget": job_pb2.Budget(deadline_ms=3_600_000, max_total_tokens=10**9),
        "meta": job_pb2.JobMetadata(capability="chat", risk_tags=["write"], pack_id="p"),
        "context_hints": job_pb2.ContextHints(max_input_tokens=7, tags=["logs"]),
    }
    async with site.bridge():
        await site.worker("job.any.topic", handle)
        await site.submit("j", "job.any.topic", **asked)
        job = await site.ended("j")
    sent = got[0]
    assert (sent.dispatch.attempt, sent.dispatch.dispatch_id) == (1, "j:1")
    sent.ClearField("dispatch")
    assert sent == job_pb2.JobRequest(job_id="j", topic="job.any.topic", **asked)
    assert (job.priority, job.workflow_id, job.step_index) == (Priority.BATCH, "flow", 3)
    assert job.deadline_at is not None
    assert (await site.events("j"))[0].correlation_id == "trace-j"


@both_engines
@pytest.mark.req("A9")
async def test_every_field_of_a_result_is_kept_also_a_pointer_beside_an_error(site: Site) -> None:
    async def fail(request: Any) -> Any:
        return job_pb2.JobResult(
            job_id=request.job_id,
            status=job_pb2.JOB_STATUS_FAILED,
            result_ptr="s3://partial",
            execution_ms=41,
            error_code="E42",
            error_message="it broke",
        )

    async with site.bridge():
        await site.worker("job.once", fail, name="worker-7")
        await site.submit("j")
        job = await site.ended("j")
    assert (job.error_code, job.result_ptr) == ("E42", "s3://partial")
    end = (await site.events("j"))[-1]
    facts = end.facts
    assert (facts.worker, facts.execution_ms, facts.result_ptr) == ("worker-7", 41, "s3://partial")
    assert decode_body(end.body)["message"] == "it broke"


@pytest.mark.req("A9")
async def test_odd_numbers_and_texts_in_a_result_do_not_keep_a_job_from_its_end(
    site: Site,
) -> None:
    async with site.bridge():
        await site.listen("job.once")
        await site.submit("j")
        await site.out("j")
        message = "x" * 100_000 + "\0"
        await site.say(
            "j", "FAILED", execution_ms=2**60, error_message=message, error_code="c" * 999
        )
        job = await site.ended("j")
    assert len(job.error_code or "") == 200
    assert (await site.events("j"))[-1].facts.execution_ms == 2**53


class _Question(BaseModel):
    text: str


@pytest.mark.filterwarnings("ignore:Call to deprecated close:DeprecationWarning")
@pytest.mark.req("A2", "A4")
async def test_an_agent_reads_its_context_by_pointer_and_leaves_a_result_there(
    site: Site, redis: RedisServer
) -> None:
    agent = Agent(
        nats_url=site.server.url, redis_url=redis.url, worker_id="agent-1", pool="job.any.agent"
    )

    @agent.job("job.any.agent", input_model=_Question)  # type: ignore[untyped-decorator]
    async def answer(ctx: Any, question: _Question) -> dict[str, str]:
        return {"answer": question.text.upper()}

    memory = redis_client.from_url(redis.url)
    await memory.set("ctx:1", json.dumps({"text": "hello"}))
    async with site.bridge():
        running = asyncio.create_task(agent.run())
        await site.submit("j", "job.any.agent", context_ptr="redis://ctx:1")
        job = await site.ended("j")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert job.succeeded
    assert job.result_ptr is not None
    result: Any = await memory.get(job.result_ptr.removeprefix("redis://"))
    assert json.loads(result) == {"answer": "HELLO"}
    await memory.aclose()


@pytest.mark.req("A19")
async def test_two_bridges_share_the_work_and_each_job_is_sent_once(site: Site) -> None:
    seen: list[str] = []

    async def count(request: Any) -> Any:
        seen.append(request.job_id)
        return await succeed(request)

    async with site.bridge(), site.bridge():
        await site.worker("job.once", count)
        for number in range(50):
            await site.submit(f"j{number}")
        for number in range(50):
            assert (await site.ended(f"j{number}")).succeeded
    await until(lambda: len(seen) == 50, "all to be seen")
    assert sorted(seen) == sorted(f"j{number}" for number in range(50))


@both_engines
@pytest.mark.req("A2", "A4", "A5", "A6")
async def test_a_job_submitted_by_its_topic_elsewhere_reaches_a_worker_on_the_bus(
    site: Site, url: str
) -> None:
    seen: list[Any] = []

    async def handle(request: Any) -> Any:
        seen.append(request)
        return await succeed(request)

    settings = settings_of(capabilities=frozenset({"adapter:a"}))
    async with Holdfast(url, topics=settings.topics) as app:
        given: Any = {"job_id": "j", "context_ptr": "x:%00?", "env": {"k": "v"}, "adapter_id": "a"}
        # No bridge runs yet: it waits in its queue.
        await app.submit_topic("job.once", {"memory_id": "m"}, **given)
        async with site.bridge(settings):
            await site.worker("job.once", handle)
            assert (await site.ended("j")).succeeded
    [request] = seen
    assert (request.context_ptr, dict(request.env)) == ("x:%00?", {"k": "v"})
    assert (request.adapter_id, request.memory_id) == ("a", "m")
