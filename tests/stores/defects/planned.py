"""Defects of planned ends: written otherwise than decided, or over what has changed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.plan import PlannedEnd
from holdfast.ports.models import PlannedOutcome
from holdfast.testing.factories import owner_of
from tests.stores.defects.wrapped import Wrapped


class SaysThatEveryPlannedEndIsWritten(Wrapped):
    caught_by = (
        "test_a_planned_end_on_another_revision_is_left_alone",
        "test_a_planned_end_after_its_lease_is_left_alone",
        "test_a_planned_end_of_an_older_epoch_is_left_alone",
        "test_a_planned_end_that_was_written_is_not_written_again",
        "test_a_planned_end_that_misses_spoils_no_other",
    )

    async def commit_planned(self, ends: Sequence[PlannedEnd]) -> PlannedOutcome:
        outcome = await self.inner.commit_planned(ends)
        return PlannedOutcome(outcome.now)


class DatesEveryPlannedStartNow(Wrapped):
    caught_by = (
        "test_a_planned_end_is_written_as_it_would_be_decided",
        "test_ends_of_several_plans_leave_together",
    )

    async def commit_planned(self, ends: Sequence[PlannedEnd]) -> PlannedOutcome:
        return await self.inner.commit_planned([replace(end, ago=0) for end in ends])


class GivesThePlannedEndsOneResult(Wrapped):
    caught_by = ("test_a_planned_end_is_written_as_it_would_be_decided",)

    async def commit_planned(self, ends: Sequence[PlannedEnd]) -> PlannedOutcome:
        first = ends[0]
        alike = [replace(end, body=first.body, digest=first.digest) for end in ends]
        return await self.inner.commit_planned(alike)


class WritesEveryEndByTheFirstPlan(Wrapped):
    caught_by = ("test_ends_of_several_plans_leave_together",)

    async def commit_planned(self, ends: Sequence[PlannedEnd]) -> PlannedOutcome:
        return await self.inner.commit_planned([replace(end, plan=ends[0].plan) for end in ends])


class EndsWhatItLeavesAlone(Wrapped):
    caught_by = (
        "test_a_planned_end_on_another_revision_is_left_alone",
        "test_a_planned_end_that_misses_spoils_no_other",
    )

    async def commit_planned(self, ends: Sequence[PlannedEnd]) -> PlannedOutcome:
        outcome = await self.inner.commit_planned(ends)
        for job in await self.inner.get(list(outcome.missed)):
            if job is not None and job.owned:
                await self.do(job, c.Cancel(actor=owner_of(job)))
        return outcome


DEFECTS: tuple[type[Wrapped], ...] = (
    SaysThatEveryPlannedEndIsWritten,
    DatesEveryPlannedStartNow,
    GivesThePlannedEndsOneResult,
    WritesEveryEndByTheFirstPlan,
    EndsWhatItLeavesAlone,
)
