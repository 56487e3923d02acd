"""The resource refuses what is old, and the checker can find what it is there to find."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.ports.store import Store
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.tasks.context import FencingToken
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do, running_job
from tests.support import checker
from tests.support.checker import broken_promises
from tests.support.resource import Resource


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """An empty store."""
    store = SqliteStore(":memory:")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def resource(tmp_path: Path) -> Resource:
    """A resource that has seen nothing."""
    return Resource(tmp_path)


async def succeeded(store: Store, body: bytes) -> Job:
    """Have a job that ended with this result in its first attempt."""
    job = await running_job(store)
    return await do(store, job, c.Complete(actor=owner_of(job), body=body))


def token(job: Job, attempt: int = 1) -> FencingToken:
    """The token of an attempt."""
    return FencingToken(job.public_id, 1, attempt)


async def problems(store: Store, resource: Resource, *acknowledged: str) -> str:
    """All that the checker finds, as one text."""
    return "\n".join(await broken_promises(store, resource, acknowledged))


def test_the_resource_takes_the_same_attempt_again_and_no_older_one(resource: Resource) -> None:
    assert resource.write(FencingToken("a", 1, 1), "begin")
    assert resource.write(FencingToken("a", 1, 2), "begin")
    assert not resource.write(FencingToken("a", 1, 1), "end")
    assert resource.write(FencingToken("a", 1, 2), "end")
    assert resource.write(FencingToken("a", 2, 1), "begin"), "a greater epoch wins over any attempt"
    assert not resource.write(FencingToken("a", 1, 9), "end")
    assert [effect.accepted for effect in resource.of("a")] == [
        True,
        True,
        False,
        True,
        True,
        False,
    ]


async def test_a_sound_life_has_no_problem(store: Store, resource: Resource) -> None:
    job = await succeeded(store, b'{"attempt":1}')
    for what in ("begin", "end"):
        resource.write(token(job), what)
    assert await problems(store, resource, job.public_id) == ""


async def test_it_finds_what_was_acknowledged_and_lost(store: Store, resource: Resource) -> None:
    assert "gone: acknowledged and lost" in await problems(store, resource, "gone")


async def test_it_finds_what_did_not_end(store: Store, resource: Resource) -> None:
    await running_job(store)
    assert "is running at the end" in await problems(store, resource)


async def test_it_finds_an_attempt_that_ran_twice(store: Store, resource: Resource) -> None:
    job = await succeeded(store, b'{"attempt":1}')
    for what in ("begin", "begin", "end"):
        resource.write(token(job), what)
    assert "was run 2 times" in await problems(store, resource)


async def test_it_finds_effects_of_attempts_and_jobs_that_nobody_claimed(
    store: Store, resource: Resource
) -> None:
    job = await succeeded(store, b"null")
    resource.write(token(job, 2), "begin")
    resource.write(FencingToken("nobody", 1, 1), "begin")
    found = await problems(store, resource)
    assert "attempt 2 had an effect and was never claimed" in found
    assert "nobody: effects of no job" in found


async def test_it_finds_a_result_whose_effect_the_resource_never_took(
    store: Store, resource: Resource
) -> None:
    job = await succeeded(store, b'{"attempt":2}')
    resource.write(token(job), "begin")
    found = await problems(store, resource)
    assert "succeeded with the result of 2" in found
    assert "the resource never took its effect" in found


async def test_it_finds_writes_by_others_after_the_lease_and_a_second_end(store: Store) -> None:
    job = await succeeded(store, b"null")
    events = await store.events(job.id)
    end = events[-1]
    assert list(checker.event_problems(events)) == []

    def found(*changed: LoggedEvent) -> str:
        return "\n".join(checker.event_problems([*events[:-1], *changed]))

    assert "held by worker-1/1" in found(replace(end, actor="worker-2"))
    assert "after the lease had passed" in found(replace(end, at=end.at + 3600 * 10**6))
    assert "ended 2 times" in found(end, end)
    claim = events[1]
    assert "attempt 3 was handed out after attempt 1" in found(replace(claim, attempt=3))
