"""What processes do to one SQLite file in the tests: light to import, plain in and out."""

from __future__ import annotations

import time

from holdfast.ids import mint_id, mint_request
from holdfast.lifecycle.commands import Complete, Start
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.record import Actor, Change
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.ports.models import ClaimRequest, Committed
from holdfast.stores.sqlite.store import SqliteStore

GATEWAY = Actor(Role.GATEWAY, "api")


async def submit_one(path: str) -> None:
    """Open a store and submit a job."""
    store = SqliteStore(path)
    await store.open()
    await store.submit([submit(Submission(id=mint_id(), task="greet"), GATEWAY)])
    await store.close()


async def live(path: str, owner: str, rounds: int) -> float:
    """Submit, claim and finish jobs, each by itself; tells the longest wait for an answer."""
    longest = 0.0
    store = SqliteStore(path)
    await store.open()
    for _ in range(rounds):
        began = time.monotonic()
        await store.submit([submit(Submission(id=mint_id(), task="greet"), GATEWAY)])
        await _finish_one(store, owner)
        longest = max(longest, time.monotonic() - began)
    await store.close()
    return longest


async def _finish_one(store: SqliteStore, owner: str) -> None:
    [claimed] = await store.claim(
        ClaimRequest(request_id=mint_request(), owner=owner, queues=("default",), limit=1)
    )
    actor = Actor(Role.OWNER, owner, claimed.job.attempt)
    started = decide(claimed.job, Start(actor=actor))
    assert isinstance(started, Change)
    done = decide(started.next, Complete(actor=actor))
    assert isinstance(done, Change)
    outcomes = await store.commit([started, done])
    assert all(isinstance(outcome, Committed) for outcome in outcomes), outcomes
