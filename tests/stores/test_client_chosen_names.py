"""What a process remembers by names or terms that clients choose stays bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from holdfast.app.app import Holdfast
from holdfast.lifecycle import execution_policy as policies
from holdfast.lifecycle.execution_policy import Policy, policy_key
from holdfast.lifecycle.terms import TaskTerms
from holdfast.operations.store_cache import KNOWN_LIMIT, TERMS_SECONDS, KnownTerms
from holdfast.ports.models import ClaimRequest
from holdfast.stores.columns import Dictionary
from holdfast.stores.postgres.wakeup import WakeUp
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.wakeup import News
from holdfast.testing.factories import new_job

MANY = 25_000
LIMIT = 10_000


@pytest.fixture
async def sqlite() -> AsyncIterator[SqliteStore]:
    """A store in memory."""
    store = SqliteStore(":memory:")
    await store.open()
    yield store
    await store.close()


def test_keys_of_policies_are_kept_for_a_bounded_number() -> None:
    keys = {n: policy_key(Policy(timeout=n + 1)) for n in range(MANY)}
    assert len(policies._POLICY_KEYS) <= LIMIT
    assert policy_key(Policy(timeout=1)) == keys[0]
    assert len(set(keys.values())) == MANY


def test_policies_are_kept_for_a_bounded_number_and_the_newest_stay() -> None:
    seen = Dictionary()
    for n in range(MANY):
        seen.policies[n] = Policy(timeout=n + 1)
    seen.policies.update({MANY: Policy()})
    assert len(seen.policies) <= LIMIT
    assert seen.find_unknown([(MANY, 0), (MANY - 1000, 0), (0, 0)]) == ([0], [])


def test_sets_of_needs_are_kept_for_a_bounded_number_and_the_newest_stay() -> None:
    seen = Dictionary()
    seen.policies[0] = Policy()
    seen.needs.update({n: frozenset({f"need-{n}"}) for n in range(MANY)})
    assert len(seen.needs) <= LIMIT
    assert seen.find_unknown([(0, MANY - 1), (0, 1)]) == ([], [1])


async def test_needs_that_were_forgotten_are_read_again(sqlite: SqliteStore) -> None:
    jobs = [new_job(needs=frozenset({"gpu"})), new_job()]
    await sqlite.submit(jobs)
    seen = sqlite._session.database.seen
    seen.needs.update({n: frozenset({"other"}) for n in range(1, MANY)})
    found = await sqlite.get([job.record.id for job in jobs])
    assert [job and job.needs for job in found] == [frozenset({"gpu"}), frozenset()]
    seen.needs.update({n: frozenset({"other"}) for n in range(1, MANY)})
    wanted = ClaimRequest(
        request_id="1", owner="w", queues=tuple(job.record.queue for job in jobs), limit=2
    )
    assert [one.job.needs for one in await sqlite.claim(wanted)] == [frozenset()]


async def test_a_policy_that_was_forgotten_is_read_again(sqlite: SqliteStore) -> None:
    job = new_job(policy=Policy(timeout=5))
    await sqlite.submit([job])
    seen = sqlite._session.database.seen
    for n in range(MANY):
        seen.policies[n] = Policy()
    [found] = await sqlite.get([job.record.id])
    assert found is not None
    assert found.policy == Policy(timeout=5)


def test_news_of_many_queues_are_bounded_and_none_is_missed() -> None:
    news = News()
    before = news.number
    news.note_commit(["first"])
    for n in range(MANY):
        news.note_commit([f"queue-{n}"])
    assert len(news._queues) <= LIMIT
    assert news.has_come_since(["first"], before)
    assert not news.has_come_since(["first"], news.number)


async def test_hints_of_many_queues_are_bounded_and_none_is_missed() -> None:
    wake = WakeUp(None)
    wake._wake_waiters(frozenset(["first"]))
    for n in range(MANY):
        wake._wake_waiters(frozenset([f"queue-{n}"]))
    assert len(wake._hints) <= LIMIT
    assert await wake.wait(["first"], 0, since=0)


async def test_sets_of_queues_that_claimed_are_bounded(sqlite: SqliteStore) -> None:
    for n in range(1200):
        request = ClaimRequest(request_id=f"r{n}", owner="w", queues=(f"queue-{n}",), limit=1)
        await sqlite.claim(request)
    assert len(sqlite._seen_news) <= 1000


def test_what_was_written_ahead_of_transactions_is_bounded() -> None:
    app = Holdfast(":memory:")
    for n in range(MANY):
        app._has_new_names([new_job(id=UUID(int=n + 1), policy=Policy(timeout=n + 1))])
    assert len(app.written_ahead) <= LIMIT


async def test_terms_of_tasks_are_kept_for_a_bounded_number_and_a_few_seconds(
    sqlite: SqliteStore,
) -> None:
    now = 0.0
    known = KnownTerms(sqlite, lambda: now)
    first, later = (TaskTerms(task="pay", policy=Policy(timeout=n)) for n in (1, 2))
    await sqlite.publish_terms([first])
    await known.learn([("default", "pay")])
    await sqlite.publish_terms([later])
    await known.learn([("default", "pay")])
    assert known.get("default", "pay") == first
    now = TERMS_SECONDS
    await known.learn([("default", "pay")])
    assert known.get("default", "pay") == later
    for n in range(12):
        await known.learn([("default", f"task-{n}-{m}") for m in range(100)])
    assert len(known) == KNOWN_LIMIT
    assert known.get("default", "pay") is None
