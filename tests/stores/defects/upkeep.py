"""Defects of queues and of the ledger's upkeep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.lifecycle.record import Change, Job, JobId
from holdfast.lifecycle.states import Retention, State
from holdfast.ports.models import (
    Aged,
    Claimed,
    ClaimRequest,
    Due,
    Outcome,
    PurgeEntry,
    QueueEvent,
    QueueStatus,
)
from holdfast.ports.store import NO_CLAIMS
from tests.stores.defects.wrapped import Wrapped


class PausesWithoutAnEntry(Wrapped):
    caught_by = ("test_pauses_are_entered_in_the_ledger_of_the_queues",)

    async def queue_events(self, queue: str | None = None) -> list[QueueEvent]:
        return [one for one in await self.inner.queue_events(queue) if one.type != "paused"]


class PausesAgainOnARepeat(Wrapped):
    caught_by = (
        "test_a_pause_sent_again_is_success_and_no_second_entry",
        "test_a_pause_sent_again_after_a_resume_does_not_pause_again",
    )

    async def pause(
        self, queue: str, *, actor: str, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        await self.raw("UPDATE queues SET paused_at = NULL WHERE name = ?", queue)
        return await self.inner.pause(queue, actor=actor, reason=reason)


class ClaimsWhatIsSetAside(Wrapped):
    caught_by = ("test_a_job_that_is_set_aside_is_not_claimed_until_it_is_released",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        await self.raw("UPDATE jobs SET quarantined_at = NULL WHERE state = 2")
        return await self.inner.claim(request)


class SweepsWhatIsSetAside(Wrapped):
    caught_by = ("test_a_job_that_is_set_aside_is_not_due_until_it_is_released",)

    async def due(self, *, limit: int = 500) -> Due:
        aside = (await self.inner.quarantined()).jobs
        jobs = [job for job in await self.inner.get([one.id for one in aside]) if job]
        found = await self.inner.due(limit=limit)
        return replace(found, jobs=[*jobs, *found.jobs])


class ForgetsLeasesThatWereSetAside(Wrapped):
    caught_by = ("test_a_job_that_is_set_aside_is_not_due_until_it_is_released",)

    async def release_quarantined(self, ids: Sequence[JobId]) -> int:
        released = await self.inner.release_quarantined(ids)
        await self.raw("DELETE FROM claims")
        return released


class AsksForWhatIsSetAside(Wrapped):
    caught_by = ("test_an_owner_is_not_asked_to_give_back_what_is_set_aside",)

    async def owned(
        self, owner: str, *, ended: Mapping[str, int] = NO_CLAIMS, older_than: int = 0
    ) -> list[Job]:
        running = await self.jobs_in(State.RUNNING)
        return [job for job in running if job.owner == owner]


class CleansWhatIsSetAside(Wrapped):
    caught_by = ("test_a_job_that_is_set_aside_is_neither_cleaned_nor_purged_until_it_is_released",)

    async def aged(self, **wishes: Any) -> Aged:
        marked = [one.id for one in (await self.inner.quarantined()).jobs]
        await self.inner.release_quarantined(marked)
        found = await self.inner.aged(**wishes)
        await self.inner.quarantine(marked, reason="damaged")
        return found


class KeepsTheLastReason(Wrapped):
    caught_by = ("test_what_is_set_aside_is_listed_by_id_with_its_first_reason",)

    async def quarantine(self, ids: Sequence[JobId], *, reason: str) -> None:
        await self.inner.release_quarantined(ids)
        await self.inner.quarantine(ids, reason=reason)


class PurgesWithoutAnEntry(Wrapped):
    caught_by = ("test_a_purge_is_entered_with_who_why_and_how_many",)

    async def purges(self, *, before: int | None = None, limit: int = 100) -> list[PurgeEntry]:
        return []


class PurgesWhatIsLinked(Wrapped):
    caught_by = ("test_only_what_is_cleaned_and_has_nothing_linked_is_purged",)

    async def purge(self, ids: Sequence[JobId], **wishes: Any) -> list[JobId]:
        for id_ in ids:
            await self.raw("UPDATE jobs SET parent_id = NULL WHERE parent_id = ?", id_.bytes)
        return await self.inner.purge(ids, **wishes)


class PurgesTheNamesOfJobs(Wrapped):
    caught_by = ("test_what_is_left_of_a_purged_job_is_its_id_its_tenant_and_its_names",)

    async def purge(self, ids: Sequence[JobId], **wishes: Any) -> list[JobId]:
        gone = await self.inner.purge(ids, **wishes)
        for id_ in gone:
            await self.raw("DELETE FROM keys WHERE id = ?", id_.bytes)
        return gone


class CountsWhatWasPurged(Wrapped):
    caught_by = ("test_a_purged_job_is_gone_with_its_events_and_is_counted_no_more",)

    async def purge(self, ids: Sequence[JobId], **wishes: Any) -> list[JobId]:
        before = await self.inner.counts()
        gone = await self.inner.purge(ids, **wishes)
        for one in before:
            await self.raw(
                "INSERT OR REPLACE INTO counts VALUES (?, ?, ?, ?)",
                one.tenant,
                one.queue,
                one.state.code,
                one.jobs,
            )
        return gone


class FindsTheAgedThatAreCleaned(Wrapped):
    caught_by = ("test_aged_are_neither_cleaned_nor_needed_by_a_live_job",)

    async def aged(self, *, ended_before: int, **wishes: Any) -> Aged:
        found = await self.inner.aged(ended_before=ended_before, **wishes)
        ended = await self.jobs_in(State.SUCCEEDED)
        over = [job for job in ended if job.retention is Retention.CLEANED]
        return replace(found, jobs=[*over, *found.jobs])


class FindsTheAgedThatAreYoung(Wrapped):
    caught_by = ("test_aged_are_those_that_ended_before_a_time",)

    async def aged(self, *, ended_before: int, **wishes: Any) -> Aged:
        return await self.inner.aged(ended_before=2**60, **wishes)


class LooksAtTheFirstAgedOnly(Wrapped):
    caught_by = ("test_aged_are_found_a_stretch_of_ids_at_a_time",)

    async def aged(self, *, after: JobId | None = None, **wishes: Any) -> Aged:
        return await self.inner.aged(**wishes)


class SeesTheNextOfALineOnly(Wrapped):
    caught_by = ("test_continued_are_jobs_from_which_one_was_made_that_may_still_read_them",)

    async def continued(self, ids: Sequence[JobId]) -> set[JobId]:
        next_ones = await self.jobs_in(State.RUNNING)
        return await self.inner.continued(ids) & {job.parent_id for job in next_ones}


class ForgetsALineThatMayBeRedriven(Wrapped):
    caught_by = ("test_continued_are_jobs_from_which_one_was_made_that_may_be_redriven",)

    async def continued(self, ids: Sequence[JobId]) -> set[JobId]:
        open_ = {job.parent_id for job in await self.jobs_in(State.DEAD_LETTERED)}
        return await self.inner.continued(ids) - open_


class KeepsALineForALiveChild(Wrapped):
    caught_by = ("test_a_live_child_continues_nothing",)

    async def continued(self, ids: Sequence[JobId]) -> set[JobId]:
        live = await self.inner.children(ids, live_only=True)
        return await self.inner.continued(ids) | {job.parent_id for job in live if job.parent_id}


class ErasesTheDigestWithTheBody(Wrapped):
    caught_by = ("test_erased_bodies_leave_their_digests",)

    async def erase_bodies(self, ids: Sequence[JobId]) -> int:
        erased = await self.inner.erase_bodies(ids)
        for id_ in ids:
            await self.raw("UPDATE events SET digest = NULL WHERE id = ?", id_.bytes)
        return erased


class ErasesWhatIsStillNeeded(Wrapped):
    caught_by = ("test_bodies_of_a_job_that_nobody_cleans_are_kept",)

    async def erase_bodies(self, ids: Sequence[JobId]) -> int:
        for id_ in ids:
            await self.raw("UPDATE events SET body = NULL WHERE id = ?", id_.bytes)
        return len(ids)


class DropsTheHeartbeatOfALiveLease(Wrapped):
    caught_by = ("test_heartbeats_that_a_present_lease_rests_on_are_kept",)

    async def drop_beats(self, *, before: int, limit: int = 10_000) -> int:
        await self.raw("DELETE FROM beats WHERE at < ?", before)
        return 0


class CountsNoHeartbeats(Wrapped):
    caught_by = ("test_heartbeats_raise_the_revision_and_are_counted",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        return await self.inner.commit(
            [replace(change, event=replace(change.event, beats=0)) for change in changes]
        )


class SealsNothing(Wrapped):
    caught_by = ("test_events_are_sealed_while_sealing_is_on",)

    async def set_sealing(self, on: bool) -> None:
        """Say yes and do nothing."""


class RaisesNoEpoch(Wrapped):
    caught_by = ("test_a_raised_epoch_fences_the_claims_before_it",)

    async def bump_epoch(self) -> int:
        return (await self.inner.clock()).epoch + 1


class RebuildsWithoutKeys(Wrapped):
    caught_by = ("test_a_projection_rebuilt_from_events_is_the_same",)

    async def rebuild(self, jobs: Sequence[Job], *, keys: Sequence[Any]) -> None:
        await self.inner.rebuild(jobs, keys=())


class FreesNoKeys(Wrapped):
    caught_by = ("test_keys_of_no_job_are_freed",)

    async def free_stray_keys(self) -> int:
        return 1


class FreesTheKeysOfJobs(Wrapped):
    caught_by = ("test_keys_of_no_job_are_freed",)

    async def free_stray_keys(self) -> int:
        freed = await self.inner.free_stray_keys()
        await self.raw("DELETE FROM keys")
        return freed


DEFECTS: tuple[type[Wrapped], ...] = (
    PausesWithoutAnEntry,
    PausesAgainOnARepeat,
    ClaimsWhatIsSetAside,
    SweepsWhatIsSetAside,
    ForgetsLeasesThatWereSetAside,
    AsksForWhatIsSetAside,
    CleansWhatIsSetAside,
    KeepsTheLastReason,
    PurgesWithoutAnEntry,
    PurgesWhatIsLinked,
    PurgesTheNamesOfJobs,
    CountsWhatWasPurged,
    FindsTheAgedThatAreCleaned,
    FindsTheAgedThatAreYoung,
    LooksAtTheFirstAgedOnly,
    SeesTheNextOfALineOnly,
    ForgetsALineThatMayBeRedriven,
    KeepsALineForALiveChild,
    ErasesTheDigestWithTheBody,
    ErasesWhatIsStillNeeded,
    DropsTheHeartbeatOfALiveLease,
    CountsNoHeartbeats,
    SealsNothing,
    RaisesNoEpoch,
    RebuildsWithoutKeys,
    FreesNoKeys,
    FreesTheKeysOfJobs,
)
