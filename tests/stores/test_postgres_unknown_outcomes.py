"""The line breaks around a COMMIT: what became of it is settled by looking, never guessed.

A lost reply and a lost request look the same to the client; each write is tried with both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import StoreUnavailable
from holdfast.ids import mint_ids
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.alike import job_id_of, make_alike
from holdfast.lifecycle.record import Actor, Change, Job
from holdfast.lifecycle.states import EventType, Role, State
from holdfast.operations.batches import BatchedStore
from holdfast.ports.models import Capacity, Committed, Submitted
from holdfast.ports.store import Store
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.factories import CONTROL, JANITOR, fresh, new_job, owner_of
from holdfast.testing.store_actions import (
    all_jobs,
    chain,
    change,
    claim,
    claimed_job,
    commit_one,
    do,
    running_job,
    stored,
    submit_one,
)
from tests.stores.ledgers import assert_proven, postgres_store
from tests.support.postgres import PostgresCluster
from tests.support.proxy import Fault, FaultProxy

Break = Callable[[FaultProxy, bytes], Fault]
BREAKS = [
    pytest.param(FaultProxy.drop_reply_after, id="reply"),
    pytest.param(FaultProxy.drop_request, id="request"),
]
Wish = Callable[[Store], Awaitable[Sequence[Any]]]
lost = pytest.mark.parametrize("lose", BREAKS)


@pytest.fixture(scope="module")
def postgres_url(postgres_cluster: PostgresCluster, postgres_template: str) -> Iterator[str]:
    """One ledger for all tests here: each keeps to a queue of its own."""
    url = postgres_cluster.create_database(template=postgres_template)
    yield url
    postgres_cluster.drop_database(url)


@pytest.fixture
def proxy(postgres_cluster: PostgresCluster) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", postgres_cluster.port) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: FaultProxy, postgres_url: str) -> AsyncIterator[PostgresStore]:
    """The store whose line breaks; it is connected, so that the first fault meets no greeting."""
    async with postgres_store(proxy.url(postgres_url)) as store:
        await store.clock()
        yield store
        await assert_proven(store)


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """Somebody whose line is sound."""
    async with postgres_store(postgres_url) as store:
        yield store


@pytest.fixture
def queue() -> str:
    return fresh("queue")


async def jobs_in(store: Store, queue: str) -> list[Job]:
    """Read the rows of a queue: what counts is rows, not replies."""
    return [job for job in await all_jobs(store) if job.queue == queue]


KEYS = [
    pytest.param((), b"INSERT INTO jobs", id="no-keys"),
    pytest.param(("request_id",), b"INSERT INTO jobs", id="keys-before-the-end"),
    pytest.param(("request_id", "dedupe_key"), b"COMMIT", id="keys-at-the-end"),
    pytest.param(("job_id",), b"INSERT INTO keys", id="keys-being-taken"),
]


@pytest.mark.req("B5", "C6")
@lost
@pytest.mark.parametrize(("keys", "statement"), KEYS)
async def test_a_submit_makes_one_job(
    *,
    proxy: FaultProxy,
    store: Store,
    queue: str,
    lose: Break,
    keys: Sequence[str],
    statement: bytes,
) -> None:
    wishes: dict[str, Any] = {name: fresh(name) for name in keys}
    fault = lose(proxy, statement)
    outcomes = await store.submit([new_job(queue=queue, **wishes), new_job(queue=queue)])
    assert fault.bitten
    assert [isinstance(one, Submitted) and one.created for one in outcomes] == [True, True]
    jobs = [one.job for one in outcomes if isinstance(one, Submitted)]
    assert await jobs_in(store, queue) == jobs


@pytest.mark.req("B5", "C6")
@lost
async def test_a_submit_of_alike_jobs_makes_each_once(
    proxy: FaultProxy, store: Store, queue: str, lose: Break
) -> None:
    bodies = [b"%d" % number for number in range(60)]
    alike = make_alike(new_job(queue=queue), mint_ids(len(bodies)), bodies)
    fault = lose(proxy, b"INSERT INTO jobs")
    [sent] = await BatchedStore(store).submit_alike(alike)
    assert fault.bitten
    # If the request was lost, the second try inserted them; else it met them.
    assert (sent.accepted is None) == (lose is FaultProxy.drop_reply_after)
    jobs = [one.job for one in sent.outcomes if isinstance(one, Submitted) and one.created]
    if sent.accepted is not None:
        jobs = [replace(sent.accepted, id=job_id_of(id_)) for id_ in alike.ids]
    assert [job.id.bytes for job in jobs] == alike.ids
    assert await jobs_in(store, queue) == jobs


@pytest.mark.req("B5")
@lost
async def test_a_submit_that_refers_to_an_existing_job_still_does(
    proxy: FaultProxy, store: Store, queue: str, lose: Break
) -> None:
    one, two = fresh("key"), fresh("key")
    first = await submit_one(store, dedupe_key=one, queue=queue)
    fault = lose(proxy, b"COMMIT")
    repeated, new = await store.submit(
        [new_job(dedupe_key=one, queue=queue), new_job(dedupe_key=two, queue=queue)]
    )
    assert fault.bitten
    assert repeated == Submitted(first, created=False)
    assert isinstance(new, Submitted)
    assert new.created
    assert await jobs_in(store, queue) == [first, new.job]


@pytest.mark.req("B20", "C6")
@lost
@pytest.mark.parametrize(
    ("wishes", "statement"),
    [
        pytest.param({}, b"INSERT INTO claims", id="any"),
        pytest.param({"capacity": Capacity(4, 4096)}, b"COMMIT", id="what-fits"),
    ],
)
async def test_a_claim_takes_its_jobs_once(
    *,
    proxy: FaultProxy,
    store: Store,
    queue: str,
    lose: Break,
    wishes: dict[str, Any],
    statement: bytes,
) -> None:
    await store.submit([new_job(queue=queue) for _ in range(5)])
    fault = lose(proxy, statement)
    taken = await claim(store, queue, limit=2, **wishes)
    assert fault.bitten
    assert [(one.job.attempt, one.body) for one in taken] == [(1, b"null")] * 2
    claimed = [job for job in await jobs_in(store, queue) if job.state is State.CLAIMED]
    assert sorted((one.job for one in taken), key=lambda job: job.id) == claimed


@pytest.mark.req("B20")
@lost
async def test_a_claim_that_found_nothing_finds_nothing(
    proxy: FaultProxy, store: Store, queue: str, lose: Break
) -> None:
    fault = lose(proxy, b"INSERT INTO claims")
    assert await claim(store, queue) == []
    assert fault.bitten


async def _start(store: Store) -> list[Change]:
    job = await claimed_job(store)
    return [change(job, c.Start(actor=owner_of(job)))]


async def _folded_life(store: Store) -> list[Change]:
    job = await claimed_job(store)
    owner = owner_of(job)
    return chain(job, c.Start(actor=owner), c.Complete(actor=owner, body=b"1"))


async def _heartbeat(store: Store) -> list[Change]:
    job = await running_job(store)
    return [change(job, c.Heartbeat(actor=owner_of(job)))]


async def _named_request(store: Store) -> list[Change]:
    job = await running_job(store)
    return [change(job, c.SignalJob(actor=CONTROL, name="go", request_id=fresh("request")))]


async def _adoption(store: Store) -> list[Change]:
    job = await running_job(store)
    return [change(job, c.Adopt(actor=Actor(Role.HOST, "worker-2")))]


async def _freed_key(store: Store) -> list[Change]:
    job = await running_job(store, dedupe_key=fresh("key"), unique_live=True)
    return [change(job, c.Complete(actor=owner_of(job)))]


async def _cleaned(store: Store) -> list[Change]:
    job = await running_job(store, dedupe_key=fresh("key"))
    job = await do(store, job, c.Complete(actor=owner_of(job)))
    job = await do(store, job, c.Clean(actor=JANITOR))
    return [change(job, c.Cleaned(actor=JANITOR))]


async def _with_child(store: Store) -> list[Change]:
    job = await running_job(store)
    child = new_job(parent_id=job.id, request_id=fresh("child"))
    return [change(job, c.Fail(actor=owner_of(job), error_code="boom", submits=(child,)))]


async def _batch(store: Store) -> list[Change]:
    return [one for make in (_start, _heartbeat, _folded_life) for one in await make(store)]


COMMITS = [
    pytest.param(_start, b"UPDATE jobs", id="start"),
    pytest.param(_folded_life, b"UPDATE jobs", id="folded"),
    pytest.param(_heartbeat, b"UPDATE jobs", id="heartbeat"),
    pytest.param(_named_request, b"UPDATE jobs", id="own-request-id"),
    pytest.param(_adoption, b"COMMIT", id="adoption"),
    pytest.param(_freed_key, b"COMMIT", id="freed-key"),
    pytest.param(_cleaned, b"COMMIT", id="cleaned"),
    pytest.param(_with_child, b"COMMIT", id="child"),
    pytest.param(_with_child, b"INSERT INTO jobs", id="child-before-the-end"),
    pytest.param(_batch, b"UPDATE jobs", id="batch"),
]


@pytest.mark.req("B4", "B5", "C6", "C8")
@lost
@pytest.mark.parametrize(("make", "statement"), COMMITS)
async def test_a_commit_is_written_once_and_acknowledged(
    *,
    proxy: FaultProxy,
    store: Store,
    other: Store,
    lose: Break,
    make: Callable[[Store], Awaitable[list[Change]]],
    statement: bytes,
) -> None:
    changes = await make(other)
    before = len(await all_jobs(other))
    fault = lose(proxy, statement)
    outcomes = await store.commit(changes)
    assert fault.bitten
    last = {change.id: change.next for change in changes}
    assert [type(one) for one in outcomes] == [Committed] * len(changes)
    for id_, expected in last.items():
        job = await stored(other, id_)
        assert (job.rev, job.state) == (expected.rev, expected.state)
        assert job in [one.job for one in outcomes if isinstance(one, Committed)]
        assert [event.rev for event in await other.events(id_)] == list(range(1, job.rev + 1))
    submits = sum(len(change.submits) for change in changes)
    assert len(await all_jobs(other)) == before + submits


@pytest.mark.req("C6")
async def test_a_commit_whose_reply_was_lost_is_found_behind_what_came_after_it(
    proxy: FaultProxy, store: Store, other: Store
) -> None:
    job = await claimed_job(other)
    # The one connection there is breaks after the commit, and there is no other for a while.
    fault = proxy.drop_reply_after(b"UPDATE jobs")
    proxy.refuse()
    commit = asyncio.create_task(commit_one(store, change(job, c.Start(actor=owner_of(job)))))
    await fault.happened()
    started = await stored(other, job.id)
    await do(other, started, c.RequestCancel(actor=CONTROL))
    proxy.accept()

    outcome = await commit
    assert isinstance(outcome, Committed)
    assert outcome.repeated
    assert [event.type for event in await other.events(job.id)][2:] == [
        EventType.STARTED,
        EventType.CANCEL_REQUESTED,
    ]


@pytest.mark.req("C6")
async def test_the_look_at_what_became_of_a_commit_may_fail_too(
    proxy: FaultProxy, store: Store, other: Store
) -> None:
    [changed] = await _start(other)
    faults = [
        proxy.drop_reply_after(b"UPDATE jobs"),
        proxy.drop_reply_after(b"FROM beats WHERE id = d.id"),
        proxy.drop_request(b"FROM beats WHERE id = d.id"),
    ]
    outcome = await commit_one(store, changed)
    assert isinstance(outcome, Committed)
    assert outcome.repeated
    assert all(fault.bitten for fault in faults)
    assert len(await other.events(changed.id)) == 3


@pytest.mark.req("B20")
async def test_the_look_at_what_a_claim_took_may_fail_too(
    proxy: FaultProxy, store: Store, other: Store, queue: str
) -> None:
    job = await submit_one(other, queue=queue)
    faults = [
        proxy.drop_reply_after(b"INSERT INTO claims"),
        proxy.drop_request(b"FROM claims AS c"),
    ]
    [claimed] = await claim(store, queue)
    assert all(fault.bitten for fault in faults)
    assert (claimed.job.id, claimed.job.attempt) == (job.id, 1)


async def _new(store: Store, queue: str) -> Wish:
    job = new_job(queue=queue)
    return lambda store: store.submit([job])


async def _new_with_key(store: Store, queue: str) -> Wish:
    job = new_job(queue=queue, job_id=fresh("job"))
    return lambda store: store.submit([job])


async def _signal(store: Store, queue: str) -> Wish:
    job = await running_job(store, queue=queue)
    command = c.SignalJob(actor=CONTROL, name="go", request_id=fresh("request"))
    return lambda store: store.commit([change(job, command)])


@pytest.mark.req("B5", "C6")
@pytest.mark.parametrize(
    ("make", "statement", "events"),
    [
        pytest.param(_new, b"INSERT INTO jobs", 1, id="submit"),
        pytest.param(_new_with_key, b"COMMIT", 1, id="submit-with-key"),
        pytest.param(_signal, b"UPDATE jobs", 4, id="commit-with-request-id"),
    ],
)
async def test_whoever_was_told_of_no_answer_may_ask_again(
    *,
    proxy: FaultProxy,
    postgres_url: str,
    other: Store,
    queue: str,
    make: Callable[[Store, str], Awaitable[Wish]],
    statement: bytes,
    events: int,
) -> None:
    wish = await make(other, queue)
    brief = postgres_store(proxy.url(postgres_url), deadline_seconds=0.2, attempt_seconds=2.0)
    async with brief as impatient:
        await impatient.clock()
        fault = proxy.drop_reply_after(statement)
        proxy.refuse()
        with pytest.raises(StoreUnavailable):
            await wish(impatient)
        assert fault.bitten
        proxy.accept()

        [outcome] = await wish(impatient)
        assert isinstance(outcome, Submitted | Committed)
    [job] = await jobs_in(other, queue)
    assert outcome.job == job
    assert len(await other.events(job.id)) == events
