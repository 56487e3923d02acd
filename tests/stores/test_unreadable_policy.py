"""A process that cannot read the policy that is applied: it submits nothing, all else works."""

from __future__ import annotations

from typing import NoReturn

import pytest

from holdfast.errors import BadPolicy
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Change, Job, NewJob
from holdfast.lifecycle.states import Link
from holdfast.lifecycle.submit import submit
from holdfast.ports.models import Committed, Rejected, SubmitRefused, Submitted
from holdfast.ports.store import Store
from holdfast.stores.postgres import policy as postgres_policy
from holdfast.stores.sqlite import turn as sqlite_turn
from holdfast.testing.contract.policies import decided, with_submits
from holdfast.testing.factories import CONTROL, GATEWAY, new_job, submission
from holdfast.testing.store_actions import submit_one
from holdfast.webhooks.registry import QUEUE, TASK
from tests.stores.ledgers import Ledger, make_ledger
from tests.stores.raw import ENGINES

pytestmark = pytest.mark.req("A13")
OPEN = 'version = 1\ndefault = "allow"\n'
LACKS = "expressions need the extra 'policy'"


@pytest.fixture(params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A ledger of its own for each test: rules change its schema."""
    return make_ledger(request, tmp_path_factory)


def take_extra_away(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let stores compile no rules from now on, and look at them each time; return what they try."""
    tried: list[str] = []

    def fail(body: str) -> NoReturn:
        tried.append(body)
        raise BadPolicy(LACKS)

    monkeypatch.setattr(postgres_policy, "compile_book", fail)
    monkeypatch.setattr(sqlite_turn, "compile_book", fail)
    monkeypatch.setattr(postgres_policy, "FRESH_SECONDS", -1.0)
    return tried


def hold(job: Job) -> Change:
    """Return a change of a job that brings no other."""
    return decided(job, c.Hold(actor=CONTROL, hold="a"))


def spawn(job: Job) -> Change:
    """Return a change of a job that brings another."""
    return with_submits(hold(job), new_job(parent_id=job.id, link_kind=Link.CHILD))


def own_job() -> NewJob:
    """Return a new job of Holdfast's own, which no rules judge."""
    return submit(submission(task=TASK, queue=QUEUE), GATEWAY, internal=True)


async def apply_elsewhere(ledger: Ledger, body: str = OPEN) -> None:
    """Apply rules as another process does."""
    async with ledger.store() as other:
        await other.apply_policy(body, actor="ann")


async def test_what_brings_no_job_is_committed_without_a_look_at_the_rules(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger.store() as store:
        first, second = await submit_one(store), await submit_one(store)
        await store.apply_policy(OPEN, actor="ann")
        tried = take_extra_away(monkeypatch)

        [outcome] = await store.commit([hold(first)])
        locked = await store.commit_locked(second.id, lambda *_: [hold(second)])

        assert isinstance(outcome, Committed), outcome
        assert isinstance(locked, Committed), locked
        assert tried == []


async def check_births_are_refused(store: Store, jobs: list[Job]) -> None:
    """Only what brings a job is refused, and the refusal gives the reason."""
    parent, other, locked = jobs
    outcomes = await store.commit([spawn(parent), hold(other)])
    under_lock = await store.commit_locked(locked.id, lambda *_: [spawn(locked)])
    answers = await store.submit([new_job(), own_job()])

    assert isinstance(outcomes[1], Committed), outcomes
    assert isinstance(answers[1], Submitted), answers
    for refusal in (outcomes[0], under_lock, answers[0]):
        assert isinstance(refusal, Rejected | SubmitRefused), refusal
        assert refusal.code == "bad_policy"
        assert LACKS in refusal.message


async def test_births_are_refused_with_the_reason_and_stop_nothing_else(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger.store() as store:
        jobs = [await submit_one(store) for _ in range(6)]
        await apply_elsewhere(ledger)
        take_extra_away(monkeypatch)

        # Once when the database is the first to show it, once when it is known.
        await check_births_are_refused(store, jobs[:3])
        await check_births_are_refused(store, jobs[3:])


async def test_rules_that_it_can_read_are_noticed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger.store() as store:
        await apply_elsewhere(ledger)
        take_extra_away(monkeypatch)
        [refused] = await store.submit([new_job()])
        monkeypatch.undo()
        await apply_elsewhere(ledger, OPEN + "# simpler\n")
        monkeypatch.setattr(postgres_policy, "FRESH_SECONDS", -1.0)

        [taken] = await store.submit([new_job()])

    assert isinstance(refused, SubmitRefused)
    assert isinstance(taken, Submitted)


async def test_rules_that_cannot_be_read_are_not_read_again_for_each_job(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    await apply_elsewhere(ledger)
    tried = take_extra_away(monkeypatch)
    monkeypatch.setattr(postgres_policy, "FRESH_SECONDS", 600.0)
    async with ledger.store() as store:
        for _ in range(3):
            [refused] = await store.submit([new_job()])
            assert isinstance(refused, SubmitRefused)

    assert len(tried) == 1
