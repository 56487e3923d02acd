"""Webhooks for real: a job ends, a receiver elsewhere hears of it, once, and knows who says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from holdfast.app.app import Holdfast
from holdfast.errors import BadData, PermanentError, Undelivered
from holdfast.flow.approve import Approver, deny_approval
from holdfast.flow.notify import DeliveryRequest, notify
from holdfast.flow.submit import NamedTask
from holdfast.ids import mint_id
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.states import EventType, Role, State
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.ports.models import Query, SubmitRefused, Webhook
from holdfast.ports.store import Store
from holdfast.services import webhook_delivery as postman_module
from holdfast.services.webhook_delivery import (
    MessageSender,
    WebhookDelivery,
    WebhookFollower,
    _judge_reply,
)
from holdfast.telemetry import Meters
from holdfast.testing.store_actions import job_in, submit_one
from holdfast.webhooks.egress import Outside, Reply, read_networks
from holdfast.webhooks.registry import QUEUE, TASK, Message, WantedWebhook, WebhookRegistry
from holdfast.webhooks.signature import check_signature
from tests.crashes.waiting import until
from tests.support.policies import TWO_PEOPLE
from tests.webhooks.receiver import Receiver, Request

HERE = Outside(allow=read_networks(["127.0.0.0/8"]), timeout_seconds=5)
LIMIT_SECONDS = 30


@pytest.fixture
async def store(app: Holdfast) -> Store:
    return await app.store()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try again at once."""
    monkeypatch.setattr(postman_module, "BACKOFF", "10ms")


async def hook(store: Store, url: str, **wishes: Any) -> tuple[Webhook, str]:
    """Have a webhook, and its secret."""
    made = await WebhookRegistry(store, actor="control:ann").add(WantedWebhook(url=url, **wishes))
    [found] = await store.look_up_webhooks(made.about.id, tenant=made.about.tenant)
    assert made.secret is not None
    return found, made.secret


def errand(webhook: str, job: Job) -> DeliveryRequest:
    """The message that tells a webhook of a job's end."""
    return DeliveryRequest(webhook=webhook, internal_id=str(job.id), rev=job.rev)


@asynccontextmanager
async def delivering(
    app: Holdfast, outside: Outside = HERE, **wishes: Any
) -> AsyncIterator[WebhookDelivery]:
    """Have the postman at work."""
    postman = WebhookDelivery(
        await app.store(),
        app.make_store,
        "postman",
        outside=outside,
        tick_seconds=0.05,
        idle_seconds=0.01,
        **wishes,
    )
    working = asyncio.create_task(postman.run())
    try:
        yield postman
    finally:
        postman.stop()
        await asyncio.wait([working], timeout=LIMIT_SECONDS)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


async def deliveries(store: Store, until: Callable[[list[Job]], bool]) -> list[Job]:
    """Wait until the deliveries are as they are to be."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            jobs = (await store.find(Query(task=TASK))).jobs
            if until(jobs):
                return jobs
            await asyncio.sleep(0.02)


def ended(number: int) -> Callable[[list[Job]], bool]:
    """Tell when so many have ended."""
    return lambda jobs: len(jobs) >= number and all(job.terminal for job in jobs)


@pytest.mark.req("B32")
async def test_an_end_is_told_once_signed_and_with_its_token(app: Holdfast, store: Store) -> None:
    async with Receiver() as receiver, delivering(app):
        one, secret = await hook(store, receiver.url)
        job = await job_in(store, State.FAILED, job_id="mine-1")
        [delivery] = await deliveries(store, ended(1))
    [request] = receiver.requests
    now = float(request.headers["webhook-timestamp"])
    id_ = check_signature(secret, request.headers, request.body, now=now)

    assert id_ == f"msg_{one.id}_{job.id.hex}_{job.rev}"
    assert abs(now - delivery.created_at / 1e6) < LIMIT_SECONDS
    assert request.line == "POST /hook?a=1 HTTP/1.1"
    told = msgspec.json.decode(request.body, type=Message)
    assert told.type == "job.failed"
    assert (told.data.id, told.data.internal_id) == ("mine-1", str(job.id))
    assert (told.data.state, told.data.error_code, told.data.rev) == ("failed", "boom", job.rev)
    assert (told.data.epoch, told.data.attempt) == (1, 1)
    assert "body" not in json.loads(request.body)["data"], "what it did is for whoever asks"
    assert delivery.state is State.SUCCEEDED
    assert delivery.tenant == job.tenant


@pytest.mark.usefixtures("_impatient")
async def test_a_message_that_is_not_taken_is_tried_again_with_the_same_id(
    app: Holdfast, store: Store
) -> None:
    def moody(request: Request) -> bytes:
        tries = sum(one.headers["webhook-id"] == request.headers["webhook-id"] for one in got())
        return b"HTTP/1.1 204 -\r\n\r\n" if tries > 2 else b"HTTP/1.1 500 -\r\n\r\n"

    receiver = Receiver(moody)

    def got() -> list[Request]:
        return receiver.requests

    async with receiver, delivering(app):
        await hook(store, receiver.url)
        await job_in(store, State.SUCCEEDED)
        [delivery] = await deliveries(store, ended(1))

    assert delivery.state is State.SUCCEEDED
    assert len({request.headers["webhook-id"] for request in got()}) == 1
    assert len({request.body for request in got()}) == 1
    assert len(got()) == 3
    assert delivery.failures == 2


async def test_an_address_inside_is_refused_and_the_job_says_so(
    app: Holdfast, store: Store
) -> None:
    async with Receiver() as receiver, delivering(app, Outside()):
        await hook(store, receiver.url)
        await job_in(store, State.SUCCEEDED)
        [delivery] = await deliveries(store, ended(1))

    assert receiver.requests == []
    assert (delivery.state, delivery.error_code) == (State.FAILED, "address_blocked")
    assert delivery.attempt == 1, "no further try will mend it"


@pytest.mark.usefixtures("_impatient")
async def test_a_redirect_is_a_failure_and_what_it_points_to_is_not_called(
    app: Holdfast, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postman_module, "RETRIES", 1)
    async with Receiver() as inside:
        to = f"HTTP/1.1 307 -\r\nLocation: {inside.url}\r\n\r\n".encode()
        async with Receiver(to) as receiver, delivering(app):
            await hook(store, receiver.url)
            await job_in(store, State.SUCCEEDED)
            [delivery] = await deliveries(store, ended(1))

    assert inside.requests == []
    assert len(receiver.requests) == 2
    assert delivery.state is State.DEAD_LETTERED


async def test_a_receiver_that_wants_no_more_is_not_tried_again(
    app: Holdfast, store: Store
) -> None:
    async with Receiver(b"HTTP/1.1 410 Gone\r\n\r\n") as receiver, delivering(app):
        await hook(store, receiver.url)
        await job_in(store, State.SUCCEEDED)
        [delivery] = await deliveries(store, ended(1))

    assert (delivery.state, delivery.error_code) == (State.FAILED, "webhook_gone")
    assert len(receiver.requests) == 1


async def test_a_message_whose_webhook_was_removed_is_not_sent(store: Store) -> None:
    async with Receiver() as receiver:
        one, _ = await hook(store, receiver.url)
        job = await job_in(store, State.SUCCEEDED)
        await store.remove_webhook(one.id, tenant=one.tenant, actor="control:ann")
        done = await MessageSender(store, HERE).send(errand(one.id, job), job.tenant)

    assert done == {"skipped": "the webhook was removed"}
    assert receiver.requests == []


async def test_a_message_goes_to_its_own_tenants_webhook_of_that_id(store: Store) -> None:
    async with Receiver() as mine, Receiver() as theirs:
        # Both ways: one of the two is the first that a look at the id alone would find.
        receivers = {"mine": mine, "theirs": theirs}
        secrets = {
            tenant: (await hook(store, receiver.url, id="one", tenant=tenant))[1]
            for tenant, receiver in receivers.items()
        }
        for tenant in receivers:
            job = await job_in(store, State.SUCCEEDED, tenant=tenant)
            await MessageSender(store, HERE).send(errand("one", job), tenant)

    for tenant, receiver in receivers.items():
        [request] = receiver.requests
        check_signature(secrets[tenant], request.headers, request.body)


async def test_a_job_of_ones_own_fires_no_webhook_that_only_another_tenant_has(
    store: Store,
) -> None:
    async with Receiver() as receiver:
        await hook(store, receiver.url, id="billing", tenant="theirs")
        job = await job_in(store, State.SUCCEEDED, tenant="mine")
        with pytest.raises(PermanentError, match="has no webhook 'billing'"):
            await MessageSender(store, HERE).send(errand("billing", job), "mine")

    assert receiver.requests == []


async def test_nobody_can_have_a_message_sent_that_is_not_true(store: Store) -> None:
    async with Receiver() as receiver:
        one, _ = await hook(store, receiver.url)
        theirs = await job_in(store, State.SUCCEEDED, tenant="theirs")
        live = await submit_one(store)
        mine = await job_in(store, State.SUCCEEDED)
        delivery = MessageSender(store, HERE)
        for job, rev in (
            (str(theirs.id), theirs.rev),
            (str(live.id), live.rev),
            (str(mine.id), mine.rev - 1),
            (str(mine.id), mine.rev + 1),
            ("nonsense", 1),
        ):
            with pytest.raises(PermanentError):
                await delivery.send(
                    DeliveryRequest(webhook=one.id, internal_id=job, rev=rev), mine.tenant
                )

    assert receiver.requests == []


async def test_a_delivery_of_one_tenant_fires_no_webhook_of_another(
    app: Holdfast, store: Store
) -> None:
    """Such a job can only be left over from before reserved names were refused."""
    async with Receiver() as receiver, delivering(app):
        theirs = await job_in(store, State.SUCCEEDED, tenant="theirs")
        await hook(store, receiver.url, id="billing", tenant="theirs")
        forged = Submission(
            id=mint_id(),
            task=TASK,
            queue=QUEUE,
            tenant="mine",
            policy=Policy(max_attempts=1),
            body=msgspec.json.encode(errand("billing", theirs)),
        )
        await store.submit([submit(forged, Actor(Role.GATEWAY, "mine"), internal=True)])
        [delivery] = await deliveries(store, ended(1))
        failure = (await store.latest_events(delivery.id, (EventType.FAILED,), limit=1))[0]

    assert receiver.requests == []
    assert (delivery.tenant, delivery.state) == ("mine", State.FAILED)
    # It reads as if there were no such job: neither the tenant nor the webhook is confirmed.
    assert b"theirs" not in (failure.body or b"")
    assert b"did not end at revision" in (failure.body or b"")


def test_an_answer_is_judged() -> None:
    assert _judge_reply(Reply(200)) == {"status": 200}
    for status in (100, 301, 400, 404, 500):
        with pytest.raises(Undelivered, match=str(status)) as failed:
            _judge_reply(Reply(status))
        assert failed.value.retry_in is None
    with pytest.raises(Undelivered) as busy:
        _judge_reply(Reply(429, 7.0))
    assert busy.value.retry_in == 7.0
    with pytest.raises(Undelivered) as endless:
        _judge_reply(Reply(503, 999_999.0))
    assert endless.value.retry_in == 3600.0


@pytest.mark.usefixtures("_impatient")
async def test_a_postman_that_is_stopped_leaves_the_rest_to_the_next(
    app: Holdfast, store: Store
) -> None:
    async with Receiver() as receiver:
        await hook(store, receiver.url)
        async with delivering(app):
            await job_in(store, State.SUCCEEDED)
            await deliveries(store, ended(1))
        await job_in(store, State.SUCCEEDED)
        async with delivering(app):
            jobs = await deliveries(store, ended(2))

    assert len(receiver.requests) == len(jobs) == 2
    assert len({request.headers["webhook-id"] for request in receiver.requests}) == 2


async def test_without_webhooks_no_worker_looks_for_work(app: Holdfast, store: Store) -> None:
    meters = Meters()
    async with delivering(app, meters=meters):
        await until(lambda: "webhooks" in meters.pulses, "the first look")
        assert await store.workers() == []
        async with Receiver() as receiver:
            await hook(store, receiver.url)
            await job_in(store, State.SUCCEEDED)
            await deliveries(store, ended(1))
    assert len(receiver.requests) == 1
    [worker] = await store.workers()
    assert worker.stopped_at is not None, "it ended in order"


async def test_what_was_left_of_a_removed_webhook_is_ended(app: Holdfast, store: Store) -> None:
    one, _ = await hook(store, "https://hooks.example/")
    job = await job_in(store, State.SUCCEEDED)
    route = NamedTask(TASK, queue=QUEUE)
    while not (await notify(store, Actor(Role.GATEWAY, "f"), route)).messages:
        pass
    await store.remove_webhook(one.id, tenant=one.tenant, actor="control:ann")
    async with delivering(app):
        [delivery] = await deliveries(store, ended(1))
    assert delivery.state is State.SUCCEEDED
    assert str(job.id) in str(await store.events(delivery.id))


async def test_a_message_that_cannot_be_submitted_is_told(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def submit(self, jobs: Any) -> Any:
            return [SubmitRefused(code="no", message="the law says no") for _ in jobs]

    await hook(store, "https://hooks.example/")
    await job_in(store, State.SUCCEEDED)
    refusing: Any = Refusing()
    route = NamedTask(TASK, queue=QUEUE)

    def seen(report: Any) -> None:
        if report.refused:
            follower.stop()

    follower = WebhookFollower(refusing, "f", route, idle_seconds=0.01, on_look=seen)
    await asyncio.wait_for(follower.run(), LIMIT_SECONDS)
    assert "the law says no" in caplog.text


async def test_a_webhook_is_told_of_approvals_that_are_requested(app: Holdfast) -> None:
    store = await app.store()
    await store.apply_policy(TWO_PEOPLE, actor="control:ann")
    async with Receiver() as asked, Receiver() as ended, delivering(app):
        _, secret = await hook(store, asked.url, events=["approval_requested"], task="deploy.web")
        await hook(store, ended.url)
        await submit_one(store, job_id="other", task="deploy.other")
        job = await submit_one(store, job_id="web", task="deploy.web")
        await until(lambda: len(asked.requests) == 1, "the request to be reported")
        [request] = asked.requests
        check_signature(secret, request.headers, request.body)
        message = json.loads(request.body)
        assert message["type"] == "job.approval_requested"
        data = message["data"]
        assert (data["id"], data["rule"], data["needs"]) == ("web", "prod", 2)
        assert (data["reason"], data["submitter"]) == ("prod needs two people", "gateway:api")
        assert data["expires_at"] is not None
        person = Approver(name="ben", role="operator")
        await deny_approval(store, job.id, person)
        await until(lambda: len(ended.requests) == 1, "the end to be reported")
        assert json.loads(ended.requests[0].body)["type"] == "job.denied"
    # The end is not reported to who asked for requests alone.
    assert len(asked.requests) == 1


async def test_what_a_webhook_is_notified_of_is_kept_and_shown(app: Holdfast) -> None:
    registry = WebhookRegistry(await app.store(), actor="control:ann")
    url, both = "https://hooks.example/", ["ended", "approval_requested"]
    for wishes, states, events in (
        ({}, None, ["ended"]),
        ({"events": both}, None, both),
        ({"events": both, "states": ["failed"]}, ["failed"], both),
        ({"events": ["approval_requested"]}, [], ["approval_requested"]),
    ):
        wanted = msgspec.convert({"url": url, **wishes}, WantedWebhook)
        made = await registry.add(wanted)
        shown = await registry.get(made.about.id)
        assert (shown.states, shown.events) == (states, events)
        again = await registry.add(msgspec.structs.replace(wanted, id=made.about.id))
        assert not again.created
    nothing: dict[str, Any] = {"events": []}
    for refused in (nothing, {"events": ["approval_requested"], "states": ["failed"]}):
        with pytest.raises(BadData):
            await registry.add(msgspec.convert({"url": url, **refused}, WantedWebhook))
    with pytest.raises(BadData, match="reports ends"):
        await registry.add(WantedWebhook(url=url, states=[State.PENDING]))
