"""`holdfast.Client`: the same jobs as an app's, over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from holdfast import Backoff, Client, Holdfast, JobDeadLettered, ResultTimeout
from holdfast.errors import (
    BadAddress,
    BadConnection,
    BadData,
    HoldfastError,
    KeyConflict,
    NoSuchJob,
    PartlySubmitted,
    Unauthorized,
    ValidationError,
)
from holdfast.http.router import Application
from holdfast.lifecycle.states import Priority, State
from tests.client.tasks import add, break_down, third_time


async def test_a_task_at_hand_brings_its_terms_and_its_types(client: Client, app: Holdfast) -> None:
    job = await client.submit(add, 1, b=2)
    assert (job.created, job.state, job.record.queue) == (True, State.QUEUED, "sums")
    assert job.record.policy == add.policy
    async with app.worker(queues=["sums"]):
        assert await job.result("30s") == 3
    assert job.state is State.SUCCEEDED
    assert (await job.events())[0].type == "job_created"
    embedded = await app.get(job.id)
    assert (await job.refresh()).record.rev == embedded.record.rev


async def test_arguments_are_checked_before_anything_is_sent(client: Client) -> None:
    with pytest.raises(ValidationError):
        await client.submit(add, "x")  # type: ignore[call-overload]
    assert [job async for job in client.jobs()] == []


async def test_options_go_along(client: Client) -> None:
    parent = await client.submit("other")
    at = datetime(2030, 1, 1, tzinfo=UTC)
    job = await client.submit(
        add.options(
            run_at=at,
            deadline=timedelta(days=5000),
            job_id="sum/1",
            workflow_id="w",
            step_index=3,
            correlation_id="c",
            labels={"a": "b"},
            priority="batch",
            needs={"gpu", "disk"},
            timeout=None,
            backoff=Backoff(first="1s", factor=3.0, max="9s"),
            parent=parent,
        ),
        1,
    )
    record = job.record
    assert (job.id, record.workflow_id, record.step_index) == ("sum/1", "w", 3)
    assert (record.priority, record.needs) == (Priority.BATCH, frozenset({"gpu", "disk"}))
    assert record.run_at == round(at.timestamp()) * 1_000_000
    assert record.deadline_at is not None
    assert record.policy.max_attempts == add.policy.max_attempts
    assert (record.policy.backoff_factor, record.policy.backoff_max) == (3.0, 9_000_000)
    assert record.parent_id == parent.record.id
    [first] = await job.events()
    assert first.correlation_id == "c"


@pytest.mark.req("D10", "D11")
async def test_a_client_job_id_stands_for_one_job(client: Client) -> None:
    task = client.named("other").options(client_job_id="3f2504e0-4f89-41d3-9a0c-0305e82c3301")
    first, again = await task.submit(), await task.submit()
    assert (first.created, again.created, again.id) == (True, False, first.id)


async def test_by_its_name_a_task_is_asked_for_in_words(client: Client) -> None:
    task = client.named("resize").options(
        delay="1h", retries=2, timeout="5m", backoff=Backoff(first=1, factor=2, max="1m")
    )
    job = await task.submit(image="a.png")
    policy = job.record.policy
    assert (policy.max_attempts, policy.timeout) == (3, 300_000_000)
    assert (policy.backoff_first, policy.backoff_max) == (1_000_000, 60_000_000)
    with pytest.raises(ValidationError, match="by name"):
        await client.named("resize").submit("a.png")
    with pytest.raises(BadData, match="queue must not be empty") as refused:
        await client.named("resize").options(queue="").submit(image="a.png")
    assert refused.value.field == "$.jobs[0].queue"
    with pytest.raises(BadData, match="not removed"):
        await client.named("resize").options(timeout=None).submit()


async def test_a_failure_is_told_as_the_app_tells_it(client: Client, app: Holdfast) -> None:
    job = await client.submit(break_down, "by itself")
    async with app.worker():
        with pytest.raises(JobDeadLettered) as remote:
            await job.result("30s")
    with pytest.raises(type(remote.value)) as local:
        await (await app.get(job.id)).result()
    assert str(remote.value) == str(local.value)
    assert vars(remote.value) == vars(local.value)


async def test_a_result_is_that_of_the_last_try(
    client: Client, app: Holdfast, tmp_path: Path
) -> None:
    job = await client.submit(third_time, str(tmp_path / "marks"))
    async with app.worker():
        assert await job.result("30s") == "done"
    assert job.state is State.FAILED
    second = await job.retried_as()
    assert second is not None
    third = await second.retried_as()
    assert third is not None
    assert third.state is State.SUCCEEDED
    assert await third.retried_as() is None


async def test_a_wait_that_ends_first_says_where_the_job_stands(client: Client) -> None:
    job = await client.submit("other")
    for wait in (job.result, job.wait):
        with pytest.raises(ResultTimeout, match=r"is queued and has not ended within 0\.05 s"):
            await wait("50ms")


async def test_of_many_the_refused_one_is_told(client: Client) -> None:
    task = client.named("other")
    await task.options(job_id="j").submit(a=1)
    calls = [task.prepare(a=1), task.options(job_id="j").prepare(a=2)]
    with pytest.raises(PartlySubmitted) as partly:
        await client.submit_many(calls)
    good, bad = partly.value.outcomes
    assert good.created
    assert isinstance(bad, KeyConflict)
    with pytest.raises(KeyConflict):
        await client.submit_many(calls[1:])
    assert await client.submit_many([]) == []


async def test_more_jobs_than_one_request_takes_are_submitted_in_parts(client: Client) -> None:
    task = client.named("other")
    jobs = await client.submit_many([task.prepare(number=number) for number in range(1500)])
    assert len({job.id for job in jobs}) == 1500
    assert [job.id async for job in client.jobs(limit=150)] == [job.id for job in jobs[:-151:-1]]


async def test_jobs_are_found_and_worked_on(client: Client) -> None:
    job = await client.submit("other")
    assert [one.id async for one in client.jobs(state="queued", task="other")] == [job.id]
    assert [one async for one in client.jobs(state=["failed", State.RUNNING])] == []
    assert (await client.why(job)).reason.code == "no_worker"
    await job.signal("go", {"a": 1})
    assert [signal.name for signal in job.record.signals] == ["go"]
    assert (await client.pause("default", reason="repairs")).paused_by == "control:root"
    [queue] = await client.queues()
    assert (queue.jobs, queue.reason) == ({State.QUEUED: 1}, "repairs")
    assert (await client.resume("default")).paused_at is None
    assert (await client.workers()).workers == []
    assert (await client.cancel(job.id, reason="enough")).state is State.CANCELLED
    assert await job.cancel() is State.CANCELLED
    with pytest.raises(BadData):
        [one async for one in client.jobs(state="lost")]


@pytest.mark.parametrize(
    "name", ["a/b", "x/cancel", "..", ".", "a b?c#d%2F", "ünïcödé\u202e", "100%", "a;b,c", "//"]
)
async def test_a_job_is_found_by_any_name_it_may_have(client: Client, name: str) -> None:
    job = await client.named("other").options(job_id=name).submit()
    assert (await client.get(name)).record.id == job.record.id
    assert (await client.cancel(name)).state is State.CANCELLED
    paused = await client.pause(name)
    assert paused.name == name


async def test_a_token_acts_for_its_tenant_and_roots_for_any(server: Application) -> None:
    transport = httpx.ASGITransport(server)
    mine = Client("http://test", "ann@mine", transport=transport)
    root = Client("http://test", "root", tenant="mine", transport=transport)
    everybody = Client("http://test", "root", transport=transport)
    async with mine, root, everybody:
        job = await mine.named("other").options(job_id="j").submit()
        assert (await root.get("j")).record.id == job.record.id
        with pytest.raises(NoSuchJob):
            await everybody.get("j")
        assert (await everybody.get(job.record.id)).id == "j"
        foreign = Client("http://test", "bob@theirs", tenant="mine", transport=transport)
        with pytest.raises(HoldfastError, match="another tenant"):
            await foreign.get("j")
        await foreign.close()


async def test_errors_are_those_of_an_app(client: Client, server: Application) -> None:
    with pytest.raises(NoSuchJob, match="no job nix") as missing:
        await client.get("nix")
    assert (missing.value.code, missing.value.job_id) == ("no_such_job", "nix")
    async with Client("http://test", "nobody", transport=httpx.ASGITransport(server)) as stranger:
        with pytest.raises(Unauthorized):
            await stranger.get("nix")
    with pytest.raises(BadConnection):
        await client.named("other").submit_in(object())


@pytest.mark.parametrize(
    "url",
    [
        "jobs.db",
        "http://",
        "ftp://host",
        "http://host:x",
        "http://a:b@host",
        "http://host/?a=b",
        "",
    ],
)
def test_a_bad_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(BadAddress):
        Client(url)


@pytest.mark.parametrize("token", ["", "a\nb", "a b ", "tökén"])
def test_a_token_that_no_header_can_hold_is_refused_at_once(token: str) -> None:
    with pytest.raises(BadData):
        Client("http://host", token)


def test_a_client_does_not_show_its_token() -> None:
    assert "secret" not in repr(Client("http://host", "secret"))
