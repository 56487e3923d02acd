"""Defects of single writes: revisions, leases, owners, events, and what hangs on a change."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from holdfast.lifecycle.record import Change, Job, JobId, LoggedEvent
from holdfast.lifecycle.states import BEATS, EventType
from holdfast.ports.models import Committed, DecideLocked, Lost, Outcome, Rejected
from tests.stores.defects.wrapped import Wrapped


class SkipsTheRevisionCheck(Wrapped):
    caught_by = ("test_a_stale_revision_is_refused_and_changes_nothing",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        return [
            await self.force(change) if isinstance(outcome, Lost) else outcome
            for change, outcome in zip(changes, outcomes, strict=True)
        ]


class WritesWhatItSaysIsLost(Wrapped):
    caught_by = (
        "test_a_stale_revision_is_refused_and_changes_nothing",
        "test_an_old_owner_cannot_write_over_the_new_one",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, Lost):
                await self.force(change)
        return outcomes


class TellsNothingOfTheWinner(Wrapped):
    caught_by = ("test_a_stale_revision_is_refused_and_changes_nothing",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        return [Lost(None) if isinstance(outcome, Lost) else outcome for outcome in outcomes]


class IgnoresAnExpiredLease(Wrapped):
    caught_by = (
        "test_an_expired_lease_refuses_its_owner_though_nothing_changed",
        "test_a_start_after_expiry_is_refused",
        "test_a_fold_of_an_expired_owner_leaves_nothing",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        return await self.inner.commit([replace(change, fenced=False) for change in changes])


class AcceptsAnOldEpoch(Wrapped):
    caught_by = ("test_a_raised_epoch_fences_the_claims_before_it",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        clock = await self.inner.clock()
        return await self.inner.commit(
            [
                replace(change, fenced=False)
                if (change.record.epoch or 1) < clock.epoch
                else change
                for change in changes
            ]
        )


class ForgetsToClearTheOwner(Wrapped):
    caught_by = ("test_complete", "test_retry")

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            if change.record.owner is not None and change.next.owner is None:
                await self.raw(
                    "UPDATE jobs SET owner = ? WHERE id = ?", change.record.owner, change.id.bytes
                )
        return outcomes


class RenewsNoLease(Wrapped):
    caught_by = ("test_a_renewed_lease_is_counted_from_its_renewal", "test_start")

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            if change.event.type in BEATS | {EventType.STARTED}:
                lease = change.record.lease_expires_at
                await self.raw(
                    "UPDATE jobs SET lease_expires_at = ? WHERE id = ?", lease, change.id.bytes
                )
        return outcomes


class BeatsWithoutARevision(Wrapped):
    caught_by = ("test_heartbeats_raise_the_revision_and_are_counted",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit([one for one in changes if one.event.type not in BEATS])
        answers = iter(outcomes)
        return [
            Committed(await self._touched(change)) if change.event.type in BEATS else next(answers)
            for change in changes
        ]

    async def _touched(self, change: Change) -> Job:
        await self.raw(
            "UPDATE jobs SET lease_expires_at = lease_expires_at + 1000 WHERE id = ?",
            change.id.bytes,
        )
        [job] = await self.inner.get([change.id])
        assert job is not None
        return job


class ThawsAFinishedJob(Wrapped):
    caught_by = ("test_a_late_result_is_recorded_and_changes_nothing",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            if change.event.type is EventType.RESULT_IGNORED:
                await self.raw("UPDATE jobs SET error_code = 'late' WHERE id = ?", change.id.bytes)
        return outcomes


class LosesAFoldsFirstEvent(Wrapped):
    caught_by = ("test_start_and_finish_fold_into_two_events",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for first, second in pairwise(changes):
            if first.id == second.id:
                await self.raw(
                    "DELETE FROM events WHERE id = ? AND rev = ?", first.id.bytes, first.event.rev
                )
        return outcomes


class AppliesHalfAFold(Wrapped):
    caught_by = (
        "test_start_and_finish_fold_into_two_events",
        "test_steps_in_a_fold_keep_their_bodies",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        first = list({change.id: change for change in reversed(changes)}.values())
        outcomes = dict(
            zip((change.id for change in first), await self.inner.commit(first), strict=True)
        )
        return [outcomes[change.id] for change in changes]


class WritesWhatIsGoodOfABadFold(Wrapped):
    caught_by = ("test_a_fold_with_a_bad_change_leaves_nothing",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, Rejected):
                await self.inner.commit([change])
        return outcomes


class InsertsSubmitsOfALostChange(Wrapped):
    caught_by = ("test_a_lost_change_brings_no_submits",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, Lost):
                await self.inner.submit(change.submits)
        return outcomes


class ForgetsTheSubmitsOfAChange(Wrapped):
    caught_by = ("test_an_accepted_change_brings_its_submits",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        return await self.inner.commit([replace(change, submits=()) for change in changes])


class AcceptsAChangeWithoutItsSubmit(Wrapped):
    caught_by = ("test_a_change_whose_submit_is_refused_is_refused",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit([replace(change, submits=()) for change in changes])
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, Committed):
                await self.inner.submit(change.submits)
        return outcomes


class LocksNothing(Wrapped):
    caught_by = ("test_of_locked_commits_at_once_every_one_is_written",)

    async def commit_locked(
        self, id: JobId, decide: DecideLocked, *, after: int | None = None
    ) -> Outcome:
        [current] = await self.inner.get([id])
        if current is None:
            return Lost(None)
        events = [] if after is None else await self.inner.events(id, after=after)
        changes = decide(current, events)
        return (await self.inner.commit(changes))[-1] if changes else Lost(current)


class HidesWhatCameBeforeTheLock(Wrapped):
    caught_by = ("test_a_locked_commit_sees_the_events_since_a_revision",)

    async def commit_locked(
        self, id: JobId, decide: DecideLocked, *, after: int | None = None
    ) -> Outcome:
        return await self.inner.commit_locked(id, decide)


class ForgetsTheLeaseUnderTheLock(Wrapped):
    caught_by = ("test_a_locked_commit_needs_a_live_lease_too",)

    async def commit_locked(
        self, id: JobId, decide: DecideLocked, *, after: int | None = None
    ) -> Outcome:
        def unfenced(current: Job, events: Sequence[LoggedEvent]) -> list[Change]:
            return [replace(change, fenced=False) for change in decide(current, events)]

        return await self.inner.commit_locked(id, unfenced, after=after)


DEFECTS: tuple[type[Wrapped], ...] = (
    SkipsTheRevisionCheck,
    WritesWhatItSaysIsLost,
    TellsNothingOfTheWinner,
    IgnoresAnExpiredLease,
    AcceptsAnOldEpoch,
    ForgetsToClearTheOwner,
    RenewsNoLease,
    BeatsWithoutARevision,
    ThawsAFinishedJob,
    LosesAFoldsFirstEvent,
    AppliesHalfAFold,
    WritesWhatIsGoodOfABadFold,
    InsertsSubmitsOfALostChange,
    ForgetsTheSubmitsOfAChange,
    AcceptsAChangeWithoutItsSubmit,
    LocksNothing,
    HidesWhatCameBeforeTheLock,
    ForgetsTheLeaseUnderTheLock,
)
