"""Defects of published terms, and of terms that were corrected."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.lifecycle.execution_policy import policy_key
from holdfast.lifecycle.record import Change
from holdfast.lifecycle.states import EventType
from holdfast.lifecycle.terms import TaskTerms
from holdfast.ports.models import Claimed, ClaimRequest, Outcome
from tests.stores.defects.wrapped import Wrapped


class KeepsTheSubmittedTerms(Wrapped):
    caught_by = ("test_corrected_terms_are_the_jobs_from_then_on",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            if change.event.type is EventType.TERMS_CORRECTED:
                key = policy_key(change.record.policy)
                await self.raw("UPDATE jobs SET policy = ? WHERE id = ?", key, change.id.bytes)
        return outcomes


class ClaimsUnderTheSubmittedTerms(Wrapped):
    caught_by = ("test_the_next_claim_is_made_under_the_corrected_terms",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return [
            one.with_record(replace(one.job, policy=one.created.policy))
            for one in await self.inner.claim(request)
        ]


class BelievesTheFirstPublisher(Wrapped):
    caught_by = ("test_the_last_publisher_of_a_task_is_believed",)

    async def publish_terms(self, terms: Sequence[TaskTerms], *, tenant: str | None = None) -> None:
        known = await self.inner.task_terms(tenant or "default", [one.task for one in terms])
        new = [one for one, old in zip(terms, known, strict=True) if old is None]
        await self.inner.publish_terms(new, tenant=tenant)


class PublishesATenantsTermsForAll(Wrapped):
    caught_by = ("test_the_terms_of_a_tenant_go_before_those_for_all",)

    async def publish_terms(self, terms: Sequence[TaskTerms], *, tenant: str | None = None) -> None:
        await self.inner.publish_terms(terms)


DEFECTS: tuple[type[Wrapped], ...] = (
    KeepsTheSubmittedTerms,
    ClaimsUnderTheSubmittedTerms,
    BelievesTheFirstPublisher,
    PublishesATenantsTermsForAll,
)
