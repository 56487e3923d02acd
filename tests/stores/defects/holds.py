"""Defects of what is found by a hold, and of what is not admitted."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.lifecycle.record import Change, Job, JobId, NewJob
from holdfast.lifecycle.states import State
from holdfast.ports.models import Outcome, SubmitOutcome
from tests.stores.defects.wrapped import Wrapped


class ForgetsHoldsOfASubmit(Wrapped):
    caught_by = (
        "test_a_hold_finds_the_jobs_that_were_submitted_under_it",
        "test_what_is_not_admitted_is_listed_until_it_is",
    )

    async def submit(
        self, jobs: Sequence[NewJob], *, await_keys: bool = True
    ) -> list[SubmitOutcome]:
        outcomes = await self.inner.submit(jobs, await_keys=await_keys)
        await self.raw("DELETE FROM holds")
        return outcomes


class KeepsAHoldThatWasLifted(Wrapped):
    """Lists a job under every hold that it ever had."""

    caught_by = (
        "test_a_job_is_found_by_each_of_its_holds_until_that_is_lifted",
        "test_a_held_job_that_ends_is_found_no_more",
        "test_what_is_not_admitted_is_listed_until_it_is",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        await self.raw("CREATE TABLE IF NOT EXISTS once_held AS SELECT * FROM holds")
        await self.raw("INSERT INTO once_held SELECT * FROM holds")
        outcomes = await self.inner.commit(changes)
        await self.raw("INSERT OR IGNORE INTO holds SELECT * FROM once_held")
        return outcomes


class TakesOneHoldForAnother(Wrapped):
    """Compares the beginning of a hold's name."""

    caught_by = ("test_a_hold_finds_the_jobs_that_were_submitted_under_it",)

    async def held(self, hold: str, *, after: JobId | None = None, limit: int = 500) -> list[Job]:
        queued = sorted(await self.jobs_in(State.QUEUED), key=lambda job: job.id)
        return [job for job in queued if any(name.startswith(hold) for name in job.held_by)]


class ListsHeldWorkThatIsSetAside(Wrapped):
    caught_by = ("test_what_is_set_aside_is_not_listed_under_its_hold",)

    async def held(self, hold: str, *, after: JobId | None = None, limit: int = 500) -> list[Job]:
        pending = sorted(await self.jobs_in(State.PENDING), key=lambda job: job.id)
        return [job for job in pending if hold in job.held_by][:limit]


class TakesTheHeldForPending(Wrapped):
    caught_by = ("test_what_is_not_admitted_is_listed_until_it_is",)

    async def pending(self, *, after: JobId | None = None, limit: int = 500) -> list[Job]:
        jobs = await self.jobs_in(State.PENDING, State.QUEUED)
        return sorted((job for job in jobs if not job.is_ready(2**62)), key=lambda job: job.id)


DEFECTS: tuple[type[Wrapped], ...] = (
    ForgetsHoldsOfASubmit,
    KeepsAHoldThatWasLifted,
    TakesOneHoldForAnother,
    ListsHeldWorkThatIsSetAside,
    TakesTheHeldForPending,
)
