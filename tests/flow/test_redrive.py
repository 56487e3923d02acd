"""Redrive and discard: once, whoever repeats it, and in bulk past whatever is in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import BadData, NoSuchJob, Refused, RequestIdReused, StoreUnavailable
from holdfast.flow.command import perform
from holdfast.flow.redrive import RedriveTerms, discard, redrive
from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Change, Job, JobId
from holdfast.lifecycle.states import KeyKind, Letter, Link, Priority, Role, State
from holdfast.lifecycle.times import SECOND, After
from holdfast.ports.models import Outcome, Query
from holdfast.ports.store import Store
from holdfast.queries.dead_letters import read_letter
from holdfast.testing.factories import CONTROL, HOUR, JANITOR, SCHEDULER, owner_of, worker
from holdfast.testing.store_actions import claim_one, do, job_in, running_job, stored
from tests.flow.test_command import Interrupting
from tests.queries.test_dead_letters import dead

OTHER = Actor(Role.CONTROL, "bob")


@pytest.fixture
def store(either_store: Store) -> Store:
    """Both engines."""
    return either_store


async def made_of(store: Store, job: Job) -> list[JobId]:
    """Every job that was made of a dead one: rows, not replies."""
    page = await store.find(Query(parent_id=job.id))
    assert all(one.link_kind is Link.REDRIVE for one in page.jobs)
    return [one.id for one in page.jobs]


async def cleaned(store: Store, job: Job) -> Job:
    job = await do(store, job, c.Clean(actor=JANITOR))
    job = await do(store, job, c.Cleaned(actor=JANITOR))
    await store.erase_bodies([job.id])
    return job


class LosingReplies:
    """A store whose first commits land, and whose replies are lost."""

    def __init__(self, store: Store, times: int = 1) -> None:
        """Lose so many replies."""
        self._store, self._left = store, times

    def __getattr__(self, name: str) -> Any:
        """All else is the store's."""
        return getattr(self._store, name)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Write, and do not say so."""
        outcomes = await self._store.commit(changes)
        if self._left:
            self._left -= 1
            raise StoreUnavailable("the reply was lost")
        return outcomes


RICH: dict[str, Any] = {
    "task": "mail",
    "tenant": "acme",
    "queue": "post",
    "body": b'{"to":"ann"}',
    "priority": Priority.CRITICAL,
    "needs": frozenset({"smtp"}),
    "policy": Policy(max_attempts=7),
    "labels": {"team": "blue"},
    "env": {"locale": "de"},
    "context_ptr": "s3://context",
    "workflow_id": "flow-1",
    "step_index": 3,
    "correlation_id": "order-7",
    "trace_id": "trace-9",
    "cpus": 2,
    "memory_mb": 512,
}


async def test_a_redrive_is_a_linked_new_job_that_asks_for_the_same(store: Store) -> None:
    job = await dead(store, **RICH)

    new = await redrive(store, job.id, CONTROL, reason="mail is up again")
    [first] = await store.events(new.id)
    [was] = await store.events(job.id, limit=1)
    assert first.created is not None
    assert was.created is not None
    assert (new.parent_id, new.link_kind, new.state) == (job.id, Link.REDRIVE, State.QUEUED)
    for name in {*RICH, "kind"} - {"body", "correlation_id"}:
        assert getattr(first.created, name) == getattr(was.created, name), name
    assert (first.body, first.correlation_id) == (was.body, was.correlation_id)
    assert (new.attempt, new.failures) == (0, 0)


async def test_the_dead_job_stays_dead_and_names_its_successor(store: Store) -> None:
    job = await dead(store)
    new = await redrive(store, job.id, CONTROL, reason="fixed")

    after = await stored(store, job.id)
    assert (after.state, after.letter, after.error_code) == (
        State.DEAD_LETTERED,
        Letter.REDRIVEN,
        job.error_code,
    )
    letter = await read_letter(store, job.id)
    assert (letter.redriven_as, letter.settled_by) == (new.id, "control:ann")
    assert (await store.events(job.id))[-1].reason == "fixed"


async def test_the_new_job_runs_like_any_other(store: Store) -> None:
    job = await dead(store, queue="post", body=b'{"to":"ann"}')
    new = await redrive(store, job.id, CONTROL)

    claimed = await claim_one(store, "post")
    assert (claimed.job.id, claimed.body) == (new.id, b'{"to":"ann"}')


@pytest.mark.req("C11")
async def test_keys_stay_with_the_dead_job(store: Store) -> None:
    keys = {
        "job_id": "invoice-1",
        "request_id": "r-1",
        "client_job_id": "6f9619ff-8b86-4d01-b42d-00cf4fc964ff",
        "dedupe_key": "k",
    }
    job = await dead(store, **keys)
    new = await redrive(store, job.id, CONTROL)

    assert (new.job_id, new.key_kinds) == (None, 0)
    for kind, key in ((KeyKind.JOB_ID, "invoice-1"), (KeyKind.DEDUPE, "k")):
        assert await store.look_up("default", kind, key) == job.id


async def test_queue_retries_and_delay_may_be_otherwise(store: Store) -> None:
    job = await dead(store, queue="post", policy=Policy(max_attempts=2, timeout=HOUR))
    terms = RedriveTerms(queue="slow", retries=9, delay=HOUR)
    new = await redrive(store, job.id, CONTROL, terms=terms)

    assert (new.queue, new.run_at) == ("slow", new.created_at + HOUR)
    assert new.policy == Policy(max_attempts=10, timeout=HOUR)


@pytest.mark.parametrize(
    "terms", [RedriveTerms(queue=""), RedriveTerms(retries=-1)], ids=["queue", "retries"]
)
async def test_a_wish_that_cannot_be_is_refused_and_nothing_is_written(
    store: Store, terms: RedriveTerms
) -> None:
    job = await dead(store)
    with pytest.raises(BadData):
        await redrive(store, job.id, CONTROL, terms=terms)
    assert await store.get([job.id]) == [job]


async def test_a_deadline_keeps_its_distance_from_the_submit(store: Store) -> None:
    job = await dead(store, deadline_at=After(HOUR))
    new = await redrive(store, job.id, CONTROL)
    assert new.deadline_at == new.created_at + HOUR


async def test_what_had_to_be_admitted_has_to_be_admitted_again(store: Store) -> None:
    job = await job_in(store, State.PENDING)
    unmet = c.DeadLetter(actor=SCHEDULER, error_code="dependency_unavailable", stage="fetch")
    await do(store, job, unmet)
    assert (await redrive(store, job.id, CONTROL)).state is State.PENDING


@pytest.mark.req("B31")
async def test_the_letter_of_a_failed_job_is_redriven_like_another(store: Store) -> None:
    job = await running_job(store, policy=Policy(letter_on_fail=True))
    await do(store, job, c.Fail(actor=owner_of(job), error_code="permanent"))
    new = await redrive(store, job.id, CONTROL)
    assert await made_of(store, job) == [new.id]


@pytest.mark.req("B5", "C6")
async def test_a_repeated_redrive_returns_the_job_of_the_first(store: Store) -> None:
    job = await dead(store)
    first = await redrive(store, job.id, CONTROL)
    assert await redrive(store, job.id, CONTROL) == first
    assert await redrive(store, job.id, OTHER, request_id="r-1") == first
    assert await made_of(store, job) == [first.id]


@pytest.mark.req("B5", "C6")
@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize("request_id", [None, "r-1"], ids=["no request", "one request"])
async def test_redrives_at_once_make_one_job(
    store: Store, again: bool, request_id: str | None
) -> None:
    job = await dead(store)
    if again:
        await do(store, await redrive(store, job.id, CONTROL), c.Cancel(actor=CONTROL))
        request_id = request_id or "r-2"
    before = set(await made_of(store, job))
    made = await asyncio.gather(
        *(redrive(store, job.id, CONTROL, again=again, request_id=request_id) for _ in range(8))
    )
    [new] = set(await made_of(store, job)) - before
    assert {one.id for one in made} == {new}


@pytest.mark.req("B5", "C6")
@pytest.mark.parametrize("request_id", [None, "r-1"], ids=["no request", "one request"])
async def test_a_redrive_that_came_between_the_look_and_the_write_is_the_one(
    store: Store, request_id: str | None
) -> None:
    job = await dead(store)
    racing: Any = Interrupting(
        store, lambda: redrive(store, job.id, CONTROL, request_id=request_id), 1
    )
    new = await redrive(racing, job.id, CONTROL, request_id=request_id)
    assert await made_of(store, job) == [new.id]


@pytest.mark.req("B5", "C6")
async def test_a_request_is_answered_by_its_own_redrive_whatever_came_before_and_after(
    store: Store,
) -> None:
    job = await dead(store)
    made: list[Job] = []

    async def between() -> None:
        await perform(store, job.id, c.LateResult(actor=worker("late"), state="SUCCEEDED"))
        for request_id in ("r-1", None):
            made.append(await redrive(store, job.id, CONTROL, again=True, request_id=request_id))
            await do(store, made[-1], c.Cancel(actor=CONTROL))

    racing: Any = Interrupting(store, between, 1)
    found = await redrive(racing, job.id, CONTROL, again=True, request_id="r-1")
    assert found.id == made[0].id
    assert len(await made_of(store, job)) == 2


@pytest.mark.req("B5", "C6")
async def test_a_redrive_whose_reply_was_lost_is_found_again(store: Store) -> None:
    job = await dead(store)
    losing: Any = LosingReplies(store)
    with pytest.raises(StoreUnavailable):
        await redrive(losing, job.id, CONTROL, request_id="r-1")
    new = await redrive(losing, job.id, CONTROL, request_id="r-1")
    assert await made_of(store, job) == [new.id]


@pytest.mark.req("B5", "C6")
async def test_a_deliberate_redrive_whose_reply_was_lost_is_found_by_its_request(
    store: Store,
) -> None:
    job = await dead(store)
    first = await redrive(store, job.id, CONTROL)
    await do(store, first, c.Cancel(actor=CONTROL))
    losing: Any = LosingReplies(store)
    with pytest.raises(StoreUnavailable):
        await redrive(losing, job.id, CONTROL, again=True, request_id="r-1")
    second = await redrive(store, job.id, CONTROL, again=True, request_id="r-1")
    await do(store, second, c.Cancel(actor=CONTROL))
    third = await redrive(store, job.id, CONTROL, again=True)
    found = await redrive(store, job.id, CONTROL, again=True, request_id="r-1")
    assert found.id == second.id
    assert await made_of(store, job) == [third.id, second.id, first.id]


@pytest.mark.parametrize("again", [False, True], ids=["once", "again"])
@pytest.mark.parametrize(
    "terms",
    [RedriveTerms(queue="slow"), RedriveTerms(retries=9), RedriveTerms(delay=SECOND)],
    ids=["queue", "tries", "due"],
)
async def test_a_request_id_for_another_redrive_is_refused(
    store: Store, terms: RedriveTerms, again: bool
) -> None:
    job = await dead(store)
    await redrive(store, job.id, CONTROL, request_id="r-1")
    with pytest.raises(RequestIdReused):
        await redrive(store, job.id, CONTROL, request_id="r-1", terms=terms, again=again)
    with pytest.raises(RequestIdReused):
        await discard(store, job.id, CONTROL, request_id="r-1")
    assert len(await made_of(store, job)) == 1


async def test_an_erased_request_cannot_be_redriven(store: Store) -> None:
    job = await cleaned(store, await dead(store))
    with pytest.raises(Refused, match="is erased; submit a new job") as caught:
        await redrive(store, job.id, CONTROL)
    assert caught.value.code == "body_erased"
    assert await made_of(store, job) == []


async def test_a_redrive_is_found_again_even_when_the_request_is_erased(store: Store) -> None:
    job = await dead(store)
    new = await redrive(store, job.id, CONTROL)
    await cleaned(store, await stored(store, job.id))
    assert await redrive(store, job.id, CONTROL) == new


@pytest.mark.parametrize("act", [redrive, discard])
@pytest.mark.parametrize("state", [State.RUNNING, State.SUCCEEDED, State.TIMED_OUT])
async def test_what_has_no_letter_is_neither_redriven_nor_discarded(
    store: Store, state: State, act: Any
) -> None:
    job = await job_in(store, state)
    with pytest.raises(Refused) as caught:
        await act(store, job.id, CONTROL)
    assert caught.value.code == "no_dead_letter"
    with pytest.raises(NoSuchJob):
        await act(store, mint_id(), CONTROL)


async def test_a_discarded_letter_is_redriven_only_again_and_a_redriven_one_not_discarded(
    store: Store,
) -> None:
    job = await dead(store)
    put_away = await discard(store, job.id, CONTROL, reason="known")
    assert put_away.letter is Letter.DISCARDED
    assert (await discard(store, job.id, OTHER)).rev == put_away.rev
    with pytest.raises(Refused) as caught:
        await redrive(store, job.id, CONTROL)
    assert caught.value.code == "letter_discarded"

    new = await redrive(store, job.id, CONTROL, again=True)
    with pytest.raises(Refused) as caught:
        await discard(store, job.id, CONTROL)
    assert caught.value.code == "letter_redriven"
    assert (await read_letter(store, job.id)).redriven_as == new.id


@pytest.mark.parametrize("from_start", [False, True])
async def test_a_job_is_not_redriven_again_while_the_job_that_goes_on_from_it_has_not_ended(
    store: Store, from_start: bool
) -> None:
    job = await dead(store)
    new = await redrive(store, job.id, CONTROL)
    claimed = (await claim_one(store, new.queue)).job
    running = await do(store, claimed, c.Start(actor=owner_of(claimed)))
    with pytest.raises(Refused, match=f"continues as job {new.public_id}") as caught:
        await redrive(store, job.id, CONTROL, again=True, terms=RedriveTerms(from_start=from_start))
    assert caught.value.code == "successor_running"
    await do(store, running, c.Complete(actor=owner_of(running)))
    assert (await redrive(store, job.id, CONTROL, again=True)).id != new.id


async def test_a_repeated_redrive_is_answered_though_a_worker_has_corrected_its_terms(
    store: Store,
) -> None:
    job = await dead(store)
    terms = RedriveTerms(retries=3)
    new = await redrive(store, job.id, CONTROL, terms=terms, request_id="r-1")
    claimed = (await claim_one(store, new.queue)).job
    once = replace(claimed.policy, max_attempts=1, idempotent=False)
    await do(store, claimed, c.CorrectTerms(actor=owner_of(claimed), policy=once))
    found = await redrive(store, job.id, CONTROL, terms=terms, request_id="r-1")
    assert found.id == new.id
