"""What is due for a sweep, and what an owner holds."""

from __future__ import annotations

import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Job, JobId
from holdfast.lifecycle.states import BOXED, LIVE, TERMINAL, Kind, Role, State
from holdfast.lifecycle.times import After
from holdfast.ports.store import Store
from holdfast.testing.factories import (
    HOUR,
    RECONCILER,
    SHORT_CLAIM,
    SHORT_RUN,
    fresh,
    owner_of,
)
from holdfast.testing.store_actions import (
    WAYS_OUT,
    claim,
    claim_one,
    claimed_job,
    do,
    job_in,
    passed,
    running_job,
    submit_one,
)


async def due(store: Store) -> list[JobId]:
    """List what is due."""
    return [job.id for job in (await store.due()).jobs]


class DueContract:
    """Leases, deadlines, timeouts and waits that are over."""

    async def test_nothing_is_due_before_its_time(self, store: Store) -> None:
        patient = Policy(start_timeout=HOUR, timeout=HOUR)
        for state in LIVE:
            await job_in(store, state, policy=patient, deadline_at=After(HOUR))
        job = await running_job(store)
        await do(store, job, c.Wait(actor=owner_of(job), signal="go", until=After(HOUR)))

        assert await due(store) == []

    @pytest.mark.req("B9")
    async def test_a_passed_lease_is_due(self, store: Store) -> None:
        claimed = await claimed_job(store, policy=SHORT_CLAIM)
        await passed(store, claimed.lease_expires_at)
        answer = await store.due()

        assert answer.jobs == [claimed]
        assert claimed.lease_expires_at is not None
        assert answer.now > claimed.lease_expires_at
        assert answer.epoch == (await store.clock()).epoch

    @pytest.mark.req("B9")
    async def test_a_lease_that_a_start_cut_short_is_due(self, store: Store) -> None:
        running = await running_job(store, policy=SHORT_RUN)
        await passed(store, running.lease_expires_at)

        assert await due(store) == [running.id]

    async def test_a_renewed_lease_is_not_due(self, store: Store) -> None:
        policy = Policy(lease=1, heartbeat=HOUR, max_attempts=5)
        for _ in range(5):
            # The claim's lease is over at once: only an adoption may still write.
            job = await claimed_job(store, policy=policy, owner="worker-1")
            await passed(store, job.lease_expires_at)
            await do(store, job, c.Adopt(actor=_host("worker-2")))

        assert await due(store) == []

    async def test_a_passed_deadline_is_due_in_every_live_state(self, store: Store) -> None:
        jobs = [await job_in(store, state, deadline_at=After(1)) for state in LIVE]
        await passed(store, max(job.deadline_at or 0 for job in jobs))

        assert set(await due(store)) == {job.id for job in jobs}

    async def test_a_start_that_did_not_come_in_time_is_due(self, store: Store) -> None:
        job = await claimed_job(store, policy=Policy(start_timeout=1))
        await passed(store, job.timeout_at)

        assert await due(store) == [job.id]

    async def test_a_run_that_takes_too_long_is_left_to_its_owner_while_that_lives(
        self, store: Store
    ) -> None:
        job = await running_job(store, policy=Policy(timeout=1))
        silent = await running_job(store, policy=Policy(timeout=1, heartbeat=1))
        await passed(store, job.timeout_at)
        await passed(store, silent.lease_expires_at)

        assert await due(store) == [silent.id]

    async def test_a_wait_whose_time_has_come_is_due(self, store: Store) -> None:
        job = await running_job(store)
        job = await do(store, job, c.Wait(actor=owner_of(job), signal="go", until=After(1)))
        await job_in(store, State.WAITING)
        await passed(store, job.run_at)

        assert await due(store) == [job.id]

    async def test_what_has_ended_is_never_due(self, store: Store) -> None:
        hurried = Policy(start_timeout=1, timeout=1, max_attempts=5)
        for state in TERMINAL:
            await job_in(store, state, policy=hurried, deadline_at=After(1))

        assert await due(store) == []

    async def test_what_a_sweep_has_settled_is_due_no_more(self, store: Store) -> None:
        jobs = [await running_job(store, policy=SHORT_RUN) for _ in range(3)]
        await passed(store, jobs[-1].lease_expires_at)
        answer = await store.due()
        assert {job.id for job in answer.jobs} == {job.id for job in jobs}
        for job in answer.jobs:
            await do(store, job, c.Stall(actor=RECONCILER, as_of=answer.now))

        assert await due(store) == []

    async def test_what_is_due_comes_oldest_first_and_bounded(self, store: Store) -> None:
        jobs: list[Job] = []
        for _ in range(5):
            job = await submit_one(store, deadline_at=After(1))
            await passed(store, job.deadline_at)
            jobs.append(job)
        ids = [job.id for job in jobs]

        assert await due(store) == ids
        assert [job.id for job in (await store.due(limit=2)).jobs] == ids[:2]

    async def test_what_is_due_for_different_reasons_comes_oldest_first(self, store: Store) -> None:
        first = await submit_one(store, deadline_at=After(1))
        await passed(store, first.deadline_at)
        second = await claimed_job(store, policy=SHORT_CLAIM)
        await passed(store, second.lease_expires_at)
        third = await submit_one(store, deadline_at=After(1))
        await passed(store, third.deadline_at)
        fourth = await running_job(store, policy=SHORT_RUN)
        await passed(store, fourth.lease_expires_at)
        ids = [first.id, second.id, third.id, fourth.id]

        assert await due(store) == ids
        assert [job.id for job in (await store.due(limit=2)).jobs] == ids[:2]

    async def test_claims_of_an_older_epoch_are_due(self, store: Store) -> None:
        fenced = [await claimed_job(store), await running_job(store)]
        await store.bump_epoch()
        await running_job(store)
        answer = await store.due()

        assert {job.id for job in answer.jobs} == {job.id for job in fenced}
        assert answer.epoch == 2

    @pytest.mark.parametrize("looks", [0, 1], ids=["dead", "alive"])
    async def test_ended_jobs_of_an_older_epoch_do_not_hide_a_held_one(
        self, store: Store, looks: int
    ) -> None:
        for _ in range(5):
            ended = await running_job(store, owner="worker-1")
            await do(store, ended, WAYS_OUT[State.SUCCEEDED](ended))
        for _ in range(looks):
            assert await store.owned("worker-1") == []
        fenced = await running_job(store, owner="worker-2")
        await store.bump_epoch()
        # Each look tidies up two claims of an owner that died before it could do so itself.
        found = [await store.due(limit=2) for _ in range(1 if looks else 3)]

        assert [job.id for job in found[-1].jobs] == [fenced.id]

    async def test_a_stalled_or_retrying_job_that_is_due_to_run_needs_no_sweep(
        self, store: Store
    ) -> None:
        await job_in(store, State.STALLED)
        await job_in(store, State.RETRYING)

        assert await due(store) == []

    async def test_an_owner_sees_what_it_holds(self, store: Store) -> None:
        claimed = await claimed_job(store, owner="worker-1")
        running = await running_job(store, owner="worker-1")
        ended = await running_job(store, owner="worker-1")
        await do(store, ended, WAYS_OUT[State.SUCCEEDED](ended))
        other = await running_job(store, owner="worker-2")

        held = {job.id: job for job in await store.owned("worker-1")}
        assert held == {claimed.id: claimed, running.id: running}
        assert await store.owned("worker-2") == [other]
        assert await store.owned("nobody") == []

    async def test_a_claim_that_its_owner_knows_to_have_ended_hides_no_other(
        self, store: Store
    ) -> None:
        for queue in ("ended", "held"):
            await submit_one(store, queue=queue)
        ended = await claim_one(store, "ended", request_id="claim-1")
        held = await claim_one(store, "held", request_id="claim-2")
        job = await do(store, ended.job, c.Start(actor=owner_of(ended.job)))
        await do(store, job, WAYS_OUT[State.SUCCEEDED](job))

        assert await store.owned("worker-1", older_than=HOUR) == [], "both are too young"
        for _ in range(2):
            assert await store.owned("worker-1", ended={"claim-1": 1, "unknown": 1}) == [held.job]
        assert await store.owned("worker-1") == [held.job]

    async def test_a_claim_of_which_its_owner_knows_some_jobs_is_looked_at(
        self, store: Store
    ) -> None:
        for _ in range(2):
            await submit_one(store, queue="work")
        ended, held = await claim(store, "work", limit=2, request_id="claim-1")
        job = await do(store, ended.job, c.Start(actor=owner_of(ended.job)))
        await do(store, job, WAYS_OUT[State.SUCCEEDED](job))

        for _ in range(2):
            assert await store.owned("worker-1", ended={"claim-1": 1}) == [held.job]

    async def test_what_was_adopted_belongs_to_its_new_owner(self, store: Store) -> None:
        job = await running_job(store, owner="worker-1")
        adopted = await do(store, job, c.Adopt(actor=_host("worker-2")))

        assert await store.owned("worker-1") == []
        assert await store.owned("worker-2") == [adopted]

    async def test_an_owner_holds_a_job_it_claimed_twice_once(self, store: Store) -> None:
        first = await claimed_job(store, queue="work")
        await do(store, first, WAYS_OUT[State.STALLED](first))
        assert await store.owned("worker-1") == []
        second = (await claim_one(store, "work")).job

        assert await store.owned("worker-1") == [second]

    async def test_an_owner_that_held_nothing_sees_what_it_claims_later(self, store: Store) -> None:
        job = await running_job(store, owner="worker-1")
        adopted = await do(store, job, c.Adopt(actor=_host("worker-2")))
        assert await store.owned("worker-1") == []
        back = await do(store, adopted, c.Adopt(actor=_host("worker-1")))
        claimed = await claimed_job(store, owner="worker-1")

        for _ in range(2):
            assert await store.owned("worker-1") == sorted([back, claimed], key=lambda job: job.id)

    @pytest.mark.req("D14", "D16")
    async def test_a_worker_sees_what_the_others_of_its_host_hold(self, store: Store) -> None:
        host = fresh("host")
        dead, mine = f"{host}:1:a", f"{host}:2:b"
        claimed = await claimed_job(store, owner=dead)
        running = await running_job(store, owner=dead, kind=Kind.COMMAND)
        third = await running_job(store, owner=f"{host}:3:c")
        ended = await running_job(store, owner=dead)
        await do(store, ended, WAYS_OUT[State.SUCCEEDED](ended))
        await running_job(store, owner=mine)
        # Not workers of the host: its name alone, others with its prefix or beside it.
        for other in (host, f"{host}2:1:a", f"{host};1", f"{host}-x:1:a", f"x{host}:1:a"):
            await running_job(store, owner=other)

        held = await store.owned_on(host, but=mine)
        assert held == sorted([claimed, running, third], key=lambda job: job.id)
        assert await store.owned_on(host, but=mine, kinds=BOXED) == [running]
        assert await store.owned_on(host, but=mine, limit=2) == held[:2]
        assert await store.owned_on("nowhere", but=mine) == []

    @pytest.mark.req("D16")
    async def test_what_a_worker_adopted_is_its_own_and_no_longer_of_the_others(
        self, store: Store
    ) -> None:
        host = fresh("host")
        dead, mine = f"{host}:1:a", f"{host}:2:b"
        job = await running_job(store, owner=dead)
        adopted = await do(store, job, c.Adopt(actor=_host(mine)))

        assert await store.owned_on(host, but=mine) == []
        assert await store.owned_on(host, but=dead) == [adopted]

    async def test_an_owner_that_was_looked_at_from_its_host_sees_what_it_holds(
        self, store: Store
    ) -> None:
        host = fresh("host")
        job = await running_job(store, owner=f"{host}:1:a")
        for _ in range(2):
            assert await store.owned_on(host, but=f"{host}:2:b") == [job]

        assert await store.owned(f"{host}:1:a") == [job]


def _host(name: str) -> Actor:
    return Actor(Role.HOST, name)
