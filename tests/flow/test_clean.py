"""Cleaning: whose term is over loses its bodies and frees its keys; all others lose nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.errors import BadData, StoreUnavailable
from holdfast.flow.clean import DAY, CleanSweep, RetentionTerms, clean, is_over, read_term
from holdfast.flow.redrive import discard, redrive
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Change, Job, JobId
from holdfast.lifecycle.states import (
    LIVE,
    TERMINAL,
    EventType,
    Letter,
    Link,
    Retention,
    State,
)
from holdfast.ports.models import Outcome, Rejected, Submitted
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, JANITOR, new_job, owner_of
from holdfast.testing.store_actions import all_jobs, claim_one, do, job_in, stored, submit_one
from tests.flow.families import child_of, end
from tests.lifecycle.factories import dead_letter

AT_ONCE = RetentionTerms(succeeded=0, unsuccessful=0, open_letters=0, beats=0)


async def cleaned(store: Store, terms: RetentionTerms = AT_ONCE, **wishes: Any) -> CleanSweep:
    """Clean what is to be cleaned."""
    return await clean(store, JANITOR, terms, **wishes)


async def retention(store: Store, *jobs: Job) -> list[Retention]:
    """Tell how jobs stand with the janitor."""
    return [(await stored(store, job.id)).retention for job in jobs]


async def bodies(store: Store, job: Job) -> int:
    """Count the bodies that are still there."""
    return sum(event.body is not None for event in await store.events(job.id))


@pytest.mark.req("D13", "B19")
async def test_an_ended_job_whose_term_is_over_is_cleaned(either_store: Store) -> None:
    ended = [await job_in(either_store, state, body=b'{"n":1}') for state in sorted(TERMINAL)]
    report = await cleaned(either_store)

    assert (report.cleaned, report.failed) == (len(ended), {})
    assert set(await retention(either_store, *ended)) == {Retention.CLEANED}
    assert [await bodies(either_store, job) for job in ended] == [0] * len(ended)
    for job in ended:
        after = await stored(either_store, job.id)
        assert (after.state, after.result_digest) == (job.state, job.result_digest)
        types = [event.type for event in await either_store.events(job.id)]
        assert types[-2:] == [EventType.CLEANING, EventType.CLEANED]


@pytest.mark.req("D13")
async def test_a_job_that_has_not_ended_is_never_cleaned(either_store: Store) -> None:
    live = [await job_in(either_store, state, body=b'{"n":1}') for state in sorted(LIVE)]
    report = await cleaned(either_store)

    assert report.cleaned == 0
    assert set(await retention(either_store, *live)) == {Retention.LIVE}
    assert [await bodies(either_store, job) for job in live] == [1] * len(live)


async def test_a_job_is_kept_until_its_term_is_over(store: Store) -> None:
    won, failed = await job_in(store, State.SUCCEEDED), await job_in(store, State.FAILED)
    await cleaned(store, RetentionTerms())
    assert await retention(store, won, failed) == [Retention.LIVE] * 2
    await cleaned(store, RetentionTerms(succeeded=0))

    assert await retention(store, won, failed) == [Retention.CLEANED, Retention.LIVE]
    now = failed.updated_at + DAY
    assert is_over(failed, RetentionTerms(unsuccessful=DAY), now)
    assert not is_over(failed, RetentionTerms(unsuccessful=DAY), now - 1)


def test_a_term_is_said_as_a_span_or_for_ever() -> None:
    assert (read_term("7d"), read_term(3), read_term("forever")) == (7 * DAY, 3_000_000, None)
    with pytest.raises(BadData, match=r"keep must be a span, not 'long'.*or 'forever'"):
        read_term("long", "keep")


async def test_terms_that_never_end_keep_everything(store: Store) -> None:
    job = await job_in(store, State.SUCCEEDED)
    report = await cleaned(store, RetentionTerms(succeeded=None, unsuccessful=None, beats=None))

    assert (report.written, report.next) == (0, None)
    assert await retention(store, job) == [Retention.LIVE]


async def test_an_open_dead_letter_is_kept_until_somebody_settles_it(store: Store) -> None:
    job = await job_in(store, State.DEAD_LETTERED)
    assert job.letter is Letter.OPEN
    terms = RetentionTerms(succeeded=0, unsuccessful=0)
    await cleaned(store, terms)
    assert await retention(store, job) == [Retention.LIVE]
    await do(store, job, c.Discarded(actor=CONTROL))
    await cleaned(store, terms)

    assert await retention(store, job) == [Retention.CLEANED]


async def test_the_term_of_a_settled_letter_begins_when_it_is_settled(store: Store) -> None:
    job = await job_in(store, State.DEAD_LETTERED)
    settled = await do(store, job, c.Discarded(actor=CONTROL))
    finished = settled.finished_at
    assert finished is not None
    assert settled.updated_at > finished

    assert not is_over(settled, RetentionTerms(unsuccessful=DAY), finished + DAY)
    assert is_over(settled, RetentionTerms(unsuccessful=DAY), settled.updated_at + DAY)


@pytest.mark.req("D12")
async def test_keys_are_freed_once_all_is_gone(either_store: Store) -> None:
    key = "6fa459ea-ee8a-4ca4-894e-db77e160355e"
    first = await job_in(either_store, State.SUCCEEDED, client_job_id=key, dedupe_key="nightly")
    await cleaned(either_store)
    [outcome] = await either_store.submit([new_job(client_job_id=key, dedupe_key="nightly")])

    assert isinstance(outcome, Submitted)
    assert outcome.created
    assert outcome.job.id != first.id


class Dies:
    """A store that is gone before so many commits are made, or before bodies are erased."""

    def __init__(self, inner: Store, *, commits: int, erases: bool = True) -> None:
        self._inner, self._commits, self._erases = inner, commits, erases

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        if not self._commits:
            raise StoreUnavailable("it died here")
        self._commits -= 1
        return await self._inner.commit(changes)

    async def erase_bodies(self, ids: Sequence[JobId]) -> int:
        if not self._erases:
            raise StoreUnavailable("it died here")
        return await self._inner.erase_bodies(ids)


@pytest.mark.req("D13")
@pytest.mark.parametrize("erases", [False, True])
async def test_a_crash_in_between_is_taken_up_by_the_next(
    either_store: Store, erases: bool
) -> None:
    job = await job_in(either_store, State.SUCCEEDED, dedupe_key="one")
    dying: Any = Dies(either_store, commits=1, erases=erases)
    with pytest.raises(StoreUnavailable):
        await cleaned(dying)
    assert await retention(either_store, job) == [Retention.CLEANING]
    # Whatever the terms say by now: what has begun is ended.
    await cleaned(either_store, RetentionTerms(succeeded=0, unsuccessful=0))

    assert await retention(either_store, job) == [Retention.CLEANED]
    assert await bodies(either_store, job) == 0


async def test_two_janitors_at_once_clean_each_job_once(either_store: Store) -> None:
    jobs = [await job_in(either_store, State.SUCCEEDED) for _ in range(5)]
    stale: Any = Stale(either_store, await either_store.aged(ended_before=2**60))
    await cleaned(either_store)
    report = await cleaned(stale)

    assert (report.cleaned, report.lost, report.failed) == (0, len(jobs), {})
    for job in jobs:
        types = [event.type for event in await either_store.events(job.id)]
        assert types.count(EventType.CLEANED) == 1


class Stale:
    """A store whose look is older than what somebody else did."""

    def __init__(self, inner: Store, aged: Any) -> None:
        self._inner, self._aged = inner, aged

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def aged(self, **_: Any) -> Any:
        return self._aged


async def test_a_child_is_kept_while_its_parent_may_ask_for_its_result(
    either_store: Store,
) -> None:
    parent = await job_in(either_store, State.RUNNING)
    child = await child_of(either_store, parent, State.SUCCEEDED)
    # The next try of a child that failed: the parent asks for the last of them.
    failed = await child_of(either_store, parent, State.FAILED)
    retry = await job_in(either_store, State.SUCCEEDED, parent_id=failed.id, link_kind=Link.RETRY)
    assert (await cleaned(either_store)).cleaned == 0
    await end(either_store, parent)
    await cleaned(either_store)

    all_of_them = await retention(either_store, parent, child, failed, retry)
    assert all_of_them == [Retention.CLEANED] * 4


async def test_a_job_is_kept_while_what_undoes_it_is_not_done(either_store: Store) -> None:
    job = await job_in(either_store, State.FAILED, body=b'{"n":1}')
    undoing = await job_in(
        either_store, State.RUNNING, parent_id=job.id, link_kind=Link.COMPENSATION
    )
    await cleaned(either_store)
    assert await retention(either_store, job) == [Retention.LIVE]
    assert await bodies(either_store, job) > 0
    await do(either_store, undoing, c.Complete(actor=owner_of(undoing)))
    await cleaned(either_store)

    assert await retention(either_store, job) == [Retention.CLEANED]


async def test_a_job_is_kept_while_what_undoes_it_may_be_redriven(either_store: Store) -> None:
    job = await job_in(either_store, State.FAILED, body=b'{"n":1}')
    await job_in(either_store, State.DEAD_LETTERED, parent_id=job.id, link_kind=Link.COMPENSATION)
    await cleaned(either_store, RetentionTerms(succeeded=0, unsuccessful=0, open_letters=None))

    assert await retention(either_store, job) == [Retention.LIVE]
    assert await bodies(either_store, job) > 0


async def test_a_job_is_kept_while_the_one_that_resumes_it_may_read_its_steps(
    either_store: Store,
) -> None:
    job = await job_in(either_store, State.DEAD_LETTERED, body=b'{"n":1}')
    child = await child_of(either_store, job, State.SUCCEEDED)
    new = await redrive(either_store, job.id, CONTROL)
    await cleaned(either_store)
    assert await retention(either_store, job, child) == [Retention.LIVE] * 2
    claimed = await claim_one(either_store, job.queue)
    assert claimed.job.id == new.id
    [first] = await either_store.events(new.id, limit=1)
    assert first.created is not None
    assert (first.created.resumes, first.created.lineage) == (job.id, job.id)
    new = await do(either_store, claimed.job, c.Start(actor=owner_of(claimed.job)))
    await do(either_store, new, c.Complete(actor=owner_of(new)))
    await cleaned(either_store)

    assert await retention(either_store, job, child, new) == [Retention.CLEANED] * 3


async def test_a_job_is_kept_while_the_one_that_resumed_it_may_be_redriven(
    either_store: Store,
) -> None:
    job = await job_in(either_store, State.DEAD_LETTERED, body=b'{"n":1}')
    new = await redrive(either_store, job.id, CONTROL)
    claimed = (await claim_one(either_store, job.queue)).job
    await do(either_store, claimed, dead_letter(owner_of(claimed)))
    terms = RetentionTerms(succeeded=0, unsuccessful=0, open_letters=None)
    await cleaned(either_store, terms)
    assert await retention(either_store, job) == [Retention.LIVE]
    await discard(either_store, new.id, CONTROL)
    await cleaned(either_store, terms)

    assert await retention(either_store, job, new) == [Retention.CLEANED] * 2


async def test_a_job_is_kept_while_a_redrive_of_what_undoes_it_is_not_done(
    either_store: Store,
) -> None:
    job = await job_in(either_store, State.FAILED, body=b'{"n":1}')
    link = {"parent_id": job.id, "link_kind": Link.COMPENSATION}
    dead = await job_in(either_store, State.DEAD_LETTERED, body=b"{}", **link)
    again = await redrive(either_store, dead.id, CONTROL)
    await cleaned(either_store)
    assert await retention(either_store, job, dead) == [Retention.LIVE] * 2
    claimed = (await claim_one(either_store, again.queue)).job
    running = await do(either_store, claimed, c.Start(actor=owner_of(claimed)))
    await do(either_store, running, c.Complete(actor=owner_of(running)))
    await cleaned(either_store)

    assert await retention(either_store, job, dead) == [Retention.CLEANED] * 2


class Counted:
    """A store that counts the requests it gets."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        self.requests += 1
        return getattr(self._inner, name)


async def test_a_look_costs_the_same_number_of_requests_for_one_job_and_for_many(
    either_store: Store,
) -> None:
    requests = []
    for families in (1, 10):
        for _ in range(families):
            policy = Policy(idempotent=False)
            parent = await job_in(either_store, State.FAILED, policy=policy)
            await child_of(either_store, parent, State.FAILED, policy=policy)
        store: Any = Counted(either_store)
        assert (await cleaned(store)).cleaned == 2 * families
        requests.append(store.requests)

    assert requests[0] == requests[1]


async def test_a_long_ledger_is_gone_through_a_stretch_at_a_time(either_store: Store) -> None:
    jobs = [await job_in(either_store, State.SUCCEEDED) for _ in range(5)]
    after, looks = None, []
    while True:
        report = await cleaned(either_store, after=after, look_at=2)
        looks.append(report.cleaned)
        if (after := report.next) is None:
            break

    assert looks == [2, 2, 1]
    assert set(await retention(either_store, *jobs)) == {Retention.CLEANED}


async def test_old_heartbeats_are_dropped_and_the_log_stays_whole(either_store: Store) -> None:
    job = await job_in(either_store, State.RUNNING)
    for _ in range(3):
        job = await do(either_store, job, c.Heartbeat(actor=owner_of(job)))
    await end(either_store, job)
    report = await cleaned(either_store, RetentionTerms(succeeded=None, unsuccessful=None, beats=0))

    assert (report.beats, report.cleaned) == (3, 0)


async def test_one_job_that_cannot_be_cleaned_stops_no_other(store: Store) -> None:
    poison, good = [await job_in(store, State.SUCCEEDED) for _ in range(2)]
    refusing: Any = Refusing(store, poison.id)
    report = await cleaned(refusing)

    assert list(report.failed) == [poison.id]
    assert await retention(store, poison, good) == [Retention.LIVE, Retention.CLEANED]


class Refusing:
    """A store that refuses whatever is written to one job."""

    def __init__(self, inner: Store, id: JobId) -> None:
        self._inner, self._id = inner, id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes: dict[JobId, Outcome] = {self._id: Rejected(code="law_broken", message="no")}
        good = [change for change in changes if change.id != self._id]
        for change, outcome in zip(good, await self._inner.commit(good), strict=True):
            outcomes[change.id] = outcome
        return [outcomes[change.id] for change in changes]


async def test_a_cleaned_job_is_looked_at_no_more(either_store: Store) -> None:
    await job_in(either_store, State.SUCCEEDED)
    await submit_one(either_store)
    await cleaned(either_store)
    before = await all_jobs(either_store)
    report = await cleaned(either_store)

    assert (report.written, report.lost) == (0, 0)
    assert await all_jobs(either_store) == before
