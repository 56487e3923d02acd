"""Purging: records whose term is over are removed whole; their ids stay known, all else stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.errors import JobPurged
from holdfast.flow.clean import RetentionTerms
from holdfast.flow.purge import BATCH, Purged, PurgeTerms, purge, purge_all
from holdfast.flow.redrive import redrive
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Change, Job, JobId
from holdfast.lifecycle.states import LIVE, TERMINAL, KeyKind, Link, State
from holdfast.maintenance.rebuild import rebuild
from holdfast.ports.models import SubmitRefused, Submitted
from holdfast.ports.store import Store
from holdfast.queries.history import read_history
from holdfast.queries.why.why import why
from holdfast.services.janitor import Janitor
from holdfast.testing.factories import CONTROL, HOUR, JANITOR, fresh, new_job, owner_of
from holdfast.testing.store_actions import (
    all_jobs,
    change,
    claim_one,
    do,
    job_in,
    stored,
    submit_one,
)
from tests.flow.families import child_of, end
from tests.stores.ledgers import problems_of

AT_ONCE = PurgeTerms(succeeded=0, unsuccessful=0)


async def purged(store: Store, terms: PurgeTerms = AT_ONCE, **wishes: Any) -> Purged:
    """Purge all that may go in a store at work: there is always a newer event than theirs."""
    report = Purged()
    idle = 0
    while idle < 2:
        done = await purge_all(store, JANITOR, terms, **wishes)
        report.kept = 0
        report.add(done)
        if wishes:
            break
        idle = 0 if done.jobs else idle + 1
        await submit_one(store, queue=fresh("newest"))
    return report


async def left(store: Store, *jobs: Job) -> list[bool]:
    """Whether each of these jobs is still there."""
    return [job is not None for job in await store.get([job.id for job in jobs])]


async def test_an_ended_job_whose_records_term_is_over_is_removed_whole(
    either_store: Store,
) -> None:
    store = either_store
    ended = [await job_in(store, state, body=b'{"n":1}') for state in sorted(TERMINAL)]
    settled = [job for job in ended if job.letter is None]
    report = await purged(store)

    assert (report.jobs, report.failed) == (len(settled), {})
    assert await left(store, *settled) == [False] * len(settled)
    for job in settled:
        assert await store.events(job.id) == []
    entries = await store.purges()
    assert sum(entry.jobs for entry in entries) == len(settled)
    assert {entry.actor for entry in entries} == {JANITOR.name}
    assert await problems_of(store) == []


async def test_what_has_not_ended_or_is_within_its_term_stays(either_store: Store) -> None:
    store = either_store
    live = [await job_in(store, state) for state in sorted(LIVE)]
    good, bad = [await job_in(store, state) for state in (State.SUCCEEDED, State.FAILED)]
    letter = await job_in(store, State.DEAD_LETTERED)
    report = await purged(store, PurgeTerms(succeeded=0, unsuccessful=HOUR))

    assert report.purged == {State.SUCCEEDED: 1}
    assert await left(store, good, bad, letter, *live) == [False, *[True] * (2 + len(live))]
    # A dead letter that nobody has settled could not be redriven.
    assert (await purged(store)).purged == {State.FAILED: 1}
    assert await left(store, letter) == [True]


async def test_a_dry_run_counts_and_changes_nothing(either_store: Store) -> None:
    store = either_store
    job = await job_in(store, State.SUCCEEDED)
    report = await purged(store, dry_run=True)

    assert report.purged == {State.SUCCEEDED: 1}
    assert await stored(store, job.id) == job
    assert await store.purges() == []


async def test_a_family_goes_from_the_last_job_to_the_first_and_only_when_all_is_over(
    either_store: Store,
) -> None:
    store = either_store
    parent = await _running(store)
    child = await child_of(store, parent)
    grandchild = await child_of(store, child)
    await end(store, grandchild)
    await end(store, child)
    assert (await purged(store)).jobs == 0, "the parent runs, and may ask for their results"

    await end(store, parent)
    assert (await purged(store, dry_run=True)).kept == 2
    assert (await purged(store)).jobs == 3
    assert await left(store, parent, child, grandchild) == [False] * 3
    assert await problems_of(store) == []


async def test_a_child_stays_until_the_term_of_its_parent_is_over(either_store: Store) -> None:
    store = either_store
    parent = await _running(store)
    child = await child_of(store, parent)
    grandchild = await child_of(store, child)
    await end(store, grandchild)
    await end(store, child)
    await do(store, parent, c.Fail(actor=owner_of(parent), error_code="boom"))
    report = await purged(store, PurgeTerms(succeeded=0, unsuccessful=HOUR))

    # A redrive of the parent would ask for what its children came to.
    assert (report.jobs, report.kept) == (0, 2)
    assert await left(store, parent, child, grandchild) == [True] * 3
    assert (await purged(store)).jobs == 3


async def test_a_child_stays_while_a_redrive_of_its_parent_may_ask_for_its_result(
    either_store: Store,
) -> None:
    store = either_store
    parent = await job_in(store, State.DEAD_LETTERED, body=b"{}")
    child = await child_of(store, parent, State.SUCCEEDED)
    again = await redrive(store, parent.id, CONTROL)
    report = await purged(store)
    assert (report.jobs, report.kept) == (0, 2)
    assert await left(store, parent, child) == [True] * 2

    claimed = (await claim_one(store, again.queue)).job
    assert claimed.id == again.id
    await end(store, await do(store, claimed, c.Start(actor=owner_of(claimed))))
    assert (await purged(store)).jobs == 3


async def test_a_job_stays_while_one_that_was_made_from_it_is_there(either_store: Store) -> None:
    store = either_store
    first = await job_in(store, State.FAILED)
    again = await submit_one(store, parent_id=first.id, link_kind=Link.REDRIVE, queue="again")
    report = await purged(store)
    assert (report.jobs, report.kept) == (0, 1)
    assert await left(store, first, again) == [True, True]


async def test_a_job_id_that_was_purged_never_makes_another_job(either_store: Store) -> None:
    store = either_store
    job = await job_in(
        store, State.SUCCEEDED, job_id="order-7", dedupe_key="d", body=b"1", queue="orders"
    )
    plain = await job_in(store, State.SUCCEEDED)
    assert (await purged(store)).jobs == 2
    before = len(await all_jobs(store))

    same = {"job_id": "order-7", "dedupe_key": "d", "body": b"1", "queue": "orders"}
    for wishes in (same, {"job_id": str(plain.id)}):
        [outcome] = await store.submit([new_job(**wishes)])
        assert isinstance(outcome, SubmitRefused)
        assert outcome.code == "job_purged"
    [outcome] = await store.submit([new_job(job_id="order-7", body=b"2")])
    assert isinstance(outcome, SubmitRefused)
    assert len(await all_jobs(store)) == before
    # The dedupe key was freed with the cleaning, and is another's now.
    again = await submit_one(store, dedupe_key="d", queue="again")
    assert await store.look_up(again.tenant, KeyKind.DEDUPE, "d") == again.id
    assert await store.look_up(job.tenant, KeyKind.JOB_ID, "order-7") == job.id


async def test_a_submit_that_is_sent_again_after_the_purge_makes_no_second_job(
    either_store: Store,
) -> None:
    store = either_store
    new = new_job(request_id="pay-1", body=b"1")
    [first] = await store.submit([new])
    assert isinstance(first, Submitted)
    await do(store, first.job, c.Cancel(actor=CONTROL))
    assert (await purged(store)).jobs == 1
    before = len(await all_jobs(store))

    for body, code in ((b"1", "job_purged"), (b"2", "request_id_reused")):
        [outcome] = await store.submit([new_job(request_id="pay-1", body=body)])
        assert isinstance(outcome, SubmitRefused)
        assert (outcome.code, outcome.holder) == (code, first.job.id)
    assert len(await all_jobs(store)) == before


async def test_who_asks_for_a_purged_job_is_told_that_it_was(either_store: Store) -> None:
    store = either_store
    job = await job_in(store, State.SUCCEEDED, tenant="mine")
    await purged(store)
    with pytest.raises(JobPurged, match="was purged at 2"):
        await why(store, job.id, tenant="mine")
    with pytest.raises(JobPurged, match="was purged at 2"):
        await read_history(store, job.id)
    with pytest.raises(Exception, match="no job") as caught:
        await why(store, job.id, tenant="another")
    assert not isinstance(caught.value, JobPurged)
    assert await store.purged([job.id, JobId(new_job().record.id)]) == [
        (await store.purged([job.id]))[0],
        None,
    ]


async def test_a_rebuild_leaves_what_was_purged_alone(either_store: Store) -> None:
    store = either_store
    await job_in(store, State.SUCCEEDED, job_id="order-7")
    await purged(store)
    report = await rebuild(store)
    assert (report.skipped, report.freed) == ([], 0)
    [outcome] = await store.submit([new_job(job_id="order-7")])
    assert isinstance(outcome, SubmitRefused)
    assert await problems_of(store) == []


class Counting:
    """A store that notes how many jobs each transaction removes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.batches: list[int] = []
        self.looks: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def purge(self, ids: Sequence[JobId], **wishes: Any) -> list[JobId]:
        self.batches.append(len(ids))
        return await self._store.purge(ids, **wishes)

    async def purgeable(self, **wishes: Any) -> Any:
        found = await self._store.purgeable(**wishes)
        self.looks.append(len(found.jobs))
        return found


async def test_many_jobs_are_purged_in_bounded_batches(either_store: Store) -> None:
    store = either_store
    jobs = 2300
    for start in range(0, jobs, 500):
        await store.submit([new_job(queue="many") for _ in range(start, min(start + 500, jobs))])
    cancelled = await store.commit(
        [_cancelled(job) for job in await all_jobs(store) if job.queue == "many"]
    )
    assert len(cancelled) == jobs
    # Beside a load: what is submitted and claimed meanwhile is not touched.
    await submit_one(store, queue="load")
    counting = Counting(store)
    looked: list[int] = []
    report = await purge_all(
        counting, JANITOR, AT_ONCE, on_look=lambda total: looked.append(total.looked)
    )

    # Progress is by jobs that were gone through, whether they went or stay.
    assert looked[:2] == [1000, 2000]
    # SQLite keeps the job of the newest event.
    assert report.jobs + report.kept == jobs
    assert report.kept <= 1
    assert max(counting.batches) <= BATCH
    assert max(counting.looks) <= 1000
    assert len(counting.batches) <= jobs // BATCH + 8
    assert (await claim_one(store, "load")).job.queue == "load"
    assert sum(entry.jobs for entry in await store.purges()) == report.jobs


async def test_jobs_with_long_histories_are_purged_in_smaller_batches(
    either_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = either_store
    monkeypatch.setattr("holdfast.flow.purge.BATCH_EVENTS", 20)
    jobs = [await job_in(store, State.SUCCEEDED, queue="many") for _ in range(12)]
    await submit_one(store, queue="newest")
    counting = Counting(store)
    report = await purge_all(counting, JANITOR, AT_ONCE)
    assert report.jobs + report.kept == len(jobs)
    # Each has four events or more, and six when it is cleaned.
    assert 1 <= max(counting.batches) <= 5
    assert sum(entry.events for entry in await store.purges()) >= 4 * report.jobs


def _cancelled(job: Job) -> Change:
    return change(job, c.Cancel(actor=CONTROL))


async def test_the_janitor_purges_beside_its_cleaning(either_store: Store) -> None:
    store = either_store
    await job_in(store, State.SUCCEEDED)
    seen: list[Purged] = []
    janitor = Janitor(
        store, "j", RetentionTerms(succeeded=0), purge_terms=AT_ONCE, on_purge=seen.append
    )
    await janitor.clean_all()
    await submit_one(store, queue="newest")
    report = await janitor.purge()
    assert (report.jobs, [one.jobs for one in seen]) == (1, [1])


async def test_terms_of_for_ever_purge_nothing(either_store: Store) -> None:
    await job_in(either_store, State.SUCCEEDED)
    report = await purge(either_store, JANITOR, PurgeTerms(succeeded=None, unsuccessful=None))
    assert (report.jobs, report.next) == (0, None)


async def _running(store: Store) -> Job:
    job = await submit_one(store, queue="parents")
    claimed = (await claim_one(store, "parents")).job
    assert claimed.id == job.id
    return await do(store, claimed, c.Start(actor=owner_of(claimed)))
