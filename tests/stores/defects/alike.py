"""Defects of a submit of alike jobs: what they share, what is each one's own, who judges them."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.lifecycle.alike import AlikeJobs
from holdfast.ports.models import Submitted
from tests.stores.defects.wrapped import Wrapped


class MixesUpAlikeBodies(Wrapped):
    caught_by = ("test_alike_jobs_are_as_if_each_was_submitted_by_itself",)

    async def submit_alike(self, jobs: AlikeJobs) -> int | None:
        return await self.inner.submit_alike(
            replace(jobs, bodies=jobs.bodies[::-1], digests=jobs.digests[::-1])
        )


class ForgetsWhatAlikeJobsShare(Wrapped):
    caught_by = ("test_alike_jobs_are_as_if_each_was_submitted_by_itself",)

    async def submit_alike(self, jobs: AlikeJobs) -> int | None:
        first = jobs.first
        event = replace(first.event, correlation_id=None, deadline_at=None)
        record = replace(first.record, deadline_at=None)
        return await self.inner.submit_alike(
            replace(jobs, first=replace(first, event=event, record=record))
        )


class DatesAlikeJobsEarlier(Wrapped):
    caught_by = ("test_plain_alike_jobs_are_due_at_once_in_their_order",)

    async def submit_alike(self, jobs: AlikeJobs) -> int | None:
        at = await self.inner.submit_alike(jobs)
        await self.raw("UPDATE jobs SET run_at = run_at - 1")
        return at


class InsertsSomeOfAlikeJobs(Wrapped):
    caught_by = ("test_alike_jobs_are_inserted_all_or_none",)

    async def submit_alike(self, jobs: AlikeJobs) -> int | None:
        at = None
        for number in range(len(jobs)):
            at = await self.inner.submit_alike(jobs.part(number, number + 1))
        return at


class AcceptsAlikeJobsTwice(Wrapped):
    caught_by = ("test_alike_jobs_sent_again_are_left_to_a_submit_of_each",)

    async def submit_alike(self, jobs: AlikeJobs) -> int | None:
        return await self.inner.submit_alike(jobs) or (await self.inner.clock()).now


class JudgesTheFirstOfAlikeJobs(Wrapped):
    caught_by = (
        "test_alike_jobs_are_left_to_a_policy_that_judges_each",
        "test_alike_jobs_of_one_name_too_many_are_refused_one_by_one",
    )

    async def submit_alike(self, jobs: AlikeJobs) -> int | None:
        at = await self.inner.submit_alike(jobs)
        if at is None:
            outcome = (await self.inner.submit(jobs.expand()))[0]
            at = outcome.job.created_at if isinstance(outcome, Submitted) else 1
        return at


class LeavesAlikeJobsUnsealed(Wrapped):
    caught_by = ("test_alike_jobs_are_sealed_where_others_are",)

    async def submit_alike(self, jobs: AlikeJobs) -> int | None:
        await self.inner.set_sealing(False)
        at = await self.inner.submit_alike(jobs)
        await self.inner.set_sealing(True)
        return at


DEFECTS: tuple[type[Wrapped], ...] = (
    MixesUpAlikeBodies,
    ForgetsWhatAlikeJobsShare,
    DatesAlikeJobsEarlier,
    InsertsSomeOfAlikeJobs,
    AcceptsAlikeJobsTwice,
    JudgesTheFirstOfAlikeJobs,
    LeavesAlikeJobsUnsealed,
)
