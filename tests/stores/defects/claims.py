"""Defects of claims: repeats, and which jobs are taken."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Change
from holdfast.lifecycle.states import Priority, State
from holdfast.lifecycle.times import NOW
from holdfast.ports.models import Claimed, ClaimRequest, Committed, Limits, Lost, Outcome
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import CONTROL, fresh
from tests.stores.defects.wrapped import Wrapped


class RepeatsARequestAsANewEvent(Wrapped):
    caught_by = (
        "test_a_change_sent_again_after_a_lost_reply_is_success",
        "test_a_heartbeat_sent_again_after_a_lost_reply_is_success",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        return [
            await self.force(change)
            if isinstance(outcome, Committed) and outcome.repeated
            else outcome
            for change, outcome in zip(changes, outcomes, strict=True)
        ]


class TakesAnyRepeatForTheSame(Wrapped):
    caught_by = (
        "test_a_request_id_with_other_content_is_not_a_repeat",
        "test_a_request_id_of_another_actor_is_not_a_repeat",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        return [
            Committed(outcome.current, repeated=True)
            if isinstance(outcome, Lost) and outcome.current and change.event.request_id
            else outcome
            for change, outcome in zip(changes, outcomes, strict=True)
        ]


class ForgetsClaimRequests(Wrapped):
    caught_by = (
        "test_a_repeated_request_returns_the_same_claim",
        "test_a_repeated_request_whose_jobs_moved_on_is_refused",
    )

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self.inner.claim(replace(request, request_id=fresh("anew")))


class GivesWorkersTasksThatTheyDoNotHave(Wrapped):
    caught_by = (
        "test_a_worker_claims_only_jobs_of_tasks_that_it_has",
        "test_a_job_with_a_version_is_claimed_by_workers_with_that_version",
    )

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self.inner.claim(replace(request, tasks=None))


class TakesAVersionForTheTask(Wrapped):
    caught_by = ("test_a_job_with_a_version_is_claimed_by_workers_with_that_version",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        names = {one.partition("@")[0] for one in request.tasks or ()}
        versions = tuple(f"{name}@{number}" for name in names for number in range(4))
        tasks = None if request.tasks is None else request.tasks + versions
        return await self.inner.claim(replace(request, tasks=tasks))


class TakesLimitsForAdvice(Wrapped):
    caught_by = (
        "test_a_tenant_gets_no_more_queues_than_it_may_have",
        "test_a_tenant_gets_no_more_sets_of_needs_than_it_may_have",
    )

    async def set_limits(self, limits: Limits) -> None:
        self._limits = limits

    async def limits(self) -> Limits:
        return self._limits


class RemembersAnEmptyClaim(Wrapped):
    caught_by = ("test_an_empty_claim_is_not_remembered",)

    def __init__(self, inner: SqliteStore) -> None:
        super().__init__(inner)
        self._empty: set[str] = set()

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        if request.request_id in self._empty:
            return []
        claimed = await self.inner.claim(request)
        if not claimed:
            self._empty.add(request.request_id)
        return claimed


class HandsAClaimToAStranger(Wrapped):
    caught_by = ("test_a_claim_request_of_another_owner_is_refused",)

    def __init__(self, inner: SqliteStore) -> None:
        super().__init__(inner)
        self._owners: dict[str, str] = {}

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        owner = self._owners.setdefault(request.request_id, request.owner)
        return await self.inner.claim(replace(request, owner=owner))


class AnswersAnOldClaimFromMemory(Wrapped):
    caught_by = (
        "test_a_repeated_request_whose_lease_has_passed_is_refused",
        "test_a_repeated_request_returns_what_it_still_holds",
    )

    def __init__(self, inner: SqliteStore) -> None:
        super().__init__(inner)
        self._answers: dict[str, list[Claimed]] = {}

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        if request.request_id in self._answers:
            return self._answers[request.request_id]
        claimed = await self.inner.claim(request)
        if claimed:
            self._answers[request.request_id] = claimed
        return claimed


class ClaimsTwice(Wrapped):
    caught_by = (
        "test_claimers_at_once_never_share_a_job",
        "test_a_claim_takes_no_more_than_its_limit",
    )

    def __init__(self, inner: SqliteStore) -> None:
        super().__init__(inner)
        self._given: list[Claimed] = []

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        claimed = await self.inner.claim(request)
        again = self._given[: request.limit - len(claimed)]
        self._given += claimed
        return claimed + again


class ClaimsBackwards(Wrapped):
    caught_by = ("test_a_claim_lists_its_jobs_in_their_order",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return (await self.inner.claim(request))[::-1]


class ClaimsWithoutRegardToClass(Wrapped):
    caught_by = ("test_classes_go_before_each_other",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        jobs = await self.jobs_in(State.QUEUED)
        await self.raw("UPDATE jobs SET priority = ?", Priority.INTERACTIVE.code)
        claimed = await self.inner.claim(request)
        for job in jobs:
            await self.raw(
                "UPDATE jobs SET priority = ? WHERE id = ?", job.priority.code, job.id.bytes
            )
        return claimed


class ClaimsWithoutAgeing(Wrapped):
    caught_by = ("test_an_old_batch_job_goes_before_a_fresh_critical_one",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        for priority in (Priority.CRITICAL, Priority.INTERACTIVE, Priority.BATCH):
            jobs = await self.jobs_in(State.QUEUED)
            await self.raw("UPDATE jobs SET queue = '' WHERE priority <> ?", priority.code)
            claimed = await self.inner.claim(request)
            for job in jobs:
                await self.raw("UPDATE jobs SET queue = ? WHERE id = ?", job.queue, job.id.bytes)
            if claimed:
                return claimed
        return []


class ClaimsWhatIsHeld(Wrapped):
    caught_by = ("test_a_held_job_is_claimed_only_when_its_last_hold_is_lifted",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        while held := [job for job in await self.jobs_in(State.QUEUED) if job.held_by]:
            await self.do(held[0], c.Unhold(actor=CONTROL, hold=held[0].held_by[0]))
        return await self.inner.claim(request)


class ClaimsBeforeItIsDue(Wrapped):
    caught_by = (
        "test_a_job_is_not_claimed_before_it_is_due",
        "test_a_retry_is_not_claimed_before_it_is_due",
    )

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        for job in await self.jobs_in(State.QUEUED, State.RETRYING):
            await self.do(job, c.Reschedule(actor=CONTROL, run_at=NOW))
        return await self.inner.claim(request)


class ClaimsFromAPausedQueue(Wrapped):
    caught_by = ("test_a_paused_queue_is_left_out_until_it_is_resumed",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        for queue in request.queues:
            await self.inner.resume(queue, actor="nobody")
        return await self.inner.claim(request)


class ClaimsFromAnyQueue(Wrapped):
    caught_by = ("test_only_the_named_queues_are_claimed_from",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        queues = {job.queue for job in await self.jobs_in(State.QUEUED)}
        return await self.inner.claim(replace(request, queues=tuple(sorted(queues))))


class ClaimsWhatAWorkerCannotServe(Wrapped):
    caught_by = ("test_a_worker_claims_only_what_it_can_serve",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        needs = [job.needs for job in await self.jobs_in(State.QUEUED)]
        return await self.inner.claim(replace(request, capabilities=frozenset().union(*needs)))


class ClaimsWithoutLookingForRoom(Wrapped):
    caught_by = ("test_jobs_are_taken_as_long_as_there_is_room", "test_a_limit_counts_what_fits")

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self.inner.claim(replace(request, capacity=None))


class LooksAheadWithoutABound(Wrapped):
    caught_by = ("test_looking_for_what_fits_ends_at_the_bound",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self.inner.claim(replace(request, lookahead=10_000))


def with_room(request: ClaimRequest, **room: int | None) -> ClaimRequest:
    """Return a request that names other room; without a word on room, the same."""
    if request.capacity is None:
        return request
    return replace(request, capacity=replace(request.capacity, **room))


class StarvesLargeJobs(Wrapped):
    """Passes a large job over for as long as there are smaller ones."""

    caught_by = ("test_a_large_job_that_has_waited_long_gets_its_room_before_smaller_ones",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self.inner.claim(with_room(request, total_cpus=None))


class DrainsAtOnce(Wrapped):
    caught_by = ("test_a_large_job_is_passed_over_until_patience_is_over",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self.inner.claim(with_room(request, patience=0))


class DrainsForWhatNeverFits(Wrapped):
    caught_by = ("test_a_job_larger_than_the_host_is_passed_over_however_long_it_waits",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        vast = 2**40
        return await self.inner.claim(with_room(request, total_cpus=vast, total_memory_mb=vast))


class ClaimsMoreThanAsked(Wrapped):
    caught_by = ("test_a_claim_takes_no_more_than_its_limit",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self.inner.claim(replace(request, limit=request.limit + 1))


class ClaimsForAMinute(Wrapped):
    """Grants its own lease instead of the policy's."""

    caught_by = ("test_a_claim_is_the_edge_of_the_law",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        claimed = await self.inner.claim(request)
        for one in claimed:
            for table in ("jobs", "events"):
                await self.raw(
                    f"UPDATE {table} SET lease_expires_at = ? WHERE id = ? AND rev = ?",
                    one.job.updated_at + 60_000_000,
                    one.job.id.bytes,
                    one.job.rev,
                )
        jobs = await self.inner.get([one.job.id for one in claimed])
        return [one.with_record(job) for one, job in zip(claimed, jobs, strict=True) if job]


class ClaimsOfAnyTenant(Wrapped):
    caught_by = (
        "test_a_tenants_worker_claims_past_the_jobs_of_all_others",
        "test_a_tenants_worker_with_little_room_claims_that_tenants_jobs",
    )

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self.inner.claim(replace(request, tenant=None))


DEFECTS: tuple[type[Wrapped], ...] = (
    RepeatsARequestAsANewEvent,
    TakesAnyRepeatForTheSame,
    ForgetsClaimRequests,
    GivesWorkersTasksThatTheyDoNotHave,
    TakesAVersionForTheTask,
    TakesLimitsForAdvice,
    RemembersAnEmptyClaim,
    HandsAClaimToAStranger,
    ClaimsOfAnyTenant,
    StarvesLargeJobs,
    DrainsAtOnce,
    DrainsForWhatNeverFits,
    AnswersAnOldClaimFromMemory,
    ClaimsTwice,
    ClaimsBackwards,
    ClaimsWithoutRegardToClass,
    ClaimsWithoutAgeing,
    ClaimsWhatIsHeld,
    ClaimsBeforeItIsDue,
    ClaimsFromAPausedQueue,
    ClaimsFromAnyQueue,
    ClaimsWhatAWorkerCannotServe,
    ClaimsWithoutLookingForRoom,
    LooksAheadWithoutABound,
    ClaimsMoreThanAsked,
    ClaimsForAMinute,
)
