"""`submit_command` of an app and of a client: the same handles, results and refusals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest

from holdfast import Client, Holdfast
from holdfast.errors import BadData, JobCancelled, JobError, JobFailed, JobTimedOut
from holdfast.http.app import make_server
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.states import Kind
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do
from holdfast.wiring import Address, make_store
from tests.http.conftest import Names
from tests.support.command_ends import end_command, start_command
from tests.support.command_table import AGENT, CODES, GRANTED, KEPT, KEY, REFUSED, Case

Submitter: TypeAlias = Holdfast | Client
BOTH = {"command", "argv"}
"""Python takes one of them, and tells them apart by their type."""


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Holdfast]:
    """An app on a file of its own."""
    async with Holdfast(str(tmp_path / "jobs.db"), name="shop") as made:
        yield made


@pytest.fixture
async def store(app: Holdfast) -> Store:
    """Where its jobs are."""
    return await app.store()


@pytest.fixture(params=["app", "client"])
async def submitter(request: pytest.FixtureRequest, app: Holdfast) -> AsyncIterator[Submitter]:
    """The app, or a client of a server on the same file."""
    if request.param == "app":
        yield app
        return
    server = make_server(make_store(Address(engine="sqlite", place=app.url)), Names())
    async with (
        server.lifespan_context(server),
        Client("http://test", transport=httpx.ASGITransport(server)) as client,
    ):
        yield client


async def submit(submitter: Submitter, request: dict[str, Any]) -> Any:
    """Submit a request of the table as Python writes it."""
    options = {name: value for name, value in request.items() if name not in BOTH}
    return await submitter.submit_command(request.get("command", request.get("argv")), **options)


@pytest.mark.req("D2", "D17")
@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.name)
async def test_a_command_is_kept_as_the_table_says(
    submitter: Submitter, store: Store, case: Case
) -> None:
    job = await submit(submitter, case.request)
    if case.field in GRANTED:
        name, unit = GRANTED[case.field]
        assert getattr(job.record, name) == case.kept * unit
    [first] = await store.events(job.record.id, limit=1)
    spec = decode_body(first.body)
    assert spec.get(case.field, case.kept) == case.kept
    assert spec.get("asked", {}) == ({} if case.kept == case.value else {case.field: case.value})


@pytest.mark.req("D1", "D2", "D9", "D10", "D17")
@pytest.mark.parametrize(
    "case",
    [case for case in REFUSED if not case.request.keys() >= BOTH],
    ids=lambda case: case.name,
)
async def test_a_refusal_names_the_field(submitter: Submitter, case: Case) -> None:
    with pytest.raises(BadData) as caught:
        await submit(submitter, case.request)
    assert str(caught.value.field).removeprefix("$.") == case.field
    assert caught.value.code in CODES.get(str(case.code), {case.code})


async def test_an_option_that_does_not_exist_is_named(submitter: Submitter) -> None:
    options: dict[str, Any] = {"imagine": "busybox"}
    with pytest.raises(BadData, match="imagine") as caught:
        await submitter.submit_command("make", **options)
    assert caught.value.field == "imagine"


@pytest.mark.req("D4", "D9")
async def test_the_result_of_a_command_is_its_exit_code(submitter: Submitter, store: Store) -> None:
    good = await submitter.submit_command("make test")
    await end_command(store, 0)
    assert await good.result("30s") == {"exit_code": 0}

    bad = await submitter.submit_command(["make", "test"])
    await end_command(store, 42)
    with pytest.raises(JobFailed, match="exit code 42") as caught:
        await bad.result("30s")
    assert (caught.value.exit_code, bad.record.exit_code) == (42, 42)


@pytest.mark.req("D6", "D7")
async def test_other_ends_have_their_exit_code_too(submitter: Submitter, store: Store) -> None:
    kinds: tuple[type[JobError], ...] = (JobTimedOut, JobCancelled)
    for kind in kinds:
        handle = await submitter.submit_command("sleep 9")
        job = await start_command(store)
        owner = owner_of(job)
        if kind is JobCancelled:
            assert await handle.cancel() == "running"
            [job] = [one for one in await store.get([job.id]) if one is not None]
        stop = c.Cancel if kind is JobCancelled else c.TimeOut
        await do(store, job, stop(actor=owner, exit_code=137))
        with pytest.raises(kind) as caught:
            await handle.result("30s")
        assert caught.value.exit_code == 137


@pytest.mark.req("D10", "D11")
async def test_a_repeat_returns_the_same_job(submitter: Submitter) -> None:
    first = await submitter.submit_command("make", client_job_id=KEY)
    again = await submitter.submit_command("another", client_job_id=KEY.upper())
    assert (first.created, again.created) == (True, False)
    assert again.record.id == first.record.id


async def test_what_any_job_can_have_a_command_can_have(submitter: Submitter) -> None:
    parent = await submitter.submit_command("first")
    job = await submitter.submit_command(
        "second",
        parent=parent,
        delay="1h",
        deadline=timedelta(hours=3),
        labels={"a": "b"},
        env={"LANG": "C"},
        queue="slow",
        priority="batch",
        needs=("gpu",),
        workflow_id="w",
        step_index=3,
        correlation_id="c-1",
    )
    record = job.record
    assert (record.parent_id, record.link_kind) == (parent.record.id, "child")
    assert (record.queue, record.priority, record.workflow_id) == ("slow", "batch", "w")
    assert record.needs == {"command", "gpu"}
    [first] = await job.events()
    assert (first.correlation_id, first.facts["labels"]) == ("c-1", {"a": "b"})


async def test_an_agent_is_submitted_by_its_type(submitter: Submitter) -> None:
    job = await submit(submitter, AGENT)
    assert (job.record.kind, job.record.queue) == (Kind.AGENT, "agents")


async def test_a_failed_command_is_redriven_as_a_linked_job(
    submitter: Submitter, store: Store
) -> None:
    job = await submitter.submit_command("make", job_id="build-1")
    await end_command(store, 1)
    again = await job.redrive()
    assert (again.record.link_kind, again.record.parent_id) == ("redrive", job.record.id)
    await end_command(store, 0)
    assert await again.result("30s") == {"exit_code": 0}


@pytest.mark.req("D1")
async def test_a_task_that_is_named_worker_is_another_thing(app: Holdfast, store: Store) -> None:
    @app.task(name="worker", retries=5)
    async def work(n: int) -> int:
        return n

    call = await work.submit(1)
    job = await app.submit_command("make")
    assert (call.record.kind, job.record.kind) == (Kind.FUNCTION, Kind.COMMAND)
    assert job.record.policy.max_attempts == 1
    await end_command(store, 0)
    assert await (await app.get(job.id)).result("30s") == {"exit_code": 0}


async def test_an_app_submits_for_its_own_tenant(tmp_path: Path) -> None:
    async with Holdfast(str(tmp_path / "jobs.db"), tenant="acme") as app:
        parent = await app.submit_command("first", job_id="first")
        child = await app.submit_command("second", parent="first")
        other = await app.submit_command("third", tenant="other")
    assert (parent.record.tenant, child.record.parent_id) == ("acme", parent.record.id)
    assert other.record.tenant == "other"


def test_a_thread_without_a_loop_submits_a_command(tmp_path: Path) -> None:
    app = Holdfast(str(tmp_path / "jobs.db"))
    try:
        job = app.submit_command_sync(["make"], cpus=1)
        assert (job.record.task, job.record.cpus) == ("worker", 1)
    finally:
        app.close_sync()
