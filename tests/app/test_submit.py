"""Submitting through an app, on both engines: what is asked for is what is in the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import (
    BadData,
    KeyConflict,
    NoSuchJob,
    PartlySubmitted,
    RequestIdReused,
    StoreUnavailable,
    ValidationError,
)
from holdfast.flow import submit
from holdfast.flow.submit import Inherited
from holdfast.ids import mint_id
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import LoggedEvent, NewJob
from holdfast.lifecycle.states import Link, Priority, State
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Query
from holdfast.tasks.context import current_context
from holdfast.tasks.tasks import Task
from holdfast.testing.store_actions import all_jobs
from tests.app.acts import context, end, watched_app

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER_TRACE = "00-11111111111111111111111111111111-2222222222222222-01"


def greeter(app: Holdfast) -> Task[[str], str]:
    """Register a plain task."""

    @app.task
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    return greet


async def first_event(app: Holdfast, job: Any) -> LoggedEvent:
    """Read what a submit wrote."""
    return (await (await app.store()).events(job.record.id))[0]


async def test_a_submit_is_a_job_with_its_named_arguments(app: Holdfast) -> None:
    job = await greeter(app).submit("Ada")
    event = await first_event(app, job)
    assert (job.state, job.created, job.record.task) == (State.QUEUED, True, "greet")
    assert decode_body(event.body) == {"name": "Ada"}
    assert event.actor == "gateway:app"


async def test_a_bad_argument_is_refused_before_anything_is_written(app: Holdfast) -> None:
    greet: Any = greeter(app)
    with pytest.raises(ValidationError, match=r"greet\(\).*name: Input should be a valid string"):
        await greet.submit(3)
    assert (await (await app.store()).find(Query())).jobs == []


@pytest.mark.req("A3", "A6", "A7")
async def test_options_reach_the_job_and_leave_the_task_alone(app: Holdfast) -> None:
    greet = greeter(app)
    asked = greet.options(
        queue="slow",
        priority="critical",
        needs={"gpu"},
        labels={"team": "a"},
        env={"locale": "de"},
        retries=0,
        timeout="1m",
        workflow_id="w",
        step_index=2,
        correlation_id="c",
        tenant="acme",
        job_id="mine",
    )
    job = await asked.submit("Ada")
    event = await first_event(app, job)
    record = job.record
    assert (job.id, record.tenant, record.queue, record.priority) == (
        "mine", "acme", "slow", Priority.CRITICAL,
    )  # fmt: skip
    assert (record.needs, record.workflow_id, record.step_index) == (frozenset({"gpu"}), "w", 2)
    assert (record.policy.max_attempts, record.policy.timeout) == (1, 60 * SECOND)
    assert event.created is not None
    assert (event.created.labels, event.created.env) == ({"team": "a"}, {"locale": "de"})
    assert event.correlation_id == "c"
    plain = await greet.submit("Ada")
    assert (plain.record.queue, plain.record.policy.max_attempts) == ("default", 4)


async def test_options_add_up(app: Holdfast) -> None:
    asked = greeter(app).options(retries=1, queue="a").options(timeout=5, queue="b")
    job = await asked.submit("Ada")
    assert (job.record.queue, job.record.policy.max_attempts, job.record.policy.timeout) == (
        "b", 2, 5 * SECOND,
    )  # fmt: skip


async def test_a_key_and_how_long_it_holds_may_be_said_apart(app: Holdfast) -> None:
    asked = greeter(app).options(dedupe_key="d").options(unique="live")
    await end(app, await asked.submit("Ada"), State.SUCCEEDED)
    assert (await asked.submit("Ada")).created


async def test_times_are_the_stores(app: Holdfast) -> None:
    greet = greeter(app)
    at = datetime(2040, 1, 1, tzinfo=UTC)
    micros = int(at.timestamp()) * SECOND
    job = await greet.options(delay="1h30m", deadline=timedelta(days=1)).submit("Ada")
    assert job.record.run_at == job.record.created_at + 5400 * SECOND
    assert job.record.deadline_at == job.record.created_at + 86_400 * SECOND
    job = await greet.options(run_at=at, deadline=at + timedelta(seconds=1)).submit("Ada")
    assert (job.record.run_at, job.record.deadline_at) == (micros, micros + SECOND)


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"delay": "soon"}, "delay", "delay must be a span"),
        ({"delay": 1, "run_at": datetime(2040, 1, 1, tzinfo=UTC)}, "run_at", "not both"),
        ({"run_at": datetime(2040, 1, 1)}, "run_at", "must have a time zone"),  # noqa: DTZ001
        ({"run_at": 1_700_000_000}, "run_at", "microseconds since 1970"),
        ({"deadline": "x"}, "deadline", "deadline must be a span"),
        ({"delay": "6000d"}, "delay", r"delay must be under 500,000,000 seconds \(15.8 years\)"),
        (
            {"deadline": "6000d"},
            "deadline",
            r"deadline must be under 500,000,000 seconds \(15.8 years\)",
        ),
        ({"client_job_id": "not a uuid"}, "client_job_id", "UUID of version 4"),
        (
            {"client_job_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"},
            "client_job_id",
            "UUID of version 4",
        ),
        ({"unique": "live"}, "dedupe_key", "give one"),
        ({"unique": "always", "dedupe_key": "k"}, "unique", "unique must be"),
        ({"labels": ["a"]}, "labels", "labels must be a mapping"),
        ({"retries": -1}, "retries", "retries must be"),
        ({"timeout": 0}, "timeout", "timeout must be positive"),
        ({"dellay": "5m"}, "dellay", "no option 'dellay'"),
    ],
)
def test_a_bad_option_is_refused_when_it_is_said(
    options: dict[str, Any], field: str, message: str
) -> None:
    greet: Any = greeter(Holdfast(":memory:"))
    with pytest.raises(BadData, match=message) as refused:
        greet.options(**options)
    assert refused.value.field == field


@pytest.mark.req("B5", "C11", "D11")
@pytest.mark.parametrize(
    "key",
    [
        {"job_id": "j"},
        {"request_id": "r"},
        {"client_job_id": "6F9619FF-8B86-4D01-B42D-00CF4FC964FF"},
        {"dedupe_key": "d"},
    ],
)
async def test_a_key_that_is_known_answers_with_its_job(app: Holdfast, key: Any) -> None:
    greet = greeter(app)
    first = await greet.options(**key).submit("Ada")
    again = await greet.options(**key).submit("Ada")
    assert (first.created, again.created, first.id) == (True, False, again.id)
    assert len(await all_jobs(await app.store())) == 1


async def test_a_key_for_another_body_is_refused_with_the_jobs_name(app: Holdfast) -> None:
    greet = greeter(app)
    await greet.options(request_id="r").submit("Ada")
    first = await greet.options(job_id="j").submit("Ada")
    with pytest.raises(RequestIdReused):
        await greet.options(request_id="r").submit("Bob")
    with pytest.raises(KeyConflict) as caught:
        await greet.options(job_id="j").submit("Bob")
    assert caught.value.job_id == str(first.record.id)


async def test_a_live_key_is_free_once_its_job_has_ended(app: Holdfast) -> None:
    unique = greeter(app).options(dedupe_key="d", unique="live")
    first = await unique.submit("Ada")
    assert not (await unique.submit("Bob")).created
    await end(app, first, State.SUCCEEDED)
    assert (await unique.submit("Bob")).created


@pytest.mark.req("A7")
async def test_a_parent_is_a_handle_an_id_or_a_context(app: Holdfast) -> None:
    greet = greeter(app)
    parent = await greet.options(job_id="parent").submit("Ada")
    for said in (parent, "parent", str(parent.record.id), context(id="parent")):
        child = await greet.options(parent=said).submit("Bob")
        assert (child.record.parent_id, child.record.link_kind) == (parent.record.id, Link.CHILD)
    with pytest.raises(NoSuchJob, match="no job stranger"):
        await greet.options(parent="stranger").submit("Bob")
    assert len([job async for job in app.jobs(parent=parent)]) == 4


async def test_many_are_answered_in_order(app: Holdfast) -> None:
    greet = greeter(app)
    jobs = await greet.submit_many(
        [("a",), {"name": "b"}, greet.options(queue="q").prepare("c"), ("d",)]
    )
    bodies = [decode_body((await first_event(app, job)).body) for job in jobs]
    assert [body["name"] for body in bodies] == ["a", "b", "c", "d"]
    assert [job.record.queue for job in jobs] == ["default", "default", "q", "default"]
    assert await greet.submit_many([]) == []
    calls: Any = ((name,) for name in ("eve", "dan"))
    assert len(await greet.submit_many(calls)) == 2, "an iterator is gone through once"


@pytest.mark.parametrize("traceparent", [None, TRACE])
def test_many_are_decided_as_each_alone(
    traceparent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Holdfast("sqlite:///unused.db")
    greet = greeter(app)

    @app.task(queue="sums", timeout=5)
    def add(a: int, b: int) -> int:
        return a + b

    once = greet.options(dedupe_key="once")
    calls = [
        greet.prepare("a"),
        once.prepare("b"),
        add.prepare(1, 2),
        once.prepare("c"),
        greet.prepare("d"),
        add.prepare(3, 4),
        greet.prepare("e"),
    ]
    parents = [None] * 6 + [mint_id()]
    ids = [mint_id() for _ in calls]
    monkeypatch.setattr(submit, "mint_id", iter(ids * 2).__next__)
    together = app.builder.decide_all(calls, parents, Inherited(None, traceparent))
    assert together == [
        app.builder.decide_all([call], [parent], Inherited(None, traceparent))[0]
        for call, parent in zip(calls, parents, strict=True)
    ]


async def test_many_of_several_tasks_go_together(app: Holdfast) -> None:
    greet = greeter(app)

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    jobs = await app.submit_many([greet.prepare("a"), add.prepare(1, 2)])
    assert [job.record.task for job in jobs] == ["greet", "add"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ((3,), r"call 2: invalid arguments of greet\(\): name"),
        ({"nam": "a"}, r"call 2: invalid arguments of greet\(\): "),
        ("a", "call 2: give a tuple, a mapping"),
    ],
)
async def test_one_bad_of_many_is_named_before_anything_is_written(
    app: Holdfast, bad: Any, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        await greeter(app).submit_many([("a",), ("b",), bad])
    assert await all_jobs(await app.store()) == []


async def test_one_of_many_with_bad_options_is_named_before_anything_is_written(
    app: Holdfast,
) -> None:
    greet = greeter(app)
    calls = [greet.prepare("a"), greet.options(queue="").prepare("b")]
    with pytest.raises(BadData, match="call 1: queue must not be empty"):
        await app.submit_many(calls)
    assert await all_jobs(await app.store()) == []


async def test_refused_keys_of_many_tell_what_became_of_each(app: Holdfast) -> None:
    greet = greeter(app)
    await greet.options(job_id="j").submit("Ada")
    with pytest.raises(PartlySubmitted, match="1 of 3 were refused: call 1: job_id 'j'") as caught:
        await app.submit_many(
            [greet.prepare("a"), greet.options(job_id="j").prepare("Bob"), greet.prepare("c")]
        )
    first, second, third = caught.value.outcomes
    assert (first.created, third.created) == (True, True)
    assert isinstance(second, KeyConflict)


async def test_a_task_that_is_registered_elsewhere_is_submitted_by_name(app: Holdfast) -> None:
    job = await app.submit("resize", image="a.png", width=3)
    assert decode_body((await first_event(app, job)).body) == {"image": "a.png", "width": 3}
    assert job.record.task == "resize"
    with pytest.raises(ValidationError, match="give its arguments by name"):
        await app.submit("resize", "a.png")
    asked = app.named("resize").options(queue="images", dedupe_key="k")
    assert (await asked.submit(image="b.png")).record.queue == "images"


async def test_a_task_that_is_registered_here_is_checked_by_name_too(app: Holdfast) -> None:
    greeter(app)
    assert (await app.submit("greet", "Ada")).record.task == "greet"
    with pytest.raises(ValidationError):
        await app.submit("greet", 3)


@pytest.mark.req("B23")
async def test_the_submitters_trace_goes_with_the_job(url: str) -> None:
    async with Holdfast(url, propagate=lambda: TRACE) as app:
        job = await greeter(app).submit("Ada")
        created = (await first_event(app, job)).created
    assert created is not None
    assert created.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert created.env == {"traceparent": TRACE}


@pytest.mark.parametrize("told", [None, "garbage", 3])
async def test_a_hook_that_tells_no_trace_is_no_trouble(told: Any) -> None:
    async with Holdfast(":memory:", propagate=lambda: told) as app:
        event = await first_event(app, await greeter(app).submit("Ada"))
    assert event.created is not None
    assert (event.created.trace_id, event.created.env) == (None, {})


async def test_a_hook_that_fails_loses_no_job(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> str:
        raise RuntimeError("no trace")

    async with Holdfast(":memory:", propagate=broken) as app:
        assert (await greeter(app).submit("Ada")).created
    assert "no trace" in caplog.text


@pytest.mark.req("B23")
async def test_a_job_submitted_by_a_handler_inherits_correlation_and_trace_but_no_parent(
    app: Holdfast,
) -> None:
    greet = greeter(app)
    token = current_context.set(context(correlation_id="c", env={"traceparent": TRACE}))
    try:
        event = await first_event(app, job := await greet.submit("Ada"))
        other = await first_event(app, await greet.options(correlation_id="d").submit("Ada"))
    finally:
        current_context.reset(token)
    assert event.created is not None
    assert (event.correlation_id, other.correlation_id) == ("c", "d")
    assert (event.created.trace_id, event.created.env["traceparent"]) == (TRACE[3:35], TRACE)
    assert job.record.parent_id is None


async def test_a_repeat_from_another_trace_is_still_the_same_request(url: str) -> None:
    traces = iter([TRACE, OTHER_TRACE, OTHER_TRACE])
    async with Holdfast(url, propagate=lambda: next(traces)) as app:
        asked = greeter(app).options(request_id="r")
        first, again = await asked.submit("Ada"), await asked.submit("Ada")
    assert (first.created, again.created, again.id) == (True, False, first.id)


@pytest.mark.req("C6")
async def test_a_lost_reply_names_the_job_and_can_be_asked_for_again(url: str) -> None:
    app, store = watched_app(url)

    async def lose(jobs: Sequence[NewJob]) -> None:
        store.after = None
        raise StoreUnavailable("the connection was lost")

    async with app:
        greet = greeter(app)
        store.after = lose
        with pytest.raises(StoreUnavailable) as caught:
            await greet.submit("Ada")
        lost = caught.value.job_id
        assert lost is not None
        again = await greet.options(job_id=lost).submit("Ada")
        assert (again.id, again.created) == (lost, False)
        assert len(await all_jobs(await app.store())) == 1


async def test_the_same_jobs_sent_again_are_made_once_and_answered_as_new(url: str) -> None:
    app, store = watched_app(url)
    async with app:
        greet = greeter(app)
        sent: list[Sequence[NewJob]] = []

        async def keep(jobs: Sequence[NewJob]) -> None:
            sent.append(jobs)

        store.after = keep
        await asyncio.gather(greet.submit("a"), greet.options(dedupe_key="d").submit("b"))
        again = await store.submit(sent[0])
        assert len(await all_jobs(await app.store())) == 2
        assert [outcome.job.id for outcome in again if not isinstance(outcome, Exception)] == [  # type: ignore[union-attr]
            job.record.id for job in sent[0]
        ]
