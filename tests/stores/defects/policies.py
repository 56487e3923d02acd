"""Defects of the door that every birth comes through, and of the names of holds."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.errors import BadPolicy
from holdfast.lifecycle.record import NO_FACTS, Change, NewJob
from holdfast.ports.models import AppliedPolicy, Outcome, PolicyEvent, SubmitOutcome
from tests.stores.defects.wrapped import Wrapped

JUDGED = "test_every_birth_is_judged_by_the_rules_that_are_applied_then"


class LetsBirthsPass(Wrapped):
    """Judges nothing."""

    caught_by = (
        JUDGED,
        "test_what_was_asked_for_is_limited_before_it_is_written",
    )

    async def submit(
        self, jobs: Sequence[NewJob], *, await_keys: bool = True
    ) -> list[SubmitOutcome]:
        applied = await self.inner.policy()
        if applied is not None:
            await self.raw("DELETE FROM meta WHERE key = 'policy'")
        outcomes = await self.inner.submit(jobs, await_keys=await_keys)
        if applied is not None:
            await self.raw("INSERT INTO meta VALUES ('policy', ?)", applied.digest)
        return outcomes


class LetsBirthsOfChangesPass(Wrapped):
    """Judges only what is submitted by itself."""

    caught_by = ("test_a_job_that_comes_with_a_change_is_judged_too",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        applied = await self.inner.policy()
        if applied is None or not any(change.submits for change in changes):
            return await self.inner.commit(changes)
        await self.raw("DELETE FROM meta WHERE key = 'policy'")
        outcomes = await self.inner.commit(changes)
        await self.raw("INSERT INTO meta VALUES ('policy', ?)", applied.digest)
        return outcomes


class AdmitsTheUnjudged(Wrapped):
    """Has no guard."""

    caught_by = (
        "test_what_no_rules_have_judged_is_not_admitted",
        "test_one_admission_that_is_refused_stops_no_other",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        await self.raw("SELECT 1")
        return await self.inner.commit(changes)


class AppliesWhatItCannotRead(Wrapped):
    """Removes the rules where the new ones are bad."""

    caught_by = ("test_rules_that_cannot_be_read_leave_those_before",)

    async def apply_policy(
        self, body: str | None, *, actor: str, reason: str | None = None
    ) -> AppliedPolicy | None:
        try:
            return await self.inner.apply_policy(body, actor=actor, reason=reason)
        except BadPolicy:
            await self.inner.apply_policy(None, actor=actor)
            raise


class ForgetsWhoApplied(Wrapped):
    """Keeps no ledger of policies but its newest entry."""

    caught_by = ("test_rules_are_applied_replaced_and_removed_with_an_entry_each",)

    async def policy_events(self, *, limit: int = 100) -> list[PolicyEvent]:
        return (await self.inner.policy_events(limit=limit))[:1]


class ListsOtherNames(Wrapped):
    """Lists every name of a hold, whatever it starts with."""

    caught_by = ("test_the_names_of_holds_are_listed_once_each_in_order",)

    async def hold_names(
        self, prefix: str, *, after: str | None = None, limit: int = 100
    ) -> list[str]:
        return await self.inner.hold_names(prefix[:1], after=after, limit=limit)


class JudgesAKnownKeyAgain(Wrapped):
    """Takes a repetition that the rules judge otherwise for another job."""

    caught_by = ("test_a_known_key_leads_to_its_job_whatever_the_rules_are_now",)

    async def submit(
        self, jobs: Sequence[NewJob], *, await_keys: bool = True
    ) -> list[SubmitOutcome]:
        if await self.inner.policy() is not None:
            jobs = [replace(job, keys=()) for job in jobs]
        return await self.inner.submit(jobs, await_keys=await_keys)


class LosesTheVerdict(Wrapped):
    """Holds what the rules hold, and does not say by which."""

    caught_by = (JUDGED,)

    async def events(self, id: object, **which: object) -> object:
        found = await self.inner.events(id, **which)  # type: ignore[arg-type]
        return [replace(event, facts=NO_FACTS) if event.rev == 1 else event for event in found]


DEFECTS: tuple[type[Wrapped], ...] = (
    LetsBirthsPass,
    LetsBirthsOfChangesPass,
    AdmitsTheUnjudged,
    AppliesWhatItCannotRead,
    ForgetsWhoApplied,
    ListsOtherNames,
    JudgesAKnownKeyAgain,
    LosesTheVerdict,
)
