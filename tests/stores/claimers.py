"""What each of the processes in `test_claimers` does: light to import, plain in and out."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast.errors import KeyBusy
from holdfast.ids import mint_id
from holdfast.lifecycle.commands import Complete, Start
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Change, Draft
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Claimed, ClaimRequest, Committed, Submitted
from holdfast.ports.store import Store

GATEWAY = Actor(Role.GATEWAY, "api")
CLAIM_LIMIT = 25
SUBMIT_BATCH = 250
PATIENT = Policy(lease=600 * SECOND)
"""Longer than 64 processes may keep one of them waiting between its claim and its commit."""
EMPTY_CLAIMS = 3
"""Empty claims in a row after which a claimer goes home: others may hold locks for a moment."""


def make_store(engine: str, place: str) -> Store:
    """Make the store under test, importing only that one."""
    if engine == "sqlite":
        from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(place, deadline_seconds=300)
    from holdfast.stores.postgres.store import PostgresStore

    return PostgresStore(place, connections=2, deadline_seconds=300)


async def submit_then_claim(
    engine: str, place: str, owner: str, keys: list[int], jobs: int
) -> dict[str, list[list[Any]]]:
    """Submit what others submit too; once all jobs are there, claim and finish until none is left.

    Tells who holds each key, and of each claimed job its attempt and what became of its end.
    """
    store = make_store(engine, place)
    await store.open()
    submitted = await _submit_all(store, keys)
    await _all_submitted(store, jobs)
    claimed = await _claim_all(store, owner)
    await store.close()
    return {"submitted": submitted, "claimed": claimed}


async def _submit_all(store: Store, keys: list[int]) -> list[list[Any]]:
    answers: list[list[Any]] = []
    for start in range(0, len(keys), SUBMIT_BATCH):
        batch = [_submission(key) for key in keys[start : start + SUBMIT_BATCH]]
        while batch:
            outcomes = await store.submit([submit(one, GATEWAY) for one in batch])
            asked, batch = batch, []
            for one, outcome in zip(asked, outcomes, strict=True):
                if isinstance(outcome, Submitted):
                    answers.append([one.dedupe_key, str(outcome.job.id), outcome.created])
                elif outcome.code == KeyBusy.code:
                    # A transaction held the key for longer than a batch waits: submit it again.
                    batch.append(one)
                else:
                    answers.append([one.dedupe_key, outcome.code, False])
    return answers


async def _all_submitted(store: Store, jobs: int) -> None:
    while sum(count.jobs for count in await store.counts()) < jobs:  # noqa: ASYNC110  other processes
        # Seldom: 64 processes that look all the time leave no processor to those that submit.
        await asyncio.sleep(0.5)


def _submission(key: int) -> Submission:
    return Submission(
        id=mint_id(), task="greet", dedupe_key=f"key-{key}", body=b"%d" % key, policy=PATIENT
    )


async def _claim_all(store: Store, owner: str) -> list[list[Any]]:
    done: list[list[Any]] = []
    empty = 0
    while empty < EMPTY_CLAIMS:
        claimed = await store.claim(_request(owner, len(done), empty))
        empty = 0 if claimed else empty + 1
        done += await _finish(store, owner, claimed)
        if not claimed:
            await asyncio.sleep(0.05)
    return done


def _request(owner: str, done: int, empty: int) -> ClaimRequest:
    request_id = f"{owner}/{done}/{empty}"
    return ClaimRequest(request_id=request_id, owner=owner, queues=("default",), limit=CLAIM_LIMIT)


async def _finish(store: Store, owner: str, claimed: list[Claimed]) -> list[list[Any]]:
    """Start and complete each in one fold."""
    changes = [
        change
        for one in claimed
        for change in _fold(one.job, Actor(Role.OWNER, owner, one.job.attempt))
    ]
    outcomes = await store.commit(changes)
    return [
        [
            str(one.job.id),
            one.job.attempt,
            "finished" if isinstance(outcome, Committed) else repr(outcome),
        ]
        for one, outcome in zip(claimed, outcomes[1::2], strict=True)
    ]


def _fold(job: Draft, owner: Actor) -> list[Change]:
    start = decide(job, Start(actor=owner))
    assert isinstance(start, Change)
    end = decide(start.next, Complete(actor=owner))
    assert isinstance(end, Change)
    return [start, end]
