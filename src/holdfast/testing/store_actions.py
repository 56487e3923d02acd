"""What tests do to a store: lead a job into a state, commit a command, read everything back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.record import Change, Draft, Job, JobId, LoggedEvent
from holdfast.lifecycle.states import BEATS, BOXED, State
from holdfast.ports.models import Claimed, ClaimRequest, Committed, Lost, Outcome, Submitted
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, SCHEDULER, fresh, new_job, owner_of

TRIES = 500
"""How often a store is asked for what must come soon: far longer than any healthy one needs."""


def change(job: Draft, command: c.Command) -> Change:
    """Decide a command that must be a change."""
    decision = decide(job, command)
    assert isinstance(decision, Change), decision
    return decision


def chain(job: Draft, *commands: c.Command) -> list[Change]:
    """Decide commands that follow each other, as one commit would fold them."""
    changes: list[Change] = []
    for command in commands:
        changes.append(change(changes[-1].next if changes else job, command))
    return changes


async def submit_one(store: Store, **fields: Any) -> Job:
    """Submit a job that must be new."""
    [outcome] = await store.submit([new_job(**fields)])
    assert isinstance(outcome, Submitted), outcome
    assert outcome.created
    return outcome.job


async def claim(
    store: Store, *queues: str, limit: int = 1, owner: str = "worker-1", **fields: Any
) -> list[Claimed]:
    """Claim from queues under a request of its own."""
    given: dict[str, Any] = {"request_id": fresh("claim")} | fields
    return await store.claim(
        ClaimRequest(owner=owner, queues=queues or ("default",), limit=limit, **given)
    )


async def claim_one(store: Store, *queues: str, owner: str = "worker-1", **fields: Any) -> Claimed:
    """Claim the one job that must be there."""
    [claimed] = await claim(store, *queues, owner=owner, **fields)
    return claimed


async def claimed_ids(store: Store, *queues: str, limit: int = 100, **fields: Any) -> list[JobId]:
    """Claim, and return the ids of the jobs."""
    return [claimed.job.id for claimed in await claim(store, *queues, limit=limit, **fields)]


async def commit_one(store: Store, change: Change) -> Outcome:
    """Commit a change by itself."""
    [outcome] = await store.commit([change])
    return outcome


async def do(store: Store, job: Job, command: c.Command) -> Job:
    """Commit a command that must be accepted, and return the record it led to."""
    outcome = await commit_one(store, change(job, command))
    assert isinstance(outcome, Committed), outcome
    assert not outcome.repeated
    return outcome.job


async def refused(store: Store, change: Change) -> Job:
    """Commit a change that must miss and leave no trace; return what it met."""
    before = await store.get([change.id])
    log = await store.events(change.id)
    outcome = await commit_one(store, change)
    assert isinstance(outcome, Lost), outcome
    assert await store.get([change.id]) == before
    assert await store.events(change.id) == log
    assert outcome.current is not None
    assert outcome.current == before[0]
    return outcome.current


async def claimed_job(store: Store, *, owner: str = "worker-1", **fields: Any) -> Job:
    """Return a claimed job, in a queue of its own unless one is named."""
    queue = fields.setdefault("queue", fresh("queue"))
    job = await submit_one(store, **fields)
    claimed = (await claim_one(store, queue, owner=owner, capabilities=job.needs)).job
    assert claimed.id == job.id
    return claimed


async def running_job(store: Store, *, owner: str = "worker-1", **fields: Any) -> Job:
    """Return a running job."""
    job = await claimed_job(store, owner=owner, **fields)
    return await do(store, job, c.Start(actor=owner_of(job)))


async def job_in(store: Store, state: State, **fields: Any) -> Job:
    """Lead a job into a state along the shortest ordinary path."""
    queue = fields.pop("queue", fresh("queue"))
    if state in (State.PENDING, State.QUEUED):
        return await submit_one(store, queue=queue, admitted=state is State.QUEUED, **fields)
    if state is State.DENIED:
        job = await submit_one(store, queue=queue, admitted=False, **fields)
        return await do(store, job, c.Deny(actor=SCHEDULER, rule="no", body=b'"no"'))
    if state is State.CLAIMED:
        return await claimed_job(store, queue=queue, **fields)
    job = await running_job(store, queue=queue, **fields)
    if state is State.CANCELLED:
        job = await do(store, job, c.RequestCancel(actor=CONTROL))
    return job if state is State.RUNNING else await do(store, job, WAYS_OUT[state](job))


WAYS_OUT: dict[State, Callable[[Draft], c.Command]] = {
    State.WAITING: lambda job: c.Wait(actor=owner_of(job), signal="go"),
    State.RETRYING: lambda job: c.Retry(actor=owner_of(job), error_code="boom", retry_in=0),
    State.STALLED: lambda job: c.Release(actor=owner_of(job)),
    State.SUCCEEDED: lambda job: c.Complete(
        actor=owner_of(job), body=b'{"answer":42}', exit_code=0 if job.kind in BOXED else None
    ),
    State.FAILED: lambda job: c.Fail(actor=owner_of(job), error_code="boom", body=b'"boom"'),
    State.CANCELLED: lambda job: c.Cancel(actor=owner_of(job)),
    State.TIMED_OUT: lambda job: c.TimeOut(actor=owner_of(job)),
    State.DEAD_LETTERED: lambda job: c.DeadLetter(
        actor=owner_of(job), error_code="exhausted_retries", stage="exec", body=b'"boom"'
    ),
}
"""How the owner of a running job leaves it, by the state that leads to."""


async def passed(store: Store, instant: int | None) -> int:
    """Wait until the store's clock is past an instant that is microseconds away; read the clock."""
    assert instant is not None
    for _ in range(TRIES):
        if (now := (await store.clock()).now) > instant:
            return now
        await asyncio.sleep(0.001)
    raise AssertionError(f"the store's clock does not pass {instant}")


async def stored(store: Store, id: JobId) -> Job:
    """Read a job that must be there."""
    [job] = await store.get([id])
    assert job is not None
    return job


async def all_jobs(store: Store) -> list[Job]:
    """Read every row there is: what counts is rows, not replies."""
    return [entry.row async for batch in store.ledger() for entry in batch if entry.row is not None]


async def read_tail(
    store: Store, *, events: int, cursor: str | None = None, limit: int = 1000
) -> tuple[list[LoggedEvent], list[str]]:
    """Follow the tail until it has brought `events` events; also return the cursor of each read.

    It may be held back for a moment by what else runs on the server.
    """
    read: list[LoggedEvent] = []
    cursors: list[str] = []
    for _ in range(TRIES):
        tail = await store.tail(cursor, limit=limit)
        read += [event for event in tail.events if event.type not in BEATS]
        cursor = tail.cursor
        cursors.append(cursor)
        if len(read) >= events and not tail.events:
            return read, cursors
        if not tail.events:
            await asyncio.sleep(0.01)
    raise AssertionError(f"the tail brought {len(read)} events instead of {events}")
