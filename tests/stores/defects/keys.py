"""Defects of keys and of what is submitted again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from msgspec.structs import replace

from holdfast.lifecycle.record import Change, JobId, NewJob
from holdfast.lifecycle.states import EventType, KeyKind
from holdfast.ports.models import Outcome, SubmitOutcome, SubmitRefused, Submitted
from holdfast.testing.factories import job_ids
from tests.stores.defects.wrapped import Wrapped


class LooksBeforeItInserts(Wrapped):
    """Two who look at once both find nothing."""

    caught_by = ("test_submits_at_once_with_one_key_make_one_row",)

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        return [await self._submit(job) for job in jobs]

    async def _submit(self, job: NewJob) -> SubmitOutcome:
        for key in job.keys:
            holder = await self.inner.look_up(job.record.tenant, KeyKind.of(key.kind), key.key)
            if holder is not None:
                [found] = await self.inner.get([holder])
                assert found is not None
                return Submitted(found, created=False)
        await asyncio.sleep(0)
        [outcome] = await self.inner.submit([replace(job, keys=())])
        for key in job.keys:
            await self.raw(
                "INSERT OR IGNORE INTO keys (tenant, kind, key, id, digest) VALUES (?, ?, ?, ?, ?)",
                job.record.tenant,
                key.kind,
                key.key,
                job.record.id.bytes,
                key.digest,
            )
        return outcome


class TakesNoKeyItWouldWaitFor(Wrapped):
    """Without waiting for keys it does without them."""

    caught_by = (
        "test_a_submit_that_does_not_await_keys_takes_and_finds_them_all_the_same",
        "test_submits_at_once_that_do_not_await_a_key_refuse_nobody_else",
    )

    async def submit(
        self, jobs: Sequence[NewJob], *, await_keys: bool = True
    ) -> list[SubmitOutcome]:
        if not await_keys:
            jobs = [
                replace(job, keys=(), record=replace(job.record, key_kinds=0, job_id=None))
                for job in jobs
            ]
        return await self.inner.submit(jobs)


class RefusesTheBatchOfABusyKey(Wrapped):
    """A key that somebody else is just taking keeps the whole batch from being written."""

    caught_by = ("test_submits_at_once_that_do_not_await_a_key_refuse_nobody_else",)
    _under_way: ClassVar[set[str]] = set()

    async def submit(
        self, jobs: Sequence[NewJob], *, await_keys: bool = True
    ) -> list[SubmitOutcome]:
        keys = {key.key for job in jobs for key in job.keys}
        if not await_keys and keys & self._under_way:
            return [SubmitRefused(code="key_busy", message="a key is busy") for _ in jobs]
        self._under_way.update(keys)
        try:
            await asyncio.sleep(0)
            return await self.inner.submit(jobs)
        finally:
            self._under_way.difference_update(keys)


class ForgetsToFreeAKey(Wrapped):
    caught_by = ("test_a_live_key_is_free_as_soon_as_its_job_has_ended",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        await self.raw("CREATE TABLE IF NOT EXISTS kept AS SELECT * FROM keys")
        await self.raw("INSERT INTO kept SELECT * FROM keys")
        outcomes = await self.inner.commit(changes)
        await self.raw("INSERT OR IGNORE INTO keys SELECT * FROM kept")
        return outcomes


class FreesAKeyTooEarly(Wrapped):
    caught_by = (
        "test_a_live_key_is_held_until_its_job_ends",
        "test_keys_are_held_while_a_job_is_being_cleaned",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            if change.event.type in (EventType.STARTED, EventType.CLEANING):
                await self.raw("DELETE FROM keys WHERE id = ?", change.id.bytes)
        return outcomes


class UsesAJobIdAgain(Wrapped):
    caught_by = ("test_a_job_id_is_never_used_again",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            if change.event.type is EventType.CLEANED:
                await self.raw("DELETE FROM keys WHERE id = ?", change.id.bytes)
        return outcomes


class SharesKeysBetweenTenants(Wrapped):
    caught_by = ("test_tenants_do_not_share_keys",)

    async def look_up(self, tenant: str, kind: KeyKind, key: str) -> JobId | None:
        return await self.inner.look_up("default", kind, key)


class ComparesNoBodies(Wrapped):
    caught_by = (
        "test_a_known_job_id_with_another_body_is_refused",
        "test_a_request_id_with_another_body_is_refused",
    )

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        outcomes = await self.inner.submit(jobs)
        return [await self._accepted(outcome) for outcome in outcomes]

    async def _accepted(self, outcome: SubmitOutcome) -> SubmitOutcome:
        if isinstance(outcome, Submitted) or outcome.holder is None:
            return outcome
        [job] = await self.inner.get([outcome.holder])
        assert job is not None
        return Submitted(job, created=False)


class TakesKeysOfALosingSubmit(Wrapped):
    caught_by = ("test_a_submit_that_meets_a_holder_takes_none_of_its_other_keys",)

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        outcomes = await self.inner.submit(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if isinstance(outcome, Submitted) and not outcome.created:
                for key in job.keys:
                    await self.raw(
                        "INSERT OR IGNORE INTO keys (tenant, kind, key, id, digest)"
                        " VALUES (?, ?, ?, ?, ?)",
                        job.record.tenant,
                        key.kind,
                        key.key,
                        outcome.job.id.bytes,
                        key.digest,
                    )
        return outcomes


class MakesASecondJobOfAResentOne(Wrapped):
    caught_by = ("test_a_batch_sent_again_after_a_lost_reply_makes_no_second_job",)

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        known = await self.inner.get([job.record.id for job in jobs])
        return await self.inner.submit(
            [
                job if found is None else _renamed(job)
                for job, found in zip(jobs, known, strict=True)
            ]
        )


def _renamed(job: NewJob) -> NewJob:
    id_ = job_ids.mint()
    return NewJob(record=replace(job.record, id=id_), event=replace(job.event, id=id_))


DEFECTS: tuple[type[Wrapped], ...] = (
    LooksBeforeItInserts,
    TakesNoKeyItWouldWaitFor,
    RefusesTheBatchOfABusyKey,
    ForgetsToFreeAKey,
    FreesAKeyTooEarly,
    UsesAJobIdAgain,
    SharesKeysBetweenTenants,
    ComparesNoBodies,
    TakesKeysOfALosingSubmit,
    MakesASecondJobOfAResentOne,
)
