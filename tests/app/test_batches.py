"""Concurrent submits gather by themselves; what one caller does is its own affair."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import BadData, KeyConflict, LawBroken, StoreFull, StoreUnavailable
from holdfast.lifecycle.record import NewJob
from holdfast.operations import batches
from holdfast.tasks.tasks import Call, Task
from holdfast.testing.store_actions import all_jobs
from tests.app.acts import Gate, Watched, watched_app
from tests.app.test_submit import greeter


@pytest.fixture
def greet(watched: tuple[Holdfast, Watched]) -> Task[[str], str]:
    """A plain task of the watched app."""
    return greeter(watched[0])


def different(task: Task[[str], str], number: int) -> list[Call]:
    """Prepare calls that differ in more than their arguments."""
    tasks = task, task.options(queue="other")
    return [tasks[i % 2].prepare(str(i)) for i in range(number)]


async def test_100_concurrent_submits_are_few_calls_of_the_store(
    greet: Task[[str], str], store: Watched
) -> None:
    jobs = await asyncio.gather(*(greet.submit(str(number)) for number in range(100)))
    assert len({job.id for job in jobs}) == 100
    assert sum(store.batches) == 100
    assert len(store.batches) <= 2


async def test_while_a_batch_is_under_way_the_next_gathers(
    greet: Task[[str], str], store: Watched
) -> None:
    gate = store.before = Gate()
    first = asyncio.create_task(greet.submit("first"))
    await gate.reached.wait()
    others = [asyncio.create_task(greet.submit(str(number))) for number in range(50)]
    await asyncio.sleep(0)
    assert store.batches == [1]
    gate.opened.set()
    await asyncio.gather(first, *others)
    assert store.batches == [1, 50]


async def test_a_lone_submit_waits_for_nobody(greet: Task[[str], str], store: Watched) -> None:
    await greet.submit("a")
    await greet.submit("b")
    assert store.batches == [1, 1]


async def test_a_batch_has_at_most_500_jobs(greet: Task[[str], str], store: Watched) -> None:
    jobs = await greet.submit_many(different(greet, 1100))
    assert len({job.id for job in jobs}) == 1100
    assert store.batches == [500, 500, 100]


async def test_a_batch_of_alike_jobs_has_at_most_1000(
    greet: Task[[str], str], store: Watched
) -> None:
    jobs = await greet.submit_many([(str(number),) for number in range(2100)])
    assert len({job.id for job in jobs}) == 2100
    assert store.batches == [1000, 1000, 100]


async def test_a_whole_batch_does_not_wait_for_the_one_before_it(
    greet: Task[[str], str], store: Watched
) -> None:
    gate = store.before = Gate()
    many = asyncio.create_task(greet.submit_many([(str(number),) for number in range(3100)]))
    await gate.reached.wait()
    await asyncio.sleep(0)
    assert store.batches == [1000, 1000]
    gate.opened.set()
    assert len({job.id for job in await many}) == 3100
    assert store.batches == [1000, 1000, 1000, 100]


async def test_less_than_a_whole_batch_gathers_while_one_is_under_way(
    greet: Task[[str], str], store: Watched
) -> None:
    gate = store.before = Gate()
    many = asyncio.create_task(greet.submit_many(different(greet, 999)))
    await gate.reached.wait()
    others = [asyncio.create_task(greet.submit(str(number))) for number in range(1)]
    await asyncio.sleep(0)
    assert store.batches == [500]
    gate.opened.set()
    await asyncio.gather(many, *others)
    assert store.batches == [500, 500]


async def test_a_batch_has_a_bound_in_bytes(
    greet: Task[[str], str], store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 1000)
    await asyncio.gather(*(greet.submit("x" * 400) for _ in range(4)), greet.submit("x" * 5000))
    assert store.batches == [2, 2, 1]
    await greet.submit_many([("x" * 400,)] * 3)
    assert store.batches[3:] == [2, 1]


async def test_a_batch_of_alike_jobs_has_a_bound_in_bytes(
    greet: Task[[str], str], store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 4100)
    jobs = await greet.submit_many([("x" * 90,)] * 99 + [("y" * 5000,)])
    assert store.batches == [25, 25, 25, 12, 6, 3, 2, 1, 1]
    assert len({job.id for job in jobs}) == 100


async def test_a_batch_that_is_full_by_its_bytes_leaves_beside_the_one_under_way(
    greet: Task[[str], str], store: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_BYTES", 1000)
    gate = store.before = Gate()
    many = asyncio.create_task(greet.submit_many([("x" * 400,)] * 5))
    await gate.reached.wait()
    await asyncio.sleep(0)
    assert store.batches == [2, 2]
    gate.opened.set()
    await many
    assert store.batches == [2, 2, 1]


async def test_a_caller_that_goes_away_does_not_take_the_batch_along(
    watched: tuple[Holdfast, Watched], greet: Task[[str], str], store: Watched
) -> None:
    gate = store.before = Gate()
    leaving = asyncio.create_task(greet.submit("leaving"))
    staying = asyncio.create_task(greet.submit("staying"))
    await gate.reached.wait()
    assert store.batches == [2]
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    gate.opened.set()
    assert (await staying).created
    assert len(await all_jobs(await watched[0].store())) == 2


async def test_a_caller_that_goes_away_before_its_turn_is_not_sent(
    watched: tuple[Holdfast, Watched], greet: Task[[str], str], store: Watched
) -> None:
    gate = store.before = Gate()
    first = asyncio.create_task(greet.submit("first"))
    await gate.reached.wait()
    leaving = asyncio.create_task(greet.submit("leaving"))
    staying = asyncio.create_task(greet.submit("staying"))
    await asyncio.sleep(0)
    leaving.cancel()
    gate.opened.set()
    await asyncio.gather(first, staying, leaving, return_exceptions=True)
    assert store.batches == [1, 1]
    assert len(await all_jobs(await watched[0].store())) == 2


async def test_one_bad_submission_fails_alone(greet: Task[[str], str], store: Watched) -> None:
    await greet.options(job_id="j").submit("Ada")
    answers = await asyncio.gather(
        greet.submit("a"),
        greet.options(job_id="j").submit("Bob"),
        greet.options(queue="").submit("b"),
        greet.submit("c"),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers[1:3]] == [KeyConflict, BadData]
    assert not isinstance(answers[0], BaseException)
    assert not isinstance(answers[3], BaseException)
    # Those with keys go in batches of their own: a key may have to be waited for.
    assert store.batches == [1, 2, 1]


async def test_what_makes_a_whole_batch_fail_is_found_and_fails_alone(
    watched: tuple[Holdfast, Watched], greet: Task[[str], str], store: Watched
) -> None:
    async def poison(jobs: Sequence[NewJob]) -> None:
        if any(b"poison" in (job.event.body or b"") for job in jobs):
            raise LawBroken("no such row")

    # After the write: the neighbours are there already when they are sent again.
    store.after = poison
    answers = await asyncio.gather(
        greet.submit("a"),
        greet.submit("poison"),
        greet.options(dedupe_key="k").submit("b"),
        return_exceptions=True,
    )
    assert isinstance(answers[1], LawBroken)
    assert [getattr(answer, "created", None) for answer in answers] == [True, None, True]
    assert len(await all_jobs(await watched[0].store())) == 3


@pytest.mark.parametrize("kind", [StoreUnavailable, StoreFull])
async def test_a_store_that_is_away_is_asked_once_and_each_caller_is_told_of_its_own_job(
    greet: Task[[str], str], store: Watched, kind: Any
) -> None:
    async def away(jobs: Sequence[NewJob]) -> None:
        raise kind("away")

    store.before = away
    answers = await asyncio.gather(*(greet.submit(name) for name in "abc"), return_exceptions=True)
    assert store.batches == [3]
    assert {type(answer) for answer in answers} == {kind}
    assert len({getattr(answer, "job_id", None) for answer in answers}) == 3
    store.before = None
    assert (await greet.submit("d")).created


async def test_closing_sends_what_was_submitted(url: str) -> None:
    app, store = watched_app(url)
    async with app:
        submitting = asyncio.create_task(greeter(app).submit("a"))
        await asyncio.sleep(0)
    assert (await submitting).created
    assert store.batches == [1]
