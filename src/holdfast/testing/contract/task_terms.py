"""Terms of tasks: published for those who submit by name, and corrected on the jobs themselves."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.derive import derive
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.states import Priority, State
from holdfast.lifecycle.terms import TaskTerms
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Committed
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import change, claim_one, do, job_in, passed

ONCE = Policy(idempotent=False, max_attempts=1, timeout=90 * SECOND, lease=45 * SECOND)
BAD: dict[str, Any] = {
    "no name": {"task": ""},
    "a name with a NUL": {"task": "a\0b"},
    "a long name": {"task": "x" * 201},
    "a queue that is too long": {"queue": "x" * 201},
    "a policy without tries": {"policy": Policy(max_attempts=0)},
    "a need with a NUL": {"needs": frozenset({"a\0b"})},
    "more needs than a job may have": {"needs": frozenset(map(str, range(101)))},
}


def terms(task: str = "pay", **more: Any) -> TaskTerms:
    """Make terms of a task."""
    return TaskTerms(**{"task": task, "policy": ONCE, **more})


class TaskTermsContract:
    """What workers publish of their tasks, and what becomes of a job's own terms."""

    async def test_published_terms_are_read_back(self, store: Store) -> None:
        published = terms(
            "Grüße 'pay'", queue="線", priority=Priority.CRITICAL, needs=frozenset({"gpu", "hsm"})
        )
        await store.publish_terms([published, terms("other")])
        assert await store.task_terms("default", [published.task, "none", "other"]) == [
            published,
            None,
            terms("other"),
        ]
        assert await store.task_terms("default", []) == []

    async def test_the_last_publisher_of_a_task_is_believed(self, store: Store) -> None:
        await store.publish_terms([terms(), terms("other")])
        newer = terms(policy=Policy(max_attempts=7))
        await store.publish_terms([newer])
        assert await store.task_terms("default", ["pay", "other"]) == [newer, terms("other")]

    async def test_the_terms_of_a_tenant_go_before_those_for_all(self, store: Store) -> None:
        own = terms(policy=Policy(max_attempts=2))
        await store.publish_terms([own], tenant="mine")
        assert await store.task_terms("theirs", ["pay"]) == [None]
        await store.publish_terms([terms()])
        assert await store.task_terms("mine", ["pay"]) == [own]
        assert await store.task_terms("theirs", ["pay"]) == [terms()]

    async def test_of_very_many_tasks_those_published_longest_ago_are_forgotten(
        self, store: Store
    ) -> None:
        await store.publish_terms([terms("old")])
        await store.publish_terms([terms("old")], tenant="other")
        await passed(store, (await store.clock()).now)
        await store.publish_terms([terms(f"task-{n}") for n in range(10_000)])
        assert await store.task_terms("default", ["old", "task-0", "task-9999"]) == [
            None,
            terms("task-0"),
            terms("task-9999"),
        ]
        assert await store.task_terms("other", ["old"]) == [terms("old")]

    @pytest.mark.parametrize("wrong", BAD)
    async def test_terms_that_no_job_could_have_are_refused_whole(
        self, store: Store, wrong: str
    ) -> None:
        with pytest.raises(BadData):
            await store.publish_terms([terms("good"), terms(**BAD[wrong])])
        assert await store.task_terms("default", ["good"]) == [None]

    async def test_corrected_terms_are_the_jobs_from_then_on(self, store: Store) -> None:
        job = await job_in(store, State.CLAIMED)
        actor, lease = owner_of(job), job.lease_expires_at
        job = await do(store, job, c.CorrectTerms(actor=actor, policy=ONCE, reason="the task's"))
        assert (job.policy, job.lease_expires_at) == (ONCE, lease)
        assert (await store.get([job.id])) == [job]
        events = await store.events(job.id)
        assert events[-1].facts.policy == ONCE
        assert events[-1].reason == "the task's"
        assert derive(events) == job
        job = await do(store, job, c.Start(actor=actor))
        assert job.started_at is not None
        assert job.timeout_at == job.started_at + (ONCE.timeout or 0)

    async def test_the_next_claim_is_made_under_the_corrected_terms(self, store: Store) -> None:
        job = await job_in(store, State.CLAIMED)
        actor = owner_of(job)
        policy = replace(ONCE, idempotent=True, max_attempts=4, start_timeout=7 * SECOND)
        job = await do(store, job, c.CorrectTerms(actor=actor, policy=policy))
        await do(store, job, c.Release(actor=actor))
        again = await claim_one(store, job.queue, owner="worker-2")
        assert again.job == (await store.get([job.id]))[0]
        assert again.job.policy == policy
        assert again.created.policy != policy
        assert again.job.lease_expires_at == again.job.updated_at + policy.lease
        assert again.job.timeout_at == again.job.updated_at + 7 * SECOND

    async def test_terms_corrected_by_a_locked_commit_are_the_jobs_from_then_on(
        self, store: Store
    ) -> None:
        job = await job_in(store, State.CLAIMED)
        correct = c.CorrectTerms(actor=owner_of(job), policy=replace(ONCE, timeout=77 * SECOND))
        outcome = await store.commit_locked(job.id, lambda current, _: [change(current, correct)])
        assert isinstance(outcome, Committed), outcome
        assert outcome.job.policy == correct.policy
        await do(store, outcome.job, c.Release(actor=owner_of(job)))
        again = await claim_one(store, job.queue, owner="worker-2")
        assert again.job.policy == correct.policy
