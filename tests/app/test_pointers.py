"""`context_ptr`, `adapter_id` and `env` reach the worker byte for byte, on every way there."""

from __future__ import annotations

import ast
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Raw

import holdfast
from holdfast import Client, Context, Holdfast
from holdfast.errors import BadData, JobError
from holdfast.http.app import make_server
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Created, JobId
from holdfast.lifecycle.states import Link
from holdfast.maintenance.rebuild import rebuild
from holdfast.operations.requests import GetHistory, SubmitJob, WantedJob
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import claim_one, do
from holdfast.wiring import make_store, read_address
from tests.http.conftest import Names
from tests.worker_protocol.hand import Hand

SOURCE = Path(holdfast.__file__).parent
POINTERS = [
    "redis://cache:6379/0?key=ctx:1#part",
    "s3://bucket/a b/../c//d%2F",
    "x:%00%ff?",
    "  \t\n spaces kept \r\n ",
    "not a uri at all: \\ \" ' < > ` {0} %s",
    "çontext-ünïcode-\U0001f680-\u202e-é-e\u0301",
    "a" * 1000,
    "\U0001f680" * 1000,
]
ENV = {"locale": "de_DE", "empty": "", "odd name": "\U0001f680=\n"}


@pytest.fixture
async def app(url: str) -> AsyncIterator[Holdfast]:
    """An app on either engine."""
    async with Holdfast(url, topics={"job.chat.*": {"queue": "default"}}) as made:
        yield made


@pytest.fixture
async def store(app: Holdfast) -> Store:
    """Where its jobs are."""
    return await app.store()


@pytest.fixture
async def http(app: Holdfast) -> AsyncIterator[httpx.AsyncClient]:
    """A server on the same store."""
    server = make_server(make_store(read_address(app.url)), Names(), topics=app.topics)
    async with (
        server.lifespan_context(server),
        httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url="http://test") as made,
    ):
        yield made


async def created(store: Store, id: JobId) -> Created:
    """Read what a submitter gave."""
    [first] = await store.events(id, limit=1)
    assert first.created is not None
    return first.created


@pytest.mark.req("A4", "A5", "A6")
@pytest.mark.parametrize("pointer", POINTERS)
async def test_a_handler_gets_what_was_submitted(app: Holdfast, pointer: str) -> None:
    @app.task(name="job.chat.simple")
    async def simple(ctx: Context) -> list[Any]:
        job = ctx.job
        return [job.context_ptr, job.adapter_id, job.env]

    given: Any = {"context_ptr": pointer, "adapter_id": "a", "env": ENV}
    called = await simple.options(**given).submit()
    routed = await app.submit_topic("job.chat.simple", **given)
    async with app.worker(adapters=["a"]):
        assert await called.result("60s") == [pointer, "a", ENV]
        assert await routed.result("60s") == [pointer, "a", ENV]


@pytest.mark.req("A4", "A6")
@pytest.mark.parametrize("pointer", POINTERS)
async def test_http_the_client_and_the_worker_protocol_carry_it_unchanged(
    app: Holdfast, store: Store, http: httpx.AsyncClient, pointer: str
) -> None:
    given: Any = {"context_ptr": pointer, "adapter_id": "a", "env": ENV}
    bodies: list[dict[str, Any]] = [{"task": "charge"}, {"topic": "job.chat.simple"}]
    jobs = [(await http.post("/v1/jobs", json=body | given)).json()["job"] for body in bodies]
    async with Client("http://test", transport=http._transport) as client:
        by_client = await client.submit(client.named("charge").options(**given))
        topic = await client.submit_topic("job.chat.simple", **given)
        command = await client.submit_command("true", **given | {"env": {"A": "b"}})
    for one in (by_client, topic, command):
        assert (await created(store, one.record.id)).context_ptr == pointer
    hand = await Hand.hired(http, queues=["default"])
    assert await hand.claim(limit=10, capabilities=[]) == []
    assigned = await hand.claim(limit=10, capabilities=["adapter:a"])
    assert len(assigned) == 4
    for job in assigned:
        assert (job["context_ptr"], job["adapter_id"], job["env"]) == (pointer, "a", ENV)
    history = (await http.get(f"/v1/jobs/{jobs[1]['internal_id']}/history")).json()
    facts = history["events"][0]["facts"]
    assert {name: facts[name] for name in given} == given


@pytest.mark.req("A4", "A5", "A6")
@pytest.mark.parametrize("pointer", POINTERS[:5])
async def test_linked_retries_redrives_and_a_rebuild_keep_it(
    app: Holdfast, store: Store, pointer: str
) -> None:
    @app.task(idempotent=False, retries=1, backoff="10ms")
    async def fails() -> None:
        raise RuntimeError("again")

    given: Any = {"context_ptr": pointer, "adapter_id": "a", "env": ENV}
    job = await fails.options(**given).submit()
    claimed = await claim_one(store, "default", capabilities=frozenset({"adapter:a"}))
    started = await do(store, claimed.job, c.Start(actor=owner_of(claimed.job)))
    lost = c.DeadLetter(
        actor=owner_of(started), error_code="timeout", stage="exec", body=b'{"message":"x"}'
    )
    await do(store, started, lost)
    redriven = await job.redrive()
    assert redriven.record.link_kind is Link.REDRIVE
    async with app.worker(adapters=["a"]):
        with pytest.raises(JobError):
            await redriven.result("60s")
    ids = [one.record.id async for one in app.jobs(task="fails")]
    assert len(ids) == 3
    links = {one.record.link_kind async for one in app.jobs(task="fails")}
    assert links == {None, Link.REDRIVE, Link.RETRY}
    await rebuild(store)
    for id_ in ids:
        made = await created(store, id_)
        assert (made.context_ptr, made.adapter_id, made.env) == (pointer, "a", ENV)
        [record] = await store.get([id_])
        assert record is not None
        assert record.needs == {"adapter:a"}


@pytest.mark.req("A4")
@pytest.mark.parametrize("pointer", ["", "a" * 1001, "a\0b", "\ud800", 7])
async def test_what_cannot_be_kept_is_refused_with_its_field(app: Holdfast, pointer: Any) -> None:
    with pytest.raises(BadData, match="context_ptr") as refused:
        await app.submit_topic("job.chat.simple", context_ptr=pointer)
    assert refused.value.field == "context_ptr"


@pytest.mark.req("A6")
@pytest.mark.parametrize("over", [0, 1])
async def test_env_is_bounded_over_python_and_http(
    app: Holdfast, store: Store, http: httpx.AsyncClient, over: int
) -> None:
    env = {f"{number:04}": "x" * 996 for number in range(16)} | {"rest": "y" * (380 + over)}
    assert sum(len(name) + len(text) for name, text in env.items()) == 16 * 1024 + over
    bodies: list[dict[str, Any]] = [{"task": "t"}, {"topic": "job.chat.simple"}]
    replies = [await http.post("/v1/jobs", json=body | {"env": env}) for body in bodies]
    if not over:
        job = await app.named("t").options(env=env).submit()
        assert (await created(store, job.record.id)).env == env
        assert [reply.status_code for reply in replies] == [201, 201]
        return
    for reply in replies:
        assert (reply.status_code, reply.json()["field"]) == (422, "$.env"), reply.text
    with pytest.raises(BadData, match="the limit is 16,384") as refused:
        app.named("t").options(env=env)
    assert refused.value.field == "env"
    with pytest.raises(BadData, match="the limit is 16,384"):
        await app.submit_topic("job.chat.simple", env=env)


async def test_the_variables_of_a_command_are_not_shown(app: Holdfast) -> None:
    job = await app.submit_command("true", env={"TOKEN": "secret"}, context_ptr="x:1")
    operations = await app.operations()
    page = await operations.do(GetHistory(job=job.record.id))
    assert page.events[0].facts["context_ptr"] == "x:1"
    assert "env" not in page.events[0].facts


async def test_the_trace_is_not_shown_as_metadata(app: Holdfast) -> None:
    operations = await app.operations()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    wanted = WantedJob(task="t", args=Raw(b"{}"), traceparent=trace)
    made = await operations.do(SubmitJob(job=wanted))
    page = await operations.do(GetHistory(job=made.job.id))
    assert "env" not in page.events[0].facts


@pytest.mark.req("A4")
def test_nothing_parses_a_context_pointer() -> None:
    """It may be read, passed and compared, and nothing is called with or on it but its check."""
    found = {
        f"{path.relative_to(SOURCE)}:{call.lineno}: {ast.unparse(call.func)}"
        for path in SOURCE.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(call, ast.Call) and _touches(call)
    }
    assert {line.rpartition(": ")[2] for line in found} <= ALLOWED, found


ALLOWED = {"first.facts.get", "plain"}
"""Showing it to a person."""


def _touches(call: ast.Call) -> bool:
    """Return whether a call takes a pointer as a plain argument, or is of a method of one."""
    values = [*call.args, call.func]
    return any(
        "context_ptr" in ast.unparse(value) and not isinstance(value, ast.Call | ast.Lambda)
        for value in values
        if isinstance(value, ast.Attribute | ast.Name | ast.Subscript)
    )


@pytest.mark.parametrize("line", ["urlsplit(made.context_ptr)", "context_ptr.split(':')"])
def test_what_would_parse_it_is_found(line: str) -> None:
    call = ast.parse(line).body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    assert _touches(call.value)
