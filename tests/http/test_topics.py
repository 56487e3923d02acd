"""Submits by topic over HTTP: one, many, and what is refused; and what an answer shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from holdfast.admission.topics import read_topics
from holdfast.http.app import make_server
from holdfast.http.router import Application
from holdfast.lifecycle import commands as c
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import claim_one, do
from holdfast.wiring import Address, make_store
from tests.http.conftest import Names

TABLE = {"job.chat.*": {"queue": "chat"}, "job.bus.>": {"bus": "main"}}


@pytest.fixture
async def server() -> AsyncIterator[Application]:
    """A server with topics."""
    store = make_store(Address(engine="sqlite", place=":memory:"))
    app = make_server(store, Names(), topics=read_topics(TABLE, "test"))
    async with app.lifespan_context(app):
        yield app


@pytest.fixture
def store(server: Application) -> Store:
    """The store behind it."""
    store: Store = server.state.session.store
    return store


@pytest.mark.req("A2")
async def test_a_topic_is_submitted_and_its_repetition_found(http: httpx.AsyncClient) -> None:
    body = {"topic": "job.chat.simple", "args": {"text": "hi"}, "job_id": "j"}
    first, again = [await http.post("/v1/jobs", json=body) for _ in range(2)]
    assert (first.status_code, again.status_code) == (201, 200)
    job = first.json()["job"]
    assert (job["kind"], job["task"], job["queue"]) == ("function", "job.chat.simple", "chat")
    other = await http.post("/v1/jobs", json=body | {"args": {"text": "bye"}})
    assert (other.status_code, other.json()["code"]) == (409, "key_conflict")


@pytest.mark.req("A2")
async def test_many_are_answered_each_for_itself(http: httpx.AsyncClient) -> None:
    jobs = [
        {"topic": "job.chat.simple"},
        {"task": "t"},
        {"topic": "job.mail.send"},
        {"type": "worker", "command": "true"},
        {"topic": "job.bus.a"},
        {"topic": "job.chat.simple", "queue": "q"},
    ]
    reply = await http.post("/v1/jobs/batch", json={"jobs": jobs})
    assert reply.status_code == 200, reply.text
    each = reply.json()["jobs"]
    queues = [one["accepted"] and one["accepted"]["job"]["queue"] for one in each]
    assert queues == ["chat", "default", None, "commands", "job.bus.a", None]
    assert [each[2]["problem"]["code"], each[2]["problem"]["field"]] == [
        "no_pool_for_topic",
        "$.jobs[2].topic",
    ]
    assert each[5]["problem"]["field"] == "$.jobs[5].queue"
    assert each[4]["accepted"]["status"] is None


@pytest.mark.req("A2")
@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"topic": "job.mail.send"}, "no_pool_for_topic", "$.topic"),
        ({"topic": "sys.job.submit"}, "bad_data", "$.topic"),
        ({"topic": 7}, "validation_failed", "$.topic"),
        ({"topic": "job.chat.a", "task": "t"}, "validation_failed", "$.task"),
        ({"topic": "job.chat.a", "args": [1]}, "validation_failed", "$.args"),
        ({"topic": "job.chat.a", "retries": 1}, "validation_failed", "$.retries"),
        ({"args": {}}, "validation_failed", "$.task"),
    ],
)
async def test_a_refusal_names_the_field(
    http: httpx.AsyncClient, body: dict[str, Any], code: str, field: str
) -> None:
    reply = await http.post("/v1/jobs", json=body)
    assert (reply.status_code, reply.json()["code"], reply.json()["field"]) == (422, code, field)


@pytest.mark.req("A2")
async def test_a_token_for_some_queues_submits_only_to_their_pools(call: Any) -> None:
    chat = call("submitter@mine#chat")
    assert (await chat.post("/v1/jobs", json={"topic": "job.chat.a"})).status_code == 201
    refused = await chat.post("/v1/jobs", json={"topic": "job.bus.a"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


async def test_an_answer_shows_where_the_result_is_also_beside_an_error(
    http: httpx.AsyncClient, store: Store
) -> None:
    """The fields of a result on a bus (A9)."""
    for topic, fails in (("job.bus.good", False), ("job.bus.bad", True)):
        await http.post("/v1/jobs", json={"topic": topic, "job_id": topic})
        job = (await claim_one(store, topic, owner="bus:main")).job
        job = await do(store, job, c.Start(actor=owner_of(job)))
        fields: dict[str, Any] = {
            "actor": owner_of(job),
            "result_ptr": "s3://r/1",
            "execution_ms": 77,
            "worker": "w-7",
        }
        end = (
            c.Fail(**fields, error_code="E1", body=b'{"message":"no"}')
            if fails
            else c.Complete(**fields, body=b"null")
        )
        await do(store, job, end)
        shown = (await http.get(f"/v1/jobs/{topic}")).json()
        assert (shown["result_ptr"], shown["error_code"]) == ("s3://r/1", "E1" if fails else None)
        result = (await http.get(f"/v1/jobs/{topic}/result")).json()
        assert (result["result_ptr"], result["worker_id"]) == ("s3://r/1", "w-7")
        assert result["execution_ms"] == 77
        events = (await http.get(f"/v1/jobs/{topic}/history")).json()["events"]
        facts = events[-1]["facts"]
        assert (facts["result_ptr"], facts["worker"]) == ("s3://r/1", "w-7")
        assert facts["execution_ms"] == 77
