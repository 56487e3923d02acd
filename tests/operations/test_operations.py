"""What can be done with jobs, and that a tenant's are nobody else's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import Raw

from holdfast.errors import (
    BadData,
    HoldfastError,
    NoSuchJob,
    Refused,
    ResultTimeout,
    StaleRevision,
    ValidationError,
)
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import Priority, State
from holdfast.lifecycle.times import SECOND
from holdfast.operations import requests as q
from holdfast.operations.request import Operations, Request
from holdfast.operations.requests import WantedJob
from holdfast.operations.sequences import read_history, wait_for_end, wait_for_outcome
from holdfast.ports.models import Submitted
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do, job_in


async def submitted(operations: Operations, wanted: WantedJob) -> Job:
    """Submit one job."""
    [answer] = await operations.do(q.SubmitJobs(jobs=[wanted]))
    assert isinstance(answer, Submitted), answer
    return answer.job


async def test_a_known_task_brings_its_terms_and_an_unknown_one_is_taken_as_asked(
    mine: Operations,
) -> None:
    known = await submitted(mine, WantedJob(task="resize", args=Raw(b'{"image": "a.png"}')))
    assert (known.queue, known.policy.max_attempts, known.tenant) == ("images", 8, "mine")
    other = await submitted(
        mine, WantedJob(task="other", args=Raw(b'{"a": 1}'), queue="q", priority="batch", retries=2)
    )
    assert (other.queue, other.priority, other.policy.max_attempts) == ("q", Priority.BATCH, 3)


async def test_each_of_many_is_answered_for_itself(mine: Operations) -> None:
    jobs = [
        WantedJob(task="resize", args=Raw(b'{"image": 7}')),
        WantedJob(task="resize", args=Raw(b'{"image": "a.png"}')),
        WantedJob(task="other", args=Raw(b"[1]")),
        WantedJob(task="other", parent="nobody"),
        WantedJob(task="other", tenant="theirs"),
    ]
    answers = await mine.do(q.SubmitJobs(jobs=jobs))
    bad, good, no_object, orphan, foreign = answers
    assert isinstance(bad, ValidationError)
    assert "image" in str(bad)
    assert isinstance(good, Submitted)
    assert isinstance(no_object, ValidationError)
    assert isinstance(orphan, NoSuchJob)
    assert isinstance(foreign, BadData)


async def test_a_job_is_followed_by_its_events_and_its_progress(
    mine: Operations, theirs: Operations, store: Store
) -> None:
    job = await job_in(store, State.RUNNING, tenant="mine")
    assert (await mine.do(q.GetProgress(job=job.id))).at is None
    job = await do(store, job, c.Progress(actor=owner_of(job), body=b'{"done":7}'))
    told = await mine.do(q.GetProgress(job=job.id))
    assert (told.value, told.attempt, told.rev) == ({"done": 7}, 1, 4)

    first = await mine.do(q.AwaitEvents(job=job.id))
    assert [event.rev for event in first] == [1, 2, 3, 4]
    [last] = await mine.do(q.AwaitEvents(job=job.id, after=3))
    assert (last.type, last.payload) == ("job_progressed", {"done": 7})
    assert await mine.do(q.AwaitEvents(job=job.id, after=4, wait_seconds=0.01)) == []
    requests: list[Request[Any]] = [q.GetProgress(job=job.id), q.AwaitEvents(job=job.id)]
    for request in requests:
        with pytest.raises(NoSuchJob):
            await theirs.do(request)


async def test_the_same_request_again_is_the_same_job(mine: Operations) -> None:
    wanted = WantedJob(task="other", request_id="r1")
    first, again = await submitted(mine, wanted), await submitted(mine, wanted)
    assert first.id == again.id


@pytest.mark.req("C3")
async def test_an_outdated_revision_is_refused_and_changes_nothing(mine: Operations) -> None:
    job = await submitted(mine, WantedJob(task="other"))
    with pytest.raises(StaleRevision):
        await mine.do(q.SendSignal(job=job.id, name="go", expected_rev=job.rev + 1))
    with pytest.raises(StaleRevision):
        await mine.do(q.CancelJob(job=job.id, expected_rev=job.rev + 1))
    assert (await mine.do(q.GetJob(job=job.id))).rev == job.rev
    signalled = await mine.do(q.SendSignal(job=job.id, name="go", expected_rev=job.rev))
    ended = await mine.do(q.CancelJob(job=job.id, expected_rev=signalled.rev))
    assert ended.state is State.CANCELLED
    with pytest.raises(StaleRevision):
        await mine.do(q.CancelJob(job=job.id, expected_rev=job.rev))


CHANGES: dict[str, tuple[State, Callable[[JobId, int], Request[Job]]]] = {
    "hold": (State.QUEUED, lambda job, rev: q.HoldJob(job=job, expected_rev=rev)),
    "reschedule": (
        State.RETRYING,
        lambda job, rev: q.RescheduleJob(job=job, delay=0, expected_rev=rev),
    ),
    "resolve": (
        State.QUEUED,
        lambda job, rev: q.ResolveStep(
            job=job, step="s", happened=True, force=True, expected_rev=rev
        ),
    ),
    "redrive": (
        State.DEAD_LETTERED,
        lambda job, rev: q.RedriveLetter(job=job, expected_rev=rev),
    ),
    "discard": (
        State.DEAD_LETTERED,
        lambda job, rev: q.DiscardLetter(job=job, expected_rev=rev),
    ),
}


@pytest.mark.parametrize("word", CHANGES)
@pytest.mark.req("C3")
async def test_a_person_decides_on_the_revision_that_was_read(
    word: str, everybody: Operations, store: Store
) -> None:
    state, change = CHANGES[word]
    job = await job_in(store, state)
    with pytest.raises(StaleRevision):
        await everybody.do(change(job.id, job.rev + 1))
    assert await everybody.do(q.GetJob(job=job.id)) == job
    await everybody.do(change(job.id, job.rev))
    assert (await everybody.do(q.GetJob(job=job.id))).rev == job.rev + 1


async def test_holds_are_put_and_lifted_by_name(mine: Operations) -> None:
    job = await submitted(mine, WantedJob(task="other"))
    await mine.do(q.HoldJob(job=job.id, reason="check the order"))
    held = await mine.do(q.HoldJob(job=job.id, hold="audit"))
    assert sorted(held.held_by) == ["audit", "operator"]
    assert sorted((await mine.do(q.HoldJob(job=job.id, hold="audit"))).held_by) == [
        "audit",
        "operator",
    ]
    assert (await mine.do(q.UnholdJob(job=job.id))).held_by == ("audit",)
    free = await mine.do(q.UnholdJob(job=job.id, hold="audit"))
    assert free.held_by == ()
    assert [event.type for event in await read_history(mine, job.id)][1:] == [
        "job_held",
        "job_held",
        "job_unheld",
        "job_unheld",
    ]


async def test_jobs_are_found_by_their_labels(mine: Operations) -> None:
    red = await submitted(mine, WantedJob(task="other", labels={"colour": "red", "a": "c=d"}))
    await submitted(mine, WantedJob(task="other"))
    assert [job.id for job in (await mine.do(q.ListJobs(label=("colour=red",)))).jobs] == [red.id]
    assert (await mine.do(q.ListJobs(label=("colour=blue",)))).jobs == []


async def test_a_job_is_made_due_at_another_time(mine: Operations) -> None:
    job = await submitted(mine, WantedJob(task="other", delay="1h"))
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    later = await mine.do(q.RescheduleJob(job=job.id, run_at=moment, reason="too early"))
    assert later.run_at == round(moment.timestamp()) * SECOND
    sooner = await mine.do(q.RescheduleJob(job=job.id, delay="0s"))
    assert sooner.run_at is not None
    assert sooner.run_at <= (await mine.do(q.GetClock())).now
    with pytest.raises(BadData, match="either delay or run_at"):
        await mine.do(q.RescheduleJob(job=job.id))


async def test_who_did_it_stands_in_the_history(mine: Operations) -> None:
    job = await submitted(mine, WantedJob(task="other", job_id="mine-1"))
    await mine.do(q.SendSignal(job="mine-1", name="go"))
    await mine.do(q.CancelJob(job="mine-1", reason="enough"))
    assert [event.actor for event in await read_history(mine, job.id)] == [
        "gateway:ann",
        "control:ann",
        "control:ann",
    ]


async def test_a_result_is_told_once_there_is_one(mine: Operations) -> None:
    job = await submitted(mine, WantedJob(task="other"))
    with pytest.raises(ResultTimeout):
        await wait_for_outcome(mine, job.id, 0)
    with pytest.raises(ResultTimeout):
        await wait_for_end(mine, job.id, 0.01)
    await mine.do(q.CancelJob(job=job.id))
    assert (await wait_for_end(mine, job.id, 1)).state is State.CANCELLED
    ending = await wait_for_outcome(mine, job.id)
    assert (ending.job, ending.outcome.state) == (
        await mine.do(q.GetJob(job=job.id)),
        State.CANCELLED,
    )


ON_A_JOB: dict[str, Callable[[Operations, Any], Awaitable[Any]]] = {
    "get": lambda operations, job: operations.do(q.GetJob(job=job)),
    "history": read_history,
    "ended": lambda operations, job: wait_for_end(operations, job, 0.01),
    "outcome": lambda operations, job: wait_for_outcome(operations, job, 0.01),
    "cancel": lambda operations, job: operations.do(q.CancelJob(job=job)),
    "signal": lambda operations, job: operations.do(q.SendSignal(job=job, name="go")),
    "resolve": lambda operations, job: operations.do(
        q.ResolveStep(job=job, step="s", happened=True)
    ),
    "why": lambda operations, job: operations.do(q.ExplainJob(job=job)),
    "lineage": lambda operations, job: operations.do(q.GetLineage(job=job)),
    "letter": lambda operations, job: operations.do(q.GetLetter(job=job)),
    "redrive": lambda operations, job: operations.do(q.RedriveLetter(job=job)),
    "discard": lambda operations, job: operations.do(q.DiscardLetter(job=job)),
}


@pytest.mark.parametrize("word", ON_A_JOB)
async def test_a_job_of_another_tenant_is_not_there(
    word: str, mine: Operations, theirs: Operations
) -> None:
    job = await submitted(mine, WantedJob(task="other", job_id="mine-1"))
    for which in (job.id, str(job.id), "mine-1"):
        with pytest.raises(NoSuchJob) as denied:
            await ON_A_JOB[word](theirs, which)
        assert str(denied.value) == f"no job {which}"
    assert (await mine.do(q.GetJob(job=job.id))).rev == job.rev


@pytest.mark.parametrize("word", ON_A_JOB)
async def test_whoever_acts_for_all_finds_it_by_its_internal_id(
    word: str, mine: Operations, everybody: Operations
) -> None:
    job = await submitted(mine, WantedJob(task="other", job_id="mine-1"))
    try:
        await ON_A_JOB[word](everybody, str(job.id))
    except NoSuchJob:
        pytest.fail("it is there")
    except (Refused, ResultTimeout):
        pass  # found, and not in a state for it


async def test_lists_and_counts_are_of_ones_own_tenant(
    mine: Operations, theirs: Operations, everybody: Operations
) -> None:
    await submitted(mine, WantedJob(task="other", queue="quiet"))
    assert len((await mine.do(q.ListJobs())).jobs) == 1
    assert (await theirs.do(q.ListJobs())).jobs == []
    with pytest.raises(BadData):
        await theirs.do(q.ListJobs(tenant="mine"))
    assert (await theirs.do(q.ListLetters())).letters == []
    assert [one.queue for one in (await mine.do(q.ListQueues())).queues] == ["quiet"]
    assert (await theirs.do(q.ListQueues())).queues == []
    assert len((await everybody.do(q.ListJobs(tenant="mine"))).jobs) == 1
    await everybody.do(q.PauseQueue(queue="quiet", reason="repairs"))
    assert (await theirs.do(q.ListQueues())).queues == []
    [quiet] = (await mine.do(q.ListQueues())).queues
    assert (quiet.paused_by, quiet.reason) == ("control:root", "repairs")
    await everybody.do(q.ResumeQueue(queue="quiet"))
    assert (await mine.do(q.ListQueues())).queues[0].paused_at is None


async def test_bad_names_are_refused_before_anything_is_asked(everybody: Operations) -> None:
    for bad in ("", "a\0b", "x" * 5000):
        with pytest.raises(HoldfastError):
            await everybody.do(q.PauseQueue(queue=bad))
        with pytest.raises(HoldfastError):
            await everybody.do(q.GetJob(job=bad))
