"""Policies: while rules are applied, no birth gets past them, and no other rules judge it."""

from __future__ import annotations

import pytest

from holdfast.errors import BadPolicy
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.record import Change, Draft, NewJob
from holdfast.lifecycle.states import Link, State
from holdfast.ports.models import Committed, Rejected, Submitted
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, SCHEDULER, new_job
from holdfast.testing.store_actions import do, job_in, submit_one

OPEN = 'version = 1\ndefault = "allow"\n'
DENIES = OPEN + '[[rule]]\nid = "no"\nmatch = { task = "bad*" }\nthen = "deny"\n'
ASKS_TWO = OPEN + (
    '[[rule]]\nid = "two"\nmatch = { task = "deploy" }\nthen = "approve"\n'
    'approve = { count = 2, expires = "1h" }\n'
)
LIMITS = OPEN + '[[rule]]\nid = "short"\nthen = "allow"\nconstrain = { timeout = "30s" }\n'


async def submit_judged(store: Store, job: NewJob) -> Submitted:
    """Submit one job that is taken."""
    [outcome] = await store.submit([job])
    assert isinstance(outcome, Submitted), outcome
    return outcome


class PolicyContract:
    """The store of policies, the door that every birth comes through, and the names of holds."""

    async def test_rules_are_applied_replaced_and_removed_with_an_entry_each(
        self, store: Store
    ) -> None:
        assert await store.policy() is None
        first = await store.apply_policy(OPEN, actor="ann", reason="start")
        assert first == await store.policy()
        assert first is not None
        assert (first.body, first.applied_by, first.reason) == (OPEN, "ann", "start")
        second = await store.apply_policy(DENIES, actor="bob")
        assert second is not None
        assert await store.apply_policy(DENIES, actor="eve") == second
        assert await store.apply_policy(None, actor="ann") is await store.policy() is None

        entries = [(one.type, one.digest, one.actor) for one in await store.policy_events()]
        assert entries == [
            ("removed", second.digest, "ann"),
            ("applied", second.digest, "bob"),
            ("applied", first.digest, "ann"),
        ]
        assert await store.policy_book(first.digest) == first
        assert await store.policy_book("none") is None
        assert {one.digest for one in await store.policy_books()} == {first.digest, second.digest}

    async def test_rules_that_cannot_be_read_leave_those_before(self, store: Store) -> None:
        before = await store.apply_policy(DENIES, actor="ann")

        with pytest.raises(BadPolicy):
            await store.apply_policy("version = ", actor="ann")

        assert await store.policy() == before
        assert len(await store.policy_events()) == 1

    async def test_every_birth_is_judged_by_the_rules_that_are_applied_then(
        self, store: Store
    ) -> None:
        free = await submit_judged(store, new_job(task="bad"))
        assert free.job.state is State.QUEUED
        for book in (DENIES, ASKS_TWO, DENIES):
            applied = await store.apply_policy(book, actor="ann")
            assert applied is not None
            for task in ("bad", "deploy", "good"):
                job = (await submit_judged(store, new_job(task=task))).job
                [first] = await store.events(job.id)
                assert first.facts.rules == applied.digest
                held = (task, book) in {("bad", DENIES), ("deploy", ASKS_TWO)}
                assert (job.state is State.PENDING) is held is bool(job.held_by)
        await store.apply_policy(None, actor="ann")

    async def test_what_was_asked_for_is_limited_before_it_is_written(self, store: Store) -> None:
        await store.apply_policy(LIMITS, actor="ann")

        job = (await submit_judged(store, new_job())).job

        [first] = await store.events(job.id)
        assert (first.facts.rule, first.facts.asked) == ("short", {"timeout_seconds": 3600.0})
        assert job.policy.timeout == 30_000_000
        assert (await store.get([job.id]))[0] == job

    async def test_a_job_that_comes_with_a_change_is_judged_too(self, store: Store) -> None:
        parent = await submit_one(store)
        await store.apply_policy(DENIES, actor="ann")
        child = new_job(task="bad", parent_id=parent.id, link_kind=Link.CHILD)
        other = new_job(task="bad", parent_id=parent.id, link_kind=Link.CHILD)
        hold = decided(parent, c.Hold(actor=CONTROL, hold="a"))

        [outcome] = await store.commit([with_submits(hold, child)])
        assert isinstance(outcome, Committed)
        unhold = decided(outcome.job, c.Unhold(actor=CONTROL, hold="a"))
        locked = await store.commit_locked(parent.id, lambda *_: [with_submits(unhold, other)])
        assert isinstance(locked, Committed)

        for new in (child, other):
            assert await store.held("denied:no", after=None)
            [job] = await store.get([new.record.id])
            assert job is not None
            assert (job.state, job.held_by) == (State.PENDING, ("denied:no",))

    async def test_a_known_key_leads_to_its_job_whatever_the_rules_are_now(
        self, store: Store
    ) -> None:
        first = await submit_judged(store, new_job(task="bad", dedupe_key="k"))
        await store.apply_policy(DENIES, actor="ann")

        again = await submit_judged(store, new_job(task="bad", dedupe_key="k"))

        assert (again.created, again.job) == (False, first.job)

    async def test_what_no_rules_have_judged_is_not_admitted(self, store: Store) -> None:
        before = await job_in(store, State.PENDING)
        applied = await store.apply_policy(DENIES, actor="ann")
        assert applied is not None

        [refused] = await store.commit([decided(before, c.Admit(actor=SCHEDULER))])
        assert isinstance(refused, Rejected)
        assert refused.code == "policy_changed"
        admitted = await do(store, before, c.Admit(actor=SCHEDULER, rules=applied.digest))

        assert admitted.state is State.QUEUED

    async def test_one_admission_that_is_refused_stops_no_other(self, store: Store) -> None:
        first, second = [await job_in(store, State.PENDING) for _ in range(2)]
        applied = await store.apply_policy(DENIES, actor="ann")
        assert applied is not None

        outcomes = await store.commit(
            [
                decided(first, c.Admit(actor=SCHEDULER)),
                decided(second, c.Admit(actor=SCHEDULER, rules=applied.digest)),
            ]
        )

        assert [type(one) for one in outcomes] == [Rejected, Committed]

    async def test_the_last_approval_and_the_admission_are_one_commit(self, store: Store) -> None:
        await store.apply_policy(ASKS_TWO, actor="ann")
        job = (await submit_judged(store, new_job(task="deploy"))).job
        top, last = sorted(job.held_by, reverse=True)
        job = await do(store, job, c.Approve(actor=CONTROL, hold=top))
        approval = decided(job, c.Approve(actor=CONTROL, hold=last))
        admission = c.Admit(actor=SCHEDULER)

        outcomes = await store.commit([approval, decided(approval.next, admission)])

        assert all(isinstance(one, Committed) for one in outcomes), outcomes
        [after] = await store.get([job.id])
        assert after is not None
        assert (after.state, after.held_by, after.rev) == (State.QUEUED, (), job.rev + 2)

    async def test_the_names_of_holds_are_listed_once_each_in_order(self, store: Store) -> None:
        for holds in (("a:2",), ("a:1", "b:1"), ("a:1",), ("a",), ("a:3", "ab")):
            await submit_one(store, holds=holds)
        await job_in(store, State.PENDING)

        assert await store.hold_names("a:") == ["a:1", "a:2", "a:3"]
        assert await store.hold_names("a:", after="a:1", limit=1) == ["a:2"]
        assert await store.hold_names("a:", after="a:3") == await store.hold_names("c") == []


def decided(record: Draft, command: c.Command) -> Change:
    """Return the change that a command makes."""
    decision = decide(record, command)
    assert isinstance(decision, Change), decision
    return decision


def with_submits(change: Change, *jobs: NewJob) -> Change:
    """Return a change that brings these jobs."""
    return Change(
        record=change.record,
        event=change.event,
        next=change.next,
        fenced=change.fenced,
        submits=jobs,
    )
