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
from holdfast.flow.letters import LetterFilter
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.job import Job, JobId
from holdfast.lifecycle.states import Priority, State
from holdfast.lifecycle.times import SECOND
from holdfast.operations import Operations, Wanted
from holdfast.ports import Query, Store, Submitted
from holdfast.testing.acts import do, job_in
from holdfast.testing.factories import owner_of


async def submitted(operations: Operations, wanted: Wanted) -> Job:
    """Submit one job."""
    [answer] = await operations.submit([wanted])
    assert isinstance(answer, Submitted), answer
    return answer.job


async def test_a_known_task_brings_its_terms_and_an_unknown_one_is_taken_as_asked(
    mine: Operations,
) -> None:
    known = await submitted(mine, Wanted(task="resize", args=Raw(b'{"image": "a.png"}')))
    assert (known.queue, known.policy.max_attempts, known.tenant) == ("images", 8, "mine")
    other = await submitted(
        mine, Wanted(task="other", args=Raw(b'{"a": 1}'), queue="q", priority="batch", retries=2)
    )
    assert (other.queue, other.priority, other.policy.max_attempts) == ("q", Priority.BATCH, 3)


async def test_each_of_many_is_answered_for_itself(mine: Operations) -> None:
    answers = await mine.submit(
        [
            Wanted(task="resize", args=Raw(b'{"image": 7}')),
            Wanted(task="resize", args=Raw(b'{"image": "a.png"}')),
            Wanted(task="other", args=Raw(b"[1]")),
            Wanted(task="other", parent="nobody"),
            Wanted(task="other", tenant="theirs"),
        ]
    )
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
    assert await mine.progress(job.id) is None
    job = await do(store, job, c.Progress(actor=owner_of(job), body=b'{"done":7}'))
    told = await mine.progress(job.id)
    assert told is not None
    assert (told.value, told.attempt, told.rev) == ({"done": 7}, 1, 4)

    first = await mine.events_after(job.id)
    assert [event.rev for event in first] == [1, 2, 3, 4]
    [last] = await mine.events_after(job.id, after=3)
    assert (last.type, last.payload) == ("job_progressed", {"done": 7})
    assert await mine.events_after(job.id, after=4, wait_seconds=0.01) == []
    for ask in (theirs.progress, theirs.events_after):
        with pytest.raises(NoSuchJob):
            await ask(job.id)


async def test_the_same_request_again_is_the_same_job(mine: Operations) -> None:
    wanted = Wanted(task="other", request_id="r1")
    first, again = await submitted(mine, wanted), await submitted(mine, wanted)
    assert first.id == again.id


@pytest.mark.req("C3")
async def test_an_outdated_revision_is_refused_and_changes_nothing(mine: Operations) -> None:
    job = await submitted(mine, Wanted(task="other"))
    with pytest.raises(StaleRevision):
        await mine.signal(job.id, "go", expected_rev=job.rev + 1)
    with pytest.raises(StaleRevision):
        await mine.cancel(job.id, expected_rev=job.rev + 1)
    assert (await mine.get(job.id)).rev == job.rev
    signalled = await mine.signal(job.id, "go", expected_rev=job.rev)
    ended = await mine.cancel(job.id, expected_rev=signalled.rev)
    assert ended.state is State.CANCELLED
    with pytest.raises(StaleRevision):
        await mine.cancel(job.id, expected_rev=job.rev)


CHANGES: dict[str, tuple[State, Callable[[Operations, JobId, int], Awaitable[Job]]]] = {
    "hold": (
        State.QUEUED,
        lambda operations, job, rev: operations.hold(job, expected_rev=rev),
    ),
    "reschedule": (
        State.RETRYING,
        lambda operations, job, rev: operations.reschedule(job, delay=0, expected_rev=rev),
    ),
    "resolve": (
        State.QUEUED,
        lambda operations, job, rev: operations.resolve(
            job, "s", happened=True, force=True, expected_rev=rev
        ),
    ),
    "redrive": (
        State.DEAD_LETTERED,
        lambda operations, job, rev: operations.redrive(job, expected_rev=rev),
    ),
    "discard": (
        State.DEAD_LETTERED,
        lambda operations, job, rev: operations.discard(job, expected_rev=rev),
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
        await change(everybody, job.id, job.rev + 1)
    assert await everybody.get(job.id) == job
    await change(everybody, job.id, job.rev)
    assert (await everybody.get(job.id)).rev == job.rev + 1


async def test_holds_are_put_and_lifted_by_name(mine: Operations) -> None:
    job = await submitted(mine, Wanted(task="other"))
    await mine.hold(job.id, reason="check the order")
    held = await mine.hold(job.id, "audit")
    assert sorted(held.held_by) == ["audit", "operator"]
    assert sorted((await mine.hold(job.id, "audit")).held_by) == ["audit", "operator"]
    assert (await mine.unhold(job.id)).held_by == ("audit",)
    free = await mine.unhold(job.id, "audit")
    assert free.held_by == ()
    assert [event.type for event in await mine.history(job.id)][1:] == [
        "job_held",
        "job_held",
        "job_unheld",
        "job_unheld",
    ]


async def test_jobs_are_found_by_their_labels(mine: Operations) -> None:
    red = await submitted(mine, Wanted(task="other", labels={"colour": "red", "a": "c=d"}))
    await submitted(mine, Wanted(task="other"))
    assert [job.id for job in (await mine.find(Query(labels=(("colour", "red"),)))).jobs] == [
        red.id
    ]
    assert (await mine.find(Query(labels=(("colour", "blue"),)))).jobs == []


async def test_a_job_is_made_due_at_another_time(mine: Operations) -> None:
    job = await submitted(mine, Wanted(task="other", delay="1h"))
    moment = datetime(2100, 1, 1, tzinfo=UTC)
    later = await mine.reschedule(job.id, run_at=moment, reason="too early")
    assert later.run_at == round(moment.timestamp()) * SECOND
    sooner = await mine.reschedule(job.id, delay="0s")
    assert sooner.run_at is not None
    assert sooner.run_at <= await mine.now()
    with pytest.raises(BadData, match="either delay or run_at"):
        await mine.reschedule(job.id)


async def test_who_did_it_stands_in_the_history(mine: Operations) -> None:
    job = await submitted(mine, Wanted(task="other", job_id="mine-1"))
    await mine.signal("mine-1", "go")
    await mine.cancel("mine-1", reason="enough")
    assert [event.actor for event in await mine.history(job.id)] == [
        "gateway:ann",
        "control:ann",
        "control:ann",
    ]


async def test_a_result_is_told_once_there_is_one(mine: Operations) -> None:
    job = await submitted(mine, Wanted(task="other"))
    with pytest.raises(ResultTimeout):
        await mine.outcome(job.id, 0)
    with pytest.raises(ResultTimeout):
        await mine.ended(job.id, 0.01)
    await mine.cancel(job.id)
    assert (await mine.ended(job.id, 1)).state is State.CANCELLED
    ending = await mine.outcome(job.id)
    assert (ending.job, ending.outcome.state) == (await mine.get(job.id), State.CANCELLED)


ON_A_JOB: dict[str, Callable[[Operations, Any], Awaitable[Any]]] = {
    "get": lambda operations, job: operations.get(job),
    "history": lambda operations, job: operations.history(job),
    "ended": lambda operations, job: operations.ended(job, 0.01),
    "outcome": lambda operations, job: operations.outcome(job, 0.01),
    "cancel": lambda operations, job: operations.cancel(job),
    "signal": lambda operations, job: operations.signal(job, "go"),
    "resolve": lambda operations, job: operations.resolve(job, "s", happened=True),
    "why": lambda operations, job: operations.why(job),
    "lineage": lambda operations, job: operations.lineage(job),
    "letter": lambda operations, job: operations.letter(job),
    "redrive": lambda operations, job: operations.redrive(job),
    "discard": lambda operations, job: operations.discard(job),
}


@pytest.mark.parametrize("word", ON_A_JOB)
async def test_a_job_of_another_tenant_is_not_there(
    word: str, mine: Operations, theirs: Operations
) -> None:
    job = await submitted(mine, Wanted(task="other", job_id="mine-1"))
    for which in (job.id, str(job.id), "mine-1"):
        with pytest.raises(NoSuchJob) as denied:
            await ON_A_JOB[word](theirs, which)
        assert str(denied.value) == f"no job {which}"
    assert (await mine.get(job.id)).rev == job.rev


@pytest.mark.parametrize("word", ON_A_JOB)
async def test_whoever_acts_for_all_finds_it_by_its_internal_id(
    word: str, mine: Operations, everybody: Operations
) -> None:
    job = await submitted(mine, Wanted(task="other", job_id="mine-1"))
    try:
        await ON_A_JOB[word](everybody, str(job.id))
    except NoSuchJob:
        pytest.fail("it is there")
    except (Refused, ResultTimeout):
        pass  # found, and not in a state for it


async def test_lists_and_counts_are_of_ones_own_tenant(
    mine: Operations, theirs: Operations, everybody: Operations
) -> None:
    await submitted(mine, Wanted(task="other", queue="quiet"))
    assert len((await mine.find(Query())).jobs) == 1
    assert (await theirs.find(Query())).jobs == []
    with pytest.raises(BadData):
        await theirs.find(Query(tenant="mine"))
    assert (await theirs.letters(LetterFilter())).letters == []
    assert [one.queue for one in await mine.queues()] == ["quiet"]
    assert await theirs.queues() == []
    assert len((await everybody.find(Query(tenant="mine"))).jobs) == 1
    await everybody.pause("quiet", reason="repairs")
    assert await theirs.queues() == []
    [quiet] = await mine.queues()
    assert (quiet.paused_by, quiet.reason) == ("control:root", "repairs")
    await everybody.resume("quiet")
    assert (await mine.queues())[0].paused_at is None


async def test_bad_names_are_refused_before_anything_is_asked(everybody: Operations) -> None:
    for bad in ("", "a\0b", "x" * 5000):
        with pytest.raises(HoldfastError):
            await everybody.pause(bad)
        with pytest.raises(HoldfastError):
            await everybody.get(bad)
