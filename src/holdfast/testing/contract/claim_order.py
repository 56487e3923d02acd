"""Which jobs a claim takes, and in what order."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import Priority, State
from holdfast.lifecycle.times import SECOND, After
from holdfast.ports.models import Capacity
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, HOUR, MINUTE, new_job, owner_of
from holdfast.testing.store_actions import claim, claim_one, claimed_ids, do, job_in, submit_one

ORDER = {Priority.CRITICAL: 0, Priority.INTERACTIVE: 5 * MINUTE, Priority.BATCH: 30 * MINUTE}
"""How much later a job of a class counts as due."""


async def one_by_one(store: Store, *queues: str) -> list[JobId]:
    """Claim single jobs until there is none: the order in which they would be worked on."""
    order: list[JobId] = []
    while claimed := await claim(store, *queues):
        order.append(claimed[0].job.id)
    return order


class ClaimOrderContract:
    """Order, due time, holds, pauses, needs and room."""

    @pytest.mark.req("A3")
    async def test_classes_go_before_each_other(self, store: Store) -> None:
        now = (await store.clock()).now
        batch, interactive, critical = [
            (await submit_one(store, priority=priority, run_at=now - ago)).id
            for priority, ago in (
                (Priority.BATCH, 30 * SECOND),
                (Priority.INTERACTIVE, 20 * SECOND),
                (Priority.CRITICAL, 10 * SECOND),
            )
        ]

        assert await one_by_one(store) == [critical, interactive, batch]

    async def test_within_a_class_the_one_due_first_goes_first(self, store: Store) -> None:
        now = (await store.clock()).now
        ago = (40, 10, 50, 20, 30)
        jobs = {
            seconds: (await submit_one(store, run_at=now - seconds * SECOND)).id for seconds in ago
        }

        assert await one_by_one(store) == [jobs[seconds] for seconds in sorted(ago, reverse=True)]

    @pytest.mark.req("A3")
    async def test_an_old_batch_job_goes_before_a_fresh_critical_one(self, store: Store) -> None:
        now = (await store.clock()).now
        critical = await submit_one(store, priority=Priority.CRITICAL, run_at=now - SECOND)
        old = await submit_one(store, priority=Priority.BATCH, run_at=now - 24 * HOUR)
        young = await submit_one(store, priority=Priority.BATCH, run_at=now - MINUTE)

        assert await one_by_one(store) == [old.id, critical.id, young.id]

    @pytest.mark.req("A3")
    async def test_one_claim_takes_the_first_of_all_classes_and_queues(self, store: Store) -> None:
        now = (await store.clock()).now
        jobs = [
            (await submit_one(store, queue=queue, priority=priority, run_at=now - ago * SECOND)).id
            for queue, priority, ago in (
                ("b", Priority.BATCH, 9),
                ("a", Priority.INTERACTIVE, 8),
                ("b", Priority.CRITICAL, 5),
                ("a", Priority.CRITICAL, 6),
                ("b", Priority.INTERACTIVE, 7),
            )
        ]
        first = await claimed_ids(store, "a", "b", limit=3)
        rest = await claimed_ids(store, "b", "a", limit=3)

        assert set(first) == {jobs[3], jobs[2], jobs[1]}
        assert set(rest) == {jobs[4], jobs[0]}

    async def test_a_claim_lists_its_jobs_in_their_order(self, store: Store) -> None:
        now = (await store.clock()).now
        jobs = [
            (await submit_one(store, priority=priority, run_at=now - ago * SECOND)).id
            for priority, ago in (
                (Priority.BATCH, 3),
                (Priority.INTERACTIVE, 1),
                (Priority.INTERACTIVE, 2),
                (Priority.CRITICAL, 1),
            )
        ]

        assert await claimed_ids(store) == [jobs[3], jobs[2], jobs[1], jobs[0]]

    async def test_a_job_is_not_claimed_before_it_is_due(self, store: Store) -> None:
        for priority in (Priority.CRITICAL, Priority.INTERACTIVE, Priority.BATCH):
            await submit_one(store, priority=priority, run_at=After(MINUTE))
            await submit_one(store, priority=priority, run_at=After(48 * HOUR))

        assert await claim(store, limit=100) == []

    @pytest.mark.req("C12")
    async def test_a_retry_is_not_claimed_before_it_is_due(self, store: Store) -> None:
        job = await job_in(store, State.RUNNING, queue="work")
        await do(store, job, c.Retry(actor=owner_of(job), error_code="boom", retry_in=HOUR))

        assert await claim(store, "work") == []

    async def test_a_rescheduled_job_is_claimed_at_its_new_time(self, store: Store) -> None:
        later = await submit_one(store)
        sooner = await submit_one(store, run_at=After(HOUR))
        await do(store, later, c.Reschedule(actor=CONTROL, run_at=After(HOUR)))
        await do(store, sooner, c.Reschedule(actor=CONTROL, run_at=After(0)))

        assert await claimed_ids(store) == [sooner.id]

    async def test_a_held_job_is_claimed_only_when_its_last_hold_is_lifted(
        self, store: Store
    ) -> None:
        job = await submit_one(store, holds=("quota",))
        job = await do(store, job, c.Hold(actor=CONTROL, hold="operator"))
        assert await claim(store) == []
        job = await do(store, job, c.Unhold(actor=CONTROL, hold="quota"))
        assert await claim(store) == []
        await do(store, job, c.Unhold(actor=CONTROL, hold="operator"))

        assert await claimed_ids(store) == [job.id]

    async def test_a_paused_queue_is_left_out_until_it_is_resumed(self, store: Store) -> None:
        paused = await submit_one(store, queue="paused")
        other = await submit_one(store, queue="other")
        await store.pause("paused", actor="ann")
        assert await claimed_ids(store, "paused", "other") == [other.id]
        assert await claim(store, "paused") == []
        await store.resume("paused", actor="ann")

        assert await claimed_ids(store, "paused", "other") == [paused.id]

    async def test_only_the_named_queues_are_claimed_from(self, store: Store) -> None:
        jobs = {name: await submit_one(store, queue=name) for name in ("a", "b", "c")}

        assert await claim(store, "d") == []
        assert set(await claimed_ids(store, "a", "c")) == {jobs["a"].id, jobs["c"].id}

    async def test_a_tenants_worker_claims_past_the_jobs_of_all_others(self, store: Store) -> None:
        now = (await store.clock()).now
        jobs = [
            (await submit_one(store, tenant=tenant, queue=queue, run_at=now + number - HOUR)).id
            for number, (tenant, queue) in enumerate(
                [("theirs", "a")] * 30 + [("mine", "a"), ("theirs", "b"), ("mine", "b")] * 2
            )
        ]
        mine = [jobs[30], jobs[32], jobs[33], jobs[35]]

        assert await claimed_ids(store, "a", "b", tenant="nobodys") == []
        assert await claimed_ids(store, "a", tenant="mine", limit=1) == mine[:1]
        assert set(await claimed_ids(store, "a", "b", tenant="mine", limit=2)) == set(mine[1:3])
        assert await claimed_ids(store, "a", "b", tenant="mine") == mine[3:]
        assert len(await claimed_ids(store, "a", "b")) == len(jobs) - len(mine)

    async def test_a_tenants_worker_with_little_room_claims_that_tenants_jobs(
        self, store: Store
    ) -> None:
        now = (await store.clock()).now
        for number in range(30):
            await submit_one(
                store, tenant="theirs", cpus=1, memory_mb=1, run_at=now + number - HOUR
            )
        mine = await submit_one(store, tenant="mine", cpus=1, memory_mb=1, run_at=now - SECOND)
        room = Capacity(cpus=8, memory_mb=8)

        assert await claimed_ids(store, capacity=room, lookahead=5, tenant="mine") == [mine.id]
        assert await claim(store, capacity=room, tenant="mine") == []

    async def test_a_worker_claims_only_what_it_can_serve(self, store: Store) -> None:
        needs = ((), ("gpu",), ("gpu", "ffmpeg"), ("browser",))
        plain, gpu, both, _ = [
            (await submit_one(store, needs=frozenset(names))).id for names in needs
        ]

        able = frozenset({"gpu", "ffmpeg", "printer"})
        assert await claimed_ids(store) == [plain]
        assert await claimed_ids(store, capabilities=frozenset({"gpu"})) == [gpu]
        assert await claimed_ids(store, capabilities=frozenset({"ffmpeg"})) == []
        assert await claimed_ids(store, capabilities=able) == [both]

    async def test_a_worker_gets_nothing_it_cannot_serve_after_full_claims_of_another(
        self, store: Store
    ) -> None:
        gpu = frozenset({"gpu"})
        await store.submit([new_job(needs=gpu) for _ in range(40)])
        plain = await submit_one(store)
        # A store may remember where claims ended; all workers of one store share that.
        for _ in range(8):
            assert len(await claimed_ids(store, limit=2, capabilities=gpu)) == 2

        assert await claimed_ids(store, limit=5, owner="worker-2") == [plain.id]
        for _ in range(8):
            assert len(await claimed_ids(store, limit=2, capabilities=gpu)) == 2
        room = Capacity(cpus=8, memory_mb=8)
        assert await claim(store, limit=5, owner="worker-2", capacity=room) == []

    async def test_a_worker_claims_only_jobs_of_tasks_that_it_has(self, store: Store) -> None:
        old, new, _ = [(await submit_one(store, task=task)).id for task in ("old", "new", "older")]

        assert await claim(store, tasks=()) == []
        assert await claim(store, tasks=("ol", "newer", "z")) == []
        assert await claimed_ids(store, tasks=("old", "never")) == [old]
        assert await claimed_ids(store, tasks=("new", "old")) == [new]
        assert len(await claimed_ids(store)) == 1

    async def test_names_that_no_store_can_hold_are_offered_in_vain(self, store: Store) -> None:
        job = await submit_one(store, task="real", needs=frozenset({"gpu"}))
        odd = ("nul\0", "lone \ud800")

        assert await claim(store, tasks=odd, capabilities=frozenset(odd)) == []
        offered = frozenset({"gpu", *odd})
        assert await claimed_ids(store, tasks=("real", *odd), capabilities=offered) == [job.id]

    async def test_a_job_with_a_version_is_claimed_by_workers_with_that_version(
        self, store: Store
    ) -> None:
        plain, first, second = [
            (await submit_one(store, task="charge", task_version=version)).id
            for version in (None, "1", "2")
        ]

        assert await claim(store, tasks=("charge@3", "charge@11"), limit=0) == []
        assert await claimed_ids(store, tasks=("charge@1",), limit=1) == [plain]
        assert await claimed_ids(store, tasks=("charge",)) == []
        assert await claimed_ids(store, tasks=("charge@3", "other@1")) == []
        assert await claimed_ids(store, tasks=("charge@2",)) == [second]
        assert await claimed_ids(store, tasks=("charge@1", "charge@2")) == [first]

    @pytest.mark.req("A3")
    async def test_many_tasks_are_claimed_in_the_order_of_all(self, store: Store) -> None:
        now = (await store.clock()).now
        classes = (Priority.CRITICAL, Priority.INTERACTIVE, Priority.BATCH)
        jobs = [
            (
                await submit_one(
                    store,
                    task=f"task-{number % 20}",
                    priority=classes[number % 3],
                    run_at=now - number * number % 41 * MINUTE,
                )
            ).id
            for number in range(60)
        ]
        for number in range(20):
            await submit_one(store, task=f"foreign-{number}", run_at=now - HOUR)
        tasks = tuple(f"task-{number}" for number in range(20))
        mixed = await claimed_ids(store, tasks=tasks, limit=25)
        rest: list[JobId] = []
        while claimed := await claimed_ids(store, tasks=tasks, limit=1):
            rest += claimed

        assert set(mixed + rest) == set(jobs)
        found = await store.get(mixed + rest)
        order = [(ORDER[job.priority] + (job.run_at or 0), job.id) for job in found if job]
        assert set(order[:25]) == set(sorted(order)[:25])
        assert order[25:] == sorted(order)[25:]

    async def test_a_worker_of_the_default_tenant_claims_no_others_jobs(self, store: Store) -> None:
        theirs = await submit_one(store, tenant="theirs")
        ours = await submit_one(store)

        assert await claimed_ids(store, tenant="default") == [ours.id]
        assert await claim(store, tenant="default") == []
        assert await claimed_ids(store, tenant="theirs") == [theirs.id]

    async def test_jobs_are_taken_as_long_as_there_is_room(self, store: Store) -> None:
        now = (await store.clock()).now
        sizes = ((2, 100), (4, 100), (1, 900), (1, 100), (1, 1), (None, None))
        jobs = [
            (await submit_one(store, cpus=cpus, memory_mb=memory, run_at=now + number - HOUR)).id
            for number, (cpus, memory) in enumerate(sizes)
        ]
        taken = await claimed_ids(store, capacity=Capacity(cpus=4, memory_mb=500))

        # The second has too many CPUs for what the first left, the third too much memory.
        assert set(taken) == {jobs[0], jobs[3], jobs[4], jobs[5]}

    async def test_a_limit_counts_what_fits(self, store: Store) -> None:
        now = (await store.clock()).now
        sizes = (64, 1, 64, 1, 1)
        jobs = [
            (await submit_one(store, cpus=cpus, memory_mb=1, run_at=now + number - HOUR)).id
            for number, cpus in enumerate(sizes)
        ]
        room = Capacity(cpus=8, memory_mb=500)

        assert set(await claimed_ids(store, capacity=room, limit=2)) == {jobs[1], jobs[3]}

    async def test_looking_for_what_fits_ends_at_the_bound(self, store: Store) -> None:
        now = (await store.clock()).now
        for number in range(30):
            await submit_one(store, cpus=64, memory_mb=1, run_at=now + number - HOUR)
        small = await submit_one(store, cpus=1, memory_mb=1, run_at=now - SECOND)
        room = Capacity(cpus=1, memory_mb=1)

        assert await claim(store, capacity=room, lookahead=10) == []
        assert await claimed_ids(store, capacity=room, limit=1, lookahead=100) == [small.id]

    @pytest.mark.req("D18")
    async def test_a_large_job_that_has_waited_long_gets_its_room_before_smaller_ones(
        self, store: Store
    ) -> None:
        now = (await store.clock()).now
        sizes = ((1, 1), (4, 1), (1, 1), (1, 1))
        first, large, *small = [
            (await submit_one(store, cpus=cpus, memory_mb=memory, run_at=now + number - HOUR)).id
            for number, (cpus, memory) in enumerate(sizes)
        ]
        busy = Capacity(cpus=3, memory_mb=9, total_cpus=4, total_memory_mb=9, patience=SECOND)

        assert await claimed_ids(store, capacity=busy) == [first]
        assert await claim(store, capacity=busy) == [], "the host drains"
        assert await claimed_ids(store, capacity=replace(busy, cpus=4)) == [large]
        assert set(await claimed_ids(store, capacity=busy)) == set(small)

    @pytest.mark.req("D18")
    async def test_a_large_job_is_passed_over_until_patience_is_over(self, store: Store) -> None:
        now = (await store.clock()).now
        await submit_one(store, cpus=1, memory_mb=8, run_at=now - 2 * SECOND)
        small = await submit_one(store, cpus=1, memory_mb=1, run_at=now - SECOND)
        busy = Capacity(cpus=2, memory_mb=4, total_cpus=4, total_memory_mb=8, patience=HOUR)

        assert await claimed_ids(store, capacity=busy) == [small.id]

    @pytest.mark.req("D18")
    async def test_a_job_larger_than_the_host_is_passed_over_however_long_it_waits(
        self, store: Store
    ) -> None:
        now = (await store.clock()).now
        for cpus, memory in ((5, 1), (1, 9)):
            await submit_one(store, cpus=cpus, memory_mb=memory, run_at=now - HOUR)
        small = await submit_one(store, cpus=1, memory_mb=1, run_at=now - SECOND)
        busy = Capacity(cpus=2, memory_mb=4, total_cpus=4, total_memory_mb=8, patience=SECOND)

        assert await claimed_ids(store, capacity=busy) == [small.id]

    async def test_without_a_word_on_room_any_job_is_taken(self, store: Store) -> None:
        job = await submit_one(store, cpus=512, memory_mb=2**30)

        assert (await claim_one(store)).job.id == job.id
