"""Dead letters in bulk: each settled once, past whatever is in the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import LawBroken, StoreBroken, StoreError, StoreFull, StoreUnavailable
from holdfast.flow import redrive as redriving
from holdfast.flow.command import perform
from holdfast.flow.redrive import RedriveTerms, discard, discard_all, redrive_all
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import JobId, LoggedEvent
from holdfast.lifecycle.states import Letter
from holdfast.ports.store import Store
from holdfast.queries.dead_letters import LetterFilter
from holdfast.testing.factories import CONTROL, worker
from holdfast.testing.store_actions import all_jobs, stored
from tests.flow.test_command import Interrupting
from tests.flow.test_redrive import OTHER, LosingReplies, cleaned, made_of
from tests.queries.test_dead_letters import dead


@pytest.fixture
def store(either_store: Store) -> Store:
    """Both engines."""
    return either_store


async def test_letters_are_redriven_in_bulk_by_filter(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "BATCH", 2)
    wanted = [await dead(store, queue="post") for _ in range(5)]
    other = await dead(store, queue="bank")
    report = await redrive_all(
        store, LetterFilter(queue="post"), CONTROL, terms=RedriveTerms(queue="slow")
    )

    assert (report.seen, report.done, report.failures) == (5, 5, 0)
    for job in wanted:
        [new] = await made_of(store, job)
        assert (await stored(store, new)).queue == "slow"
    assert (await stored(store, other.id)).letter is Letter.OPEN


async def test_letters_are_discarded_in_bulk_up_to_a_limit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "BATCH", 2)
    jobs = [await dead(store) for _ in range(5)]
    report = await discard_all(store, LetterFilter(), CONTROL, limit=3, reason="known")

    assert (report.seen, report.done) == (3, 3)
    letters = [(await stored(store, job.id)).letter for job in jobs]
    assert letters == [Letter.OPEN] * 2 + [Letter.DISCARDED] * 3


@pytest.mark.parametrize("letter", [Letter.DISCARDED, Letter.REDRIVEN])
async def test_bulk_is_about_open_letters_whatever_the_filter_says(
    store: Store, letter: Letter
) -> None:
    put_away, still_open = await dead(store), await dead(store)
    await discard(store, put_away.id, CONTROL)
    report = await redrive_all(store, LetterFilter(letter=letter), CONTROL)

    assert (report.seen, report.done) == (1, 1)
    assert [len(await made_of(store, job)) for job in (put_away, still_open)] == [0, 1]


async def test_one_poison_letter_does_not_stop_the_others(store: Store) -> None:
    jobs = [await dead(store) for _ in range(4)]
    poison = await cleaned(store, jobs[1])
    report = await redrive_all(store, LetterFilter(), CONTROL)

    assert (report.seen, report.done, report.failures) == (4, 3, 1)
    assert "is erased" in report.failed[poison.id]
    assert [len(await made_of(store, job)) for job in jobs] == [1, 0, 1, 1]


async def test_two_bulk_runs_at_once_redrive_each_letter_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "BATCH", 5)
    jobs = [await dead(store) for _ in range(20)]
    runs = await asyncio.gather(
        *(redrive_all(store, LetterFilter(), actor) for actor in (CONTROL, OTHER, CONTROL))
    )

    assert sum(run.done for run in runs) == 20
    assert [len(await made_of(store, job)) for job in jobs] == [1] * 20
    assert len(await all_jobs(store)) == 40


async def test_a_letter_that_changes_meanwhile_is_decided_anew(store: Store) -> None:
    job, settled = await dead(store), await dead(store)

    async def between() -> None:
        await perform(store, job.id, c.LateResult(actor=worker("late"), state="SUCCEEDED"))
        await discard(store, settled.id, OTHER)

    racing: Any = Interrupting(store, between, 1)
    report = await redrive_all(racing, LetterFilter(), CONTROL)
    assert (report.done, report.skipped, report.failures) == (1, 1, 0)
    assert len(await made_of(store, job)) == 1
    assert await made_of(store, settled) == []


async def test_a_letter_that_never_stands_still_is_given_up_alone(store: Store) -> None:
    restless, calm = await dead(store), await dead(store)
    names = iter(range(100))

    async def between() -> None:
        late = c.LateResult(actor=worker(f"late-{next(names)}"), state="SUCCEEDED")
        await perform(store, restless.id, late)

    racing: Any = Interrupting(store, between, 99)
    report = await discard_all(racing, LetterFilter(), CONTROL)
    assert (report.done, report.failures) == (1, 1)
    assert "changed 6 times" in report.failed[restless.id]
    assert (await stored(store, calm.id)).letter is Letter.DISCARDED


@pytest.mark.parametrize(
    ("error", "stops"),
    [(StoreUnavailable, True), (StoreFull, True), (StoreBroken, False), (LawBroken, False)],
)
async def test_a_letter_that_the_database_cannot_read_is_one_failure_of_many(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: type[StoreError], stops: bool
) -> None:
    good, bad = await dead(store), await dead(store)
    read = store.events

    async def events(id: JobId, **more: Any) -> list[LoggedEvent]:
        if id == bad.id:
            raise error("this row")
        return await read(id, **more)

    monkeypatch.setattr(store, "events", events)
    if stops:
        with pytest.raises(error):
            await redrive_all(store, LetterFilter(), CONTROL)
        return
    report = await redrive_all(store, LetterFilter(), CONTROL)
    assert (report.done, report.failed) == (1, {bad.id: "this row"})
    monkeypatch.undo()
    assert (await stored(store, good.id)).letter is Letter.REDRIVEN


async def test_a_bulk_run_cut_short_is_finished_by_another(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redriving, "BATCH", 2)
    jobs = [await dead(store) for _ in range(5)]
    losing: Any = LosingReplies(store)
    with pytest.raises(StoreUnavailable):
        await redrive_all(losing, LetterFilter(), CONTROL)
    report = await redrive_all(store, LetterFilter(), CONTROL)

    assert report.done == 3
    assert [len(await made_of(store, job)) for job in jobs] == [1] * 5
