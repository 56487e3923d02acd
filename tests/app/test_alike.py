"""Many calls of one task at once: sent as one decision, answered as any others are."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import BadData, PartlySubmitted, StoreUnavailable
from holdfast.lifecycle.record import Record
from holdfast.lifecycle.states import State
from holdfast.ports.models import SubmitRefused
from holdfast.tasks.handles import JobHandle
from holdfast.tasks.tasks import ALIKE_LEAST, AlikeCalls, Task, find_alike
from holdfast.telemetry import Meters
from holdfast.testing import Kit
from holdfast.testing.store_actions import all_jobs
from tests.app.acts import Watched
from tests.app.test_submit import greeter

MANY = [(str(number),) for number in range(ALIKE_LEAST)]


@pytest.fixture
def greet(watched: tuple[Holdfast, Watched]) -> Task[[str], str]:
    """A plain task of the watched app."""
    return greeter(watched[0])


async def arguments_of(app: Holdfast, jobs: list[JobHandle[Any]]) -> list[bytes | None]:
    store = await app.store()
    return [(await store.events(job.record.id, limit=1))[0].body for job in jobs]


def is_made(job: JobHandle[Any]) -> bool:
    return isinstance(job._record, Record)


async def test_handles_of_many_are_as_those_of_few(
    watched: tuple[Holdfast, Watched], greet: Task[[str], str]
) -> None:
    jobs = await greet.submit_many(MANY)

    assert not any(map(is_made, jobs))
    store = await watched[0].store()
    for number, job in enumerate(jobs):
        [stored] = await store.get([job.record.id])
        assert (job.record, job.id, job.created) == (stored, str(job.record.id), True)
        assert job.state is State.QUEUED
        assert repr(job) == f"<JobHandle {job.id} greet queued>"
        assert (await job.refresh()).record == stored, number
    assert await arguments_of(watched[0], jobs) == [b'{"name":"%d"}' % n for n in range(len(MANY))]


@pytest.mark.parametrize("how", ["tuples", "mappings", "prepared", "with options"])
async def test_calls_of_one_task_are_one_decision(
    watched: tuple[Holdfast, Watched], greet: Task[[str], str], how: str
) -> None:
    app, store = watched
    texts = [text for (text,) in MANY]
    match how:
        case "tuples":
            jobs = await greet.submit_many(MANY)
        case "mappings":
            jobs = await greet.submit_many([{"name": text} for text in texts])
        case "prepared":
            jobs = await app.submit_many([greet.prepare(text) for text in texts])
        case _:
            jobs = await greet.options(queue="slow", labels={"a": "b"}).submit_many(MANY)
    assert store.batches == [len(MANY)]
    assert not any(map(is_made, jobs))
    assert {job.record.queue for job in jobs} == {"slow" if how == "with options" else "default"}
    assert await arguments_of(app, jobs) == [b'{"name":"%s"}' % text.encode() for text in texts]


async def test_calls_with_a_key_each_are_decided_by_themselves(
    watched: tuple[Holdfast, Watched], greet: Task[[str], str]
) -> None:
    calls = [greet.options(job_id=f"job-{text}").prepare(text) for (text,) in MANY]
    jobs = await watched[0].submit_many(calls)
    again = await watched[0].submit_many(calls)

    assert [job.id for job in again] == [job.id for job in jobs] == [f"job-{t}" for (t,) in MANY]
    assert {job.created for job in again} == {False}


async def test_calls_that_share_a_key_make_one_job(greet: Task[[str], str]) -> None:
    jobs = await greet.options(job_id="one").submit_many([("same",)] * ALIKE_LEAST)

    assert {job.id for job in jobs} == {"one"}


async def test_many_children_mark_their_parent(
    watched: tuple[Holdfast, Watched], greet: Task[[str], str]
) -> None:
    parent = await greet.submit("parent")
    jobs = await greet.options(parent=parent).submit_many(MANY)

    assert {job.record.parent_id for job in jobs} == {parent.record.id}
    assert [mark.id for mark in await (await watched[0].store()).marked()] == [parent.record.id]


def test_few_calls_are_gathered_with_those_of_others(greet: Task[[str], str]) -> None:
    few = greet._prepared(MANY[1:])

    assert isinstance(few, AlikeCalls)
    assert find_alike(few) is None
    assert [call.body for call in few] == [b'{"name":"%s"}' % text.encode() for (text,) in MANY[1:]]
    assert few[-1] == list(few)[-1] == few[-2:][1]


async def test_the_invalid_one_of_many_is_named(
    watched: tuple[Holdfast, Watched], greet: Task[[str], str]
) -> None:
    with pytest.raises(BadData, match="call 7: "):
        await greet.submit_many([*MANY[:7], (7,), *MANY])
    with pytest.raises(BadData, match=r"call 0: .*not list"):
        await greet.submit_many([["a"], *MANY])  # type: ignore[list-item]
    assert watched[1].batches == []


async def test_a_batch_that_the_store_does_not_take_at_once_is_submitted_one_by_one(
    watched: tuple[Holdfast, Watched], greet: Task[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, store = watched

    async def takes_none(_jobs: Any) -> None:
        return None

    monkeypatch.setattr(store, "submit_alike", takes_none)
    jobs = await greet.submit_many(MANY)

    assert all(job.created for job in jobs)
    assert await arguments_of(app, jobs) == [b'{"name":"%d"}' % n for n in range(len(MANY))]


async def test_one_that_the_store_refuses_does_not_take_the_others_along(
    watched: tuple[Holdfast, Watched], greet: Task[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, store = watched
    inner = store._store.submit

    async def takes_none(_jobs: Any) -> None:
        return None

    async def refuses_the_first(jobs: Any, **how: Any) -> Any:
        return [SubmitRefused(code="bad_data", message="no"), *await inner(jobs[1:], **how)]

    monkeypatch.setattr(store, "submit_alike", takes_none)
    monkeypatch.setattr(store._store, "submit", refuses_the_first)
    with pytest.raises(PartlySubmitted) as caught:
        await greet.submit_many(MANY)

    assert isinstance(caught.value.outcomes[0], BadData)
    assert len(await all_jobs(await app.store())) == len(MANY) - 1


async def test_after_an_outage_nobody_knows_whether_they_exist(
    greet: Task[[str], str], store: Watched
) -> None:
    async def fail(_jobs: Any) -> None:
        raise StoreUnavailable("gone")

    store.before = fail
    with pytest.raises(StoreUnavailable, match="gone") as caught:
        await greet.submit_many(MANY)
    assert caught.value.job_id is not None


async def test_many_submits_are_counted(url: str) -> None:
    app = Holdfast(url)
    app.meters = Meters()
    async with app:
        await greeter(app).options(queue="slow").submit_many(MANY)
    assert app.meters.lane("greet", "slow").submitted == len(MANY)


async def test_many_submits_inherit_what_one_inherits(url: str) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    app = Holdfast(url, tenant="acme", propagate=lambda: trace)
    async with app:
        greet = greeter(app)
        store = await app.store()
        [one, *_] = await greet.submit_many(MANY)
        [model] = await store.events((await greet.submit("one")).record.id)
        [event] = await store.events(one.record.id)
    assert one.record.tenant == "acme"
    assert event.created is not None
    assert event.created == model.created
    assert event.created.env["traceparent"] == trace
    assert (event.correlation_id, event.actor) == (model.correlation_id, model.actor)


async def test_a_kit_runs_many_where_they_are_submitted() -> None:
    app = Holdfast()
    greet = greeter(app)
    async with Kit(app) as kit:
        with kit.inline():
            jobs = await greet.submit_many(MANY)
        assert [await job.result() for job in jobs[:2]] == [
            await greet.fn("0"),
            await greet.fn("1"),
        ]


async def test_many_by_the_name_of_a_task_elsewhere(app: Holdfast) -> None:
    jobs = await app.named("elsewhere").submit_many([{"n": n} for n in range(ALIKE_LEAST)])

    assert {job.record.task for job in jobs} == {"elsewhere"}
    assert await arguments_of(app, jobs) == [b'{"n":%d}' % n for n in range(ALIKE_LEAST)]
