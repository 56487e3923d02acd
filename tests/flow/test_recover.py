"""What a sweep makes of jobs whose time has run out; leases here last a microsecond."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.flow.command import perform
from holdfast.flow.recover import Swept, sweep
from holdfast.ids import mint_request
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import RELEASES_FREE, Policy
from holdfast.lifecycle.record import Actor, Job, JobId
from holdfast.lifecycle.states import EventType, Kind, Role, State
from holdfast.lifecycle.times import After
from holdfast.ports.models import ClaimRequest, Due
from holdfast.ports.store import Store
from holdfast.testing.store_actions import passed
from tests.flow.test_command import PEOPLE, claimed, submitted

SWEEPER = Actor(Role.RECONCILER, "r")
LOST_RUN = Policy(heartbeat=1)
LAST_TRY = Policy(heartbeat=1, max_attempts=1)


async def swept(store: Store, **more: Any) -> Swept:
    """Sweep once."""
    return await sweep(store, SWEEPER, jitter=lambda: 0.0, **more)


async def read(store: Store, id_: JobId) -> Job:
    """Read a job that is there."""
    job = (await store.get([id_]))[0]
    assert job is not None
    return job


async def lost_run(store: Store, policy: Policy = LOST_RUN, **more: Any) -> Job:
    """Have a running job whose owner's lease has passed."""
    await submitted(store, policy=policy, **more)
    job, owner = await claimed(store)
    return await perform(store, job.id, c.Start(actor=owner))


@pytest.mark.req("B9", "C12")
async def test_a_lost_run_is_claimable_again_at_once(store: Store) -> None:
    job = await lost_run(store)
    report = await swept(store)
    assert report.written == {EventType.STALLED: 1}
    assert (report.moved, report.expired) == ({(job.task, job.queue, EventType.STALLED): 1}, 1)
    again, _ = await claimed(store, "another")
    assert (again.id, again.attempt, again.failures) == (job.id, 2, 1)


async def test_the_second_loss_waits_for_its_backoff(store: Store) -> None:
    job = await lost_run(store)
    await swept(store)
    again, owner = await claimed(store, "another")
    await perform(store, again.id, c.Start(actor=owner))
    await swept(store)
    stalled = await read(store, job.id)
    assert stalled.failures == 2
    assert (stalled.run_at or 0) - stalled.updated_at == job.policy.backoff_first


@pytest.mark.req("B9")
async def test_a_lost_run_without_a_try_left_is_a_dead_letter(store: Store) -> None:
    job = await lost_run(store, LAST_TRY)
    await swept(store)
    dead = await read(store, job.id)
    assert (dead.state, dead.error_code) == (State.DEAD_LETTERED, "exhausted_retries")
    last = (await store.events(job.id))[-1]
    assert (last.facts.last_owner, last.facts.stage) == ("w", "exec")
    assert last.lease_expires_at == job.lease_expires_at


async def test_a_lost_run_that_must_not_be_repeated_is_a_dead_letter(store: Store) -> None:
    job = await lost_run(store, Policy(heartbeat=1, idempotent=False))
    await swept(store)
    assert (await read(store, job.id)).error_code == "infrastructure_failure"


async def test_a_claim_lost_before_its_start_by_a_job_that_awaits_it_costs_no_try(
    store: Store,
) -> None:
    await submitted(store, policy=Policy(lease=1, idempotent=False, max_attempts=1))
    job, _ = await claimed(store)
    await swept(store)
    stalled = await read(store, job.id)
    assert (stalled.state, stalled.failures, stalled.releases) == (State.STALLED, 0, 1)


async def test_losing_a_claim_too_often_costs_tries_and_ends(store: Store) -> None:
    policy = Policy(lease=1, idempotent=False, max_attempts=1)
    first = await submitted(store, policy=policy)
    for _ in range(RELEASES_FREE + 1):
        await claimed(store)
        await swept(store)
    assert (await read(store, first.id)).state is State.DEAD_LETTERED


async def test_a_bus_job_whose_bus_does_not_come_back_times_out(store: Store) -> None:
    job = await lost_run(store, Policy(heartbeat=1, on_silence="time_out", host_recovery=0))
    await swept(store)
    assert (await read(store, job.id)).state is State.TIMED_OUT


@pytest.mark.req("D14")
@pytest.mark.parametrize("on_silence", ["lose", "time_out"])
async def test_what_silence_would_end_is_left_to_its_host_or_bus_first(
    store: Store, on_silence: str
) -> None:
    job = await lost_run(store, Policy(heartbeat=1, on_silence=on_silence))
    assert (await swept(store)).written == {}
    assert (await read(store, job.id)).state is State.RUNNING


async def test_a_bus_that_was_away_longer_than_a_lease_takes_its_job_back_and_ends_it(
    store: Store,
) -> None:
    policy = Policy(heartbeat=1, on_silence="time_out", max_attempts=1, idempotent=False)
    job = await lost_run(store, policy, kind=Kind.BUS)
    await swept(store)
    bus = Actor(Role.BUS, job.owner or "")
    now = await passed(store, job.lease_expires_at)
    taken = await perform(store, job.id, c.Adopt(actor=bus, as_of=now))
    assert (taken.owner, taken.attempt) == (job.owner, job.attempt)
    assert (taken.lease_expires_at or 0) > (job.lease_expires_at or 0)


async def test_a_lost_command_fails_when_its_host_does_not_come_back(store: Store) -> None:
    job = await lost_run(store, Policy(heartbeat=1, on_silence="lose", host_recovery=0))
    await swept(store)
    lost = await read(store, job.id)
    assert (lost.state, lost.error_code) == (State.FAILED, "container_lost_on_recovery")


@pytest.mark.req("A17")
async def test_a_claim_that_is_not_started_in_time_is_taken_back_while_its_lease_lives(
    store: Store,
) -> None:
    await submitted(store, policy=Policy(start_timeout=1))
    job, _ = await claimed(store)
    await swept(store)
    assert (await read(store, job.id)).state is State.STALLED


@pytest.mark.req("A17")
async def test_a_claim_never_started_with_no_try_left_times_out(store: Store) -> None:
    await submitted(store, policy=Policy(start_timeout=1, max_attempts=1))
    job, _ = await claimed(store)
    await swept(store)
    late = await read(store, job.id)
    assert (late.state, late.error_code) == (State.TIMED_OUT, "start_timeout")


@pytest.mark.parametrize("held", [False, True], ids=["nobody's", "somebody's"])
async def test_a_job_past_its_deadline_times_out(store: Store, held: bool) -> None:
    job = await submitted(store, deadline_at=After(1))
    if held:
        await claimed(store)
    report = await swept(store)
    assert (await read(store, job.id)).error_code == "deadline"
    assert report.expired == 0, "it lost its time, not its lease"


async def test_a_run_past_its_deadline_is_its_owners_to_kill_for_two_heartbeats(
    store: Store,
) -> None:
    patience = Policy(heartbeat=100_000)
    job = await submitted(store, deadline_at=After(1), policy=patience)
    _, owner = await claimed(store)
    await perform(store, job.id, c.Start(actor=owner))
    await swept(store)
    running = await read(store, job.id)
    assert (running.state, running.deadline_at is not None) == (State.RUNNING, True)
    await passed(store, (running.deadline_at or 0) + patience.running_lease)
    await swept(store)
    assert (await read(store, job.id)).error_code == "deadline"


async def test_a_wait_whose_time_has_come_is_resumed(store: Store) -> None:
    await submitted(store)
    job, owner = await claimed(store)
    await perform(store, job.id, c.Start(actor=owner))
    await perform(store, job.id, c.Wait(actor=owner, signal="go", until=After(1)))
    await swept(store)
    resumed = await read(store, job.id)
    assert resumed.state is State.QUEUED
    assert (await store.events(job.id))[-1].facts.timer


async def test_a_cancelled_job_whose_owner_died_is_cancelled_and_never_runs_again(
    store: Store,
) -> None:
    job = await lost_run(store)
    await perform(store, job.id, c.RequestCancel(actor=PEOPLE))
    await swept(store)
    assert (await read(store, job.id)).state is State.CANCELLED
    assert (await store.events(job.id))[-1].facts.kill == "unconfirmed"
    request = ClaimRequest(request_id=mint_request(), owner="x", queues=("default",), limit=1)
    assert await store.claim(request) == []


async def test_sweeping_again_finds_nothing(store: Store) -> None:
    await lost_run(store)
    await swept(store)
    assert (await swept(store)).found == 0


async def test_two_sweeps_at_once_write_each_ending_once(store: Store) -> None:
    jobs = [await lost_run(store) for _ in range(5)]
    reports = await asyncio.gather(swept(store), swept(store), swept(store))
    assert sum(report.written.get(EventType.STALLED, 0) for report in reports) == len(jobs)


async def test_a_sweep_with_a_stale_view_leaves_a_finished_job_alone(store: Store) -> None:
    job = await lost_run(store, Policy(heartbeat=1))
    due = await store.due()
    stale: Any = StaleView(store, due)
    await swept(store)
    again, owner = await claimed(store, "another")
    renewed = await perform(store, again.id, c.Start(actor=owner))
    assert renewed.rev > due.jobs[0].rev
    report = await sweep(stale, SWEEPER, jitter=lambda: 0.0)
    assert (report.lost, report.written) == (1, {})
    assert (await read(store, job.id)).owner == "another"


class StaleView:
    """A store whose `due` is an old answer."""

    def __init__(self, store: Store, due: Due) -> None:
        """Keep the old answer."""
        self._store, self._due = store, due

    def __getattr__(self, name: str) -> Any:
        """All else is the store's."""
        return getattr(self._store, name)

    async def due(self, *, limit: int = 500) -> Due:
        """Answer as before."""
        return self._due


async def test_one_job_that_cannot_be_judged_does_not_stop_the_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison, sound = await lost_run(store), await lost_run(store)

    def broken(job: Job) -> bool:
        if job.id == poison.id:
            raise RuntimeError("poison")
        return False

    monkeypatch.setattr("holdfast.lifecycle.due._is_over", broken)
    report = await swept(store)
    assert list(report.failed) == [poison.id]
    assert (await read(store, sound.id)).state is State.STALLED


@pytest.mark.parametrize(
    ("policy", "event"),
    [
        (Policy(max_attempts=1), EventType.DEAD_LETTERED),
    ],
)
async def test_a_last_try_of_an_older_epoch_is_swept_at_once(
    store: Store, policy: Policy, event: EventType
) -> None:
    job = await lost_run(store, policy)
    assert (await swept(store)).written == {}

    await store.bump_epoch()

    assert (await swept(store)).written == {event: 1}
    assert (await read(store, job.id)).terminal


async def test_a_sweep_is_bounded(store: Store) -> None:
    for _ in range(4):
        await lost_run(store)
    assert (await swept(store, limit=3)).found == 3
