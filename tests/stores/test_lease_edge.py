"""The lease's edge: an owner's write at the very microsecond at which its lease ends is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.ports.models import Committed, DecideLocked, Lost
from holdfast.ports.store import Store
from holdfast.testing.clock import VirtualClock
from holdfast.testing.databases import InMemory, OnPostgres, Place
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import change, claimed_job, commit_one, running_job, stored


@pytest.fixture(params=["sqlite", "postgres"])
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """A database whose clock stands still."""
    clock = VirtualClock()
    place: Place = InMemory(clock)
    if request.param == "postgres":
        place = OnPostgres(str(request.getfixturevalue("postgres_url")), clock)
    await place.prepare()
    yield place
    await place.restore()


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    """An open store there."""
    store = place.make_store()
    await store.open()
    yield store
    await store.close()


Arrange: TypeAlias = Callable[[Store], Awaitable[Job]]


def words(job: Job) -> list[c.Command]:
    """What an owner may say of a claimed or running job."""
    actor = owner_of(job)
    return [c.Heartbeat(actor=actor), c.Start(actor=actor)] if job.started_at is None else [
        c.Heartbeat(actor=actor), c.Progress(actor=actor, body=b"1"), c.Complete(actor=actor),
    ]  # fmt: skip


def deciding(command: c.Command) -> DecideLocked:
    """Decide a command under the lock."""
    return lambda current, _: [change(current, command)]


@pytest.mark.req("B6", "B8")
@pytest.mark.parametrize("arrange", [claimed_job, running_job], ids=["claimed", "running"])
async def test_a_write_at_the_end_of_its_lease_is_refused(
    place: Place, store: Store, arrange: Arrange
) -> None:
    job: Job = await arrange(store)
    assert job.lease_expires_at is not None
    await place.move_clock(job.lease_expires_at)
    for command in words(job):
        assert await commit_one(store, change(job, command)) == Lost(job)
        locked = await store.commit_locked(job.id, deciding(command))
        assert locked == Lost(job)
    assert await stored(store, job.id) == job
    assert job.id in [one.id for one in (await store.due()).jobs], "a sweep may take it"


@pytest.mark.req("B6")
@pytest.mark.parametrize("arrange", [claimed_job, running_job], ids=["claimed", "running"])
async def test_a_write_in_the_last_microsecond_of_its_lease_is_accepted(
    place: Place, store: Store, arrange: Arrange
) -> None:
    job: Job = await arrange(store)
    assert job.lease_expires_at is not None
    await place.move_clock(job.lease_expires_at - 1)
    assert job.id not in [one.id for one in (await store.due()).jobs]
    outcome = await commit_one(store, change(job, c.Heartbeat(actor=owner_of(job))))
    assert isinstance(outcome, Committed)
