"""Fencing: what an attempt writes after it lost its lease is refused."""

from __future__ import annotations

import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.states import Role, State
from holdfast.ports.models import Committed
from holdfast.ports.store import Store
from holdfast.testing.factories import (
    CONTROL,
    RECONCILER,
    SHORT_CLAIM,
    SHORT_RUN,
    owner_of,
)
from holdfast.testing.store_actions import (
    WAYS_OUT,
    chain,
    change,
    claim_one,
    claimed_job,
    commit_one,
    do,
    passed,
    refused,
    running_job,
    stored,
)

HOST = Actor(Role.HOST, "worker-2")


def owners_words(job: Job) -> list[c.Command]:
    """List what the owner of a running job may ask for."""
    actor = owner_of(job)
    return [
        c.Heartbeat(actor=actor),
        c.Heartbeat(actor=actor, by_handler=True),
        c.Step(actor=actor, name="charge", body=b"1"),
        c.Progress(actor=actor, body=b"1"),
        *(WAYS_OUT[state](job) for state in WAYS_OUT if state is not State.CANCELLED),
    ]


class FenceContract:
    """Leases, owners and epochs."""

    @pytest.mark.req("B6", "C4")
    async def test_an_expired_lease_refuses_its_owner_though_nothing_changed(
        self, store: Store
    ) -> None:
        job = await running_job(store, policy=SHORT_RUN)
        await passed(store, job.lease_expires_at)

        for command in owners_words(job):
            current = await refused(store, change(job, command))
            assert current.rev == job.rev

    @pytest.mark.req("B6")
    async def test_a_start_after_expiry_is_refused(self, store: Store) -> None:
        job = await claimed_job(store, policy=SHORT_CLAIM)
        await passed(store, job.lease_expires_at)

        await refused(store, change(job, c.Start(actor=owner_of(job))))
        await refused(store, change(job, c.Heartbeat(actor=owner_of(job))))

    @pytest.mark.req("C4")
    async def test_a_live_lease_lets_its_owner_write(self, store: Store) -> None:
        job = await running_job(store)
        for command in owners_words(job)[:4]:
            job = await do(store, job, command)

        assert job.rev == 7

    @pytest.mark.req("B6", "B9")
    async def test_the_sweep_may_take_what_the_expired_owner_may_not_write(
        self, store: Store
    ) -> None:
        job = await running_job(store, policy=SHORT_RUN)
        now = await passed(store, job.lease_expires_at)
        stalled = await do(store, job, c.Stall(actor=RECONCILER, as_of=now))

        assert (stalled.state, stalled.owner) == (State.STALLED, None)
        await refused(store, change(job, c.Complete(actor=owner_of(job))))

    @pytest.mark.req("B2", "B6", "B9", "C4", "C12")
    async def test_an_old_owner_cannot_write_over_the_new_one(self, store: Store) -> None:
        old = await running_job(store, policy=SHORT_RUN, queue="work")
        now = await passed(store, old.lease_expires_at)
        await do(store, old, c.Stall(actor=RECONCILER, as_of=now))
        new = (await claim_one(store, "work", owner="worker-2")).job

        assert (new.owner, new.attempt) == ("worker-2", 2)
        assert await refused(store, change(old, c.Complete(actor=owner_of(old)))) == new
        assert await refused(store, change(old, c.Heartbeat(actor=owner_of(old)))) == new

    @pytest.mark.req("B6")
    async def test_a_worker_name_used_again_does_not_revive_an_old_attempt(
        self, store: Store
    ) -> None:
        old = await claimed_job(store, queue="work", owner="worker-1")
        await do(store, old, c.Release(actor=owner_of(old)))
        new = (await claim_one(store, "work", owner="worker-1")).job

        assert await refused(store, change(old, c.Start(actor=owner_of(old)))) == new

    @pytest.mark.req("B6")
    async def test_a_fold_of_an_expired_owner_leaves_nothing(self, store: Store) -> None:
        job = await claimed_job(store, policy=SHORT_CLAIM)
        await passed(store, job.lease_expires_at)
        actor = owner_of(job)
        await store.commit(chain(job, c.Start(actor=actor), c.Complete(actor=actor)))

        assert await stored(store, job.id) == job
        assert len(await store.events(job.id)) == 2

    async def test_a_renewed_lease_is_counted_from_its_renewal(self, store: Store) -> None:
        claimed = await claimed_job(store)
        renewed = await do(store, claimed, c.Heartbeat(actor=owner_of(claimed)))
        running = await do(store, renewed, c.Start(actor=owner_of(claimed)))
        beaten = await do(store, running, c.Heartbeat(actor=owner_of(claimed)))

        assert renewed.lease_expires_at == renewed.updated_at + claimed.policy.lease
        assert running.lease_expires_at == running.updated_at + claimed.policy.running_lease
        assert beaten.lease_expires_at == beaten.updated_at + claimed.policy.running_lease

    async def test_what_others_do_leaves_the_lease_as_it_is(self, store: Store) -> None:
        job = await running_job(store)
        lease = job.lease_expires_at
        job = await do(store, job, c.SignalJob(actor=CONTROL, name="go"))
        job = await do(store, job, c.RequestCancel(actor=CONTROL))
        job = await do(store, job, c.Step(actor=owner_of(job), name="charge", body=b"1"))

        assert job.lease_expires_at == lease

    async def test_a_host_may_adopt_what_its_dead_process_held(self, store: Store) -> None:
        old = await running_job(store, policy=SHORT_RUN)
        await passed(store, old.lease_expires_at)
        adopted = await do(store, old, c.Adopt(actor=HOST))

        assert (adopted.owner, adopted.attempt) == ("worker-2", old.attempt)
        assert adopted.started_at == old.started_at
        await refused(store, change(old, c.Heartbeat(actor=owner_of(old))))

    async def test_a_bus_takes_back_what_it_held_when_its_lease_has_passed(
        self, store: Store
    ) -> None:
        old = await running_job(store, policy=SHORT_RUN)
        now = await passed(store, old.lease_expires_at)
        await refused(store, change(old, c.Heartbeat(actor=owner_of(old))))
        bus = Actor(Role.BUS, old.owner or "")
        again = await do(store, old, c.Adopt(actor=bus, as_of=now))

        assert (again.owner, again.attempt) == (old.owner, old.attempt)
        assert await store.owned(old.owner or "") == [again]
        await passed(store, again.lease_expires_at)
        assert again in (await store.due()).jobs

    @pytest.mark.req("D14")
    async def test_a_host_loses_what_its_dead_process_held_while_the_lease_lives(
        self, store: Store
    ) -> None:
        for job in (await claimed_job(store), await running_job(store)):
            lost = await do(store, job, c.Lose(actor=HOST, error_code="gone", gone=True))

            assert (lost.state, lost.error_code, lost.owner) == (State.FAILED, "gone", None)
            event = (await store.events(job.id))[-1]
            assert (event.facts.kill, event.facts.last_owner) == ("confirmed", job.owner)
            await refused(store, change(job, c.Heartbeat(actor=owner_of(job))))

    async def test_a_raised_epoch_fences_the_claims_before_it(self, store: Store) -> None:
        job = await running_job(store, queue="work")
        before = (await store.clock()).epoch
        epoch = await store.bump_epoch()
        assert (epoch, (await store.clock()).epoch) == (before + 1, before + 1)

        await refused(store, change(job, c.Heartbeat(actor=owner_of(job))))
        await refused(store, change(job, c.Complete(actor=owner_of(job))))
        now = (await store.clock()).now
        await do(store, job, c.Stall(actor=RECONCILER, as_of=now, epoch=epoch))
        again = (await claim_one(store, "work")).job
        assert (again.epoch, again.attempt) == (epoch, 2)
        start = await commit_one(store, change(again, c.Start(actor=owner_of(again))))
        assert isinstance(start, Committed)

    async def test_a_run_adopted_in_a_new_epoch_goes_on(self, store: Store) -> None:
        job = await running_job(store)
        epoch = await store.bump_epoch()
        adopted = await do(store, job, c.Adopt(actor=HOST, epoch=epoch))

        assert adopted.epoch == epoch
        await do(store, adopted, c.Complete(actor=owner_of(adopted)))
