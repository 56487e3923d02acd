"""Random lives: whatever the law decides can be written, and is read back as it was decided."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Change, Draft, Job, KeptOutput
from holdfast.lifecycle.states import CancelMode, Role
from holdfast.lifecycle.times import After
from holdfast.lifecycle.transitions import TABLE
from holdfast.ports.models import Committed
from holdfast.ports.store import Store
from holdfast.testing.factories import (
    CONTROL,
    HOUR,
    JANITOR,
    RECONCILER,
    SCHEDULER,
    fresh,
    new_job,
    owner_of,
    worker,
)
from holdfast.testing.store_actions import claim_one, stored, submit_one

STEPS = 60
LOG = KeptOutput(digest="ab" * 32, bytes=50_000_000, truncated=True)
POLICIES = (
    Policy(max_attempts=9, timeout=HOUR, start_timeout=HOUR),
    Policy(max_attempts=9, heartbeat=1, timeout=1),
    Policy(max_attempts=2, idempotent=False, letter_on_fail=True, on_silence="time_out"),
)
FOLDS = {kind for row in TABLE if row.folds for kind in row.events}


def owners_commands(job: Draft) -> list[c.Command]:
    """List what an owner may want."""
    actor = owner_of(job)
    child = new_job(parent_id=job.id, queue="children")
    return [
        c.Start(actor=actor, ago=1000),
        c.Heartbeat(actor=actor),
        c.Heartbeat(actor=actor, by_handler=True, reason="still here"),
        c.Step(actor=actor, name="charge", started=True),
        c.Step(actor=actor, name="charge", use=2, body=b'{"paid":1}'),
        c.Step(actor=actor, name="wait", consumes="go"),
        c.Progress(actor=actor, body=b"0.5"),
        c.Progress(actor=actor, unkillable=True),
        c.Wait(actor=actor, signal="go", until=After(1)),
        c.Wait(actor=actor, signal="stop"),
        c.Complete(actor=actor, body=b"[42]", exit_code=0, result_ptr="s3://x", execution_ms=7),
        c.Fail(actor=actor, error_code="boom", body=b'"boom"', submits=(child,)),
        c.Retry(actor=actor, error_code="boom", retry_in=0, exit_code=1),
        c.Release(actor=actor),
        c.Cancel(actor=actor, exit_code=143, log=LOG),
        c.TimeOut(actor=actor, exit_code=137, log=LOG, artifacts=LOG, worker="peer-7"),
        c.DeadLetter(actor=actor, error_code="parse_error", stage="input"),
    ]


def others_commands(job: Draft, now: int, epoch: int) -> list[c.Command]:
    """List what everyone else may want."""
    late = c.LateResult(actor=worker("worker-8"), state="failed", error_code="late", body=b"1")
    return [
        c.Admit(actor=SCHEDULER),
        c.Deny(actor=SCHEDULER, rule="no"),
        c.Hold(actor=CONTROL, hold="operator"),
        c.Unhold(actor=SCHEDULER, hold="operator"),
        c.Reschedule(actor=CONTROL, run_at=After(0)),
        c.Adopt(actor=Actor(Role.HOST, fresh("host")), epoch=epoch),
        c.Resume(actor=RECONCILER, as_of=now),
        c.Adopt(actor=Actor(Role.BUS, job.owner or "nobody"), as_of=now, epoch=epoch),
        c.Lose(actor=RECONCILER, error_code="gone", as_of=now),
        c.Lose(actor=Actor(Role.HOST, fresh("host")), error_code="gone", gone=True),
        c.Stall(actor=RECONCILER, as_of=now, epoch=epoch, jitter=0.5),
        c.Requeue(actor=CONTROL),
        c.RequestCancel(actor=CONTROL),
        c.RequestCancel(actor=CONTROL, mode=CancelMode.HARD),
        c.Cancel(actor=CONTROL),
        c.Cancel(actor=RECONCILER, as_of=now, epoch=epoch, parent_cancelled=True),
        c.TimeOut(actor=RECONCILER, as_of=now),
        c.DeadLetter(
            actor=RECONCILER, error_code="infrastructure_failure", stage="exec", as_of=now
        ),
        c.SignalJob(actor=CONTROL, name="go", body=b'"yes"'),
        late,
        c.Compensated(actor=RECONCILER),
        c.Discarded(actor=CONTROL),
        c.Clean(actor=JANITOR),
        c.Cleaned(actor=JANITOR),
    ]


class WholeLifeContract:
    """Any history that the law allows."""

    @pytest.mark.req("B3", "B4", "B24", "C8", "E1", "E2", "E6")
    async def test_whatever_the_law_decides_is_written_as_it_was_decided(
        self, store: Store
    ) -> None:
        chance = Random(2)
        for number in range(12):
            await _live(store, chance, POLICIES[number % 3])


async def _live(store: Store, chance: Random, policy: Policy) -> None:
    """Lead one job through random commands, as long as anything is left to happen."""
    queue = fresh("queue")
    job = await submit_one(store, queue=queue, policy=policy, admitted=chance.random() < 0.7)
    for _ in range(STEPS):
        clock = await store.clock()
        due = job.claimable and (job.run_at or 0) <= clock.now
        if due and chance.random() < 0.7:
            job = (await claim_one(store, queue, request_id=fresh("claim"))).job
            continue
        options = [*owners_commands(job), *others_commands(job, clock.now, clock.epoch)]
        changes = _fold(job, chance, options)
        if changes:
            job = await _written(store, job, changes)
    assert job == await stored(store, job.id)


def _fold(job: Job, chance: Random, options: list[c.Command]) -> list[Change]:
    """Decide a random option, and what may share its commit."""
    first = _any(job, chance, options, lambda change: True)
    if first is None or first.event.type not in FOLDS or not first.fenced:
        return [first] if first else []
    second = _any(
        first.next,
        chance,
        owners_commands(first.next),
        lambda change: change.event.type in FOLDS and change.fenced,
    )
    return [first, second] if second and chance.random() < 0.5 else [first]


def _any(
    record: Draft, chance: Random, options: list[c.Command], fits: Callable[[Change], bool]
) -> Change | None:
    decisions = [decide(record, option) for option in options]
    changes = [one for one in decisions if isinstance(one, Change) and fits(one)]
    # Most options end a job: a life would be short if all were as likely.
    going_on = [one for one in changes if not one.next.terminal]
    pool = going_on if going_on and chance.random() < 0.9 else changes
    return chance.choice(pool) if pool else None


async def _written(store: Store, before: Job, changes: list[Change]) -> Job:
    """Commit a fold; only a lease that has passed may refuse it."""
    outcomes = await store.commit(changes)
    last = outcomes[-1]
    if isinstance(last, Committed):
        assert last.job.rev == before.rev + len(changes)
        assert last.job.state is changes[-1].next.state
        return last.job
    assert changes[0].fenced, (changes[0].event.type, last)
    now = (await store.clock()).now
    assert (before.lease_expires_at or 0) <= now, (changes[0].event.type, last)
    assert await store.get([before.id]) == [before]
    return before
