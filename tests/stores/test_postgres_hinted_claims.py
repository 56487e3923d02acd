"""A claim after a hint looks only at the range that it names, and passes over nothing for long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from holdfast.lifecycle.states import Priority
from holdfast.ports.models import ClaimRequest
from holdfast.stores.claim_ranges import Range
from holdfast.stores.postgres import claim_start
from holdfast.stores.postgres.claim import claim_known_sql
from holdfast.stores.postgres.claim_start import HintedRanges
from holdfast.stores.postgres.session import PostgresSession
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.wakeup import HINTS_KNOWN, WakeUp
from holdfast.testing.factories import new_job
from holdfast.testing.store_actions import claim, claimed_ids, submit_one
from tests.stores.ledgers import postgres_store

MAIL = Range("mail", "send@", 2)
OTHER = Range("mail", "send@", 1)


@pytest.fixture
async def store(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresStore]:
    # However slow the machine is, the last look at all ranges was lately, and cheap.
    monkeypatch.setattr(claim_start, "ALONE_SECONDS", 60.0)
    monkeypatch.setattr(claim_start, "CHEAP_SECONDS", 60.0)
    async with postgres_store(postgres_url) as store:
        assert await claim(store) == []
        yield store


@pytest.fixture
def sent(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that the store sends."""
    found: list[str] = []
    fetch = PostgresSession.fetch

    async def note(self: PostgresSession, text: str, *parameters: Any) -> Any:
        found.append(text)
        return await fetch(self, text, *parameters)

    monkeypatch.setattr(PostgresSession, "fetch", note)
    return found


async def test_a_claim_after_the_hint_of_one_submit_is_one_small_statement(
    store: PostgresStore, sent: list[str]
) -> None:
    job = await submit_one(store)
    del sent[:]
    assert await claimed_ids(store) == [job.id]
    assert sent == [claim_known_sql()]


async def test_after_hints_of_several_ranges_the_first_in_order_is_claimed(
    store: PostgresStore, sent: list[str]
) -> None:
    await submit_one(store, priority=Priority.BATCH)
    critical = await submit_one(store, priority=Priority.CRITICAL)
    assert await claimed_ids(store, limit=1) == [critical.id]
    assert claim_known_sql() not in sent


async def test_jobs_that_are_submitted_together_are_all_looked_for(
    store: PostgresStore, sent: list[str]
) -> None:
    jobs = [new_job(), new_job(priority=Priority.CRITICAL)]
    await store.submit(jobs)
    assert set(await claimed_ids(store)) == {job.record.id for job in jobs}
    assert claim_known_sql() not in sent


async def test_a_hinted_job_of_a_paused_queue_is_not_claimed(store: PostgresStore) -> None:
    await store.pause("default", actor="test")
    assert await claim(store) == []
    await submit_one(store)
    assert await claim(store) == []


async def test_a_hinted_job_whose_needs_are_not_served_is_not_claimed(
    store: PostgresStore, sent: list[str]
) -> None:
    await submit_one(store, needs=frozenset({"gpu"}))
    assert await claim(store) == []
    assert claim_known_sql() in sent


async def test_a_request_is_repeated_alike_after_a_hint_that_another_worker_was_first_for(
    store: PostgresStore, postgres_url: str, sent: list[str]
) -> None:
    first = await submit_one(store)
    assert await claimed_ids(store, request_id="again") == [first.id]
    await submit_one(store)
    async with postgres_store(postgres_url) as other:
        assert len(await claim(other, owner="worker-2")) == 1
    del sent[:]
    assert await claimed_ids(store, request_id="again") == [first.id]
    assert sent[0] == claim_known_sql()


class Looks:
    """Claims from the queue `mail`, with a clock that stands still."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wake = WakeUp(None)
        self.ranges = HintedRanges(lambda: self.now)

    def request(self, **fields: Any) -> ClaimRequest:
        given: dict[str, Any] = {"tasks": ("send",)} | fields
        return ClaimRequest(request_id="r", owner="w", queues=("mail",), limit=5, **given)

    def choose(self, **fields: Any) -> Range | None:
        return self.ranges.choose(self.request(**fields), self.wake)

    def claim(self, *, is_full: bool = False, **fields: Any) -> None:
        hinted = self.choose(**fields)
        self.ranges.note_claim(
            self.request(**fields), hinted, heard=self.wake.number, is_full=is_full
        )


@pytest.fixture
def looks() -> Looks:
    looks = Looks()
    looks.claim()
    return looks


def test_the_range_of_the_hints_since_the_last_claim_is_looked_at_alone(looks: Looks) -> None:
    looks.wake.hint(["mail"], only=MAIL)
    looks.wake.hint(["mail"], only=MAIL)
    looks.wake.hint(["video"])
    assert looks.choose() == MAIL
    looks.claim()
    assert looks.choose() is None, "no hint since"


def test_all_ranges_are_looked_at_first(looks: Looks) -> None:
    looks.wake.hint(["mail"], only=MAIL)
    assert looks.choose(capabilities=frozenset({"gpu"})) is None


def test_all_ranges_are_looked_at_again_after_a_while(looks: Looks) -> None:
    looks.now += claim_start.ALONE_SECONDS * 0.9
    looks.wake.hint(["mail"], only=MAIL)
    looks.claim()
    looks.wake.hint(["mail"], only=MAIL)
    looks.now += claim_start.ALONE_SECONDS * 0.2
    assert looks.choose() is None, "a look at one range is no look at all"


def test_all_ranges_are_looked_at_after_a_full_claim(looks: Looks) -> None:
    looks.claim(is_full=True)
    looks.wake.hint(["mail"], only=MAIL)
    assert looks.choose() is None


@pytest.mark.parametrize("only", [None, OTHER], ids=["of any range", "of another range"])
def test_all_ranges_are_looked_at_after_a_hint(looks: Looks, only: Range | None) -> None:
    looks.wake.hint(["mail"], only=MAIL)
    looks.wake.hint(["mail"], only=only)
    assert looks.choose() is None


def test_all_ranges_are_looked_at_after_more_hints_than_are_remembered(looks: Looks) -> None:
    looks.wake.hint(["mail"], only=OTHER)
    for _ in range(HINTS_KNOWN):
        looks.wake.hint(["mail"], only=MAIL)
    assert looks.choose() is None


def test_a_range_of_a_task_that_the_worker_does_not_have_is_not_looked_at(looks: Looks) -> None:
    looks.wake.hint(["mail"], only=Range("mail", "print@", 2))
    assert looks.choose() is None


def test_a_claim_of_one_tenant_is_never_of_a_hinted_range(looks: Looks) -> None:
    looks.claim(tenant="acme")
    looks.wake.hint(["mail"], only=MAIL)
    assert looks.choose(tenant="acme") is None
