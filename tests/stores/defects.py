"""Stores that are subtly wrong: a wrapper per defect around a good one.

Each names the tests of the contract that must fail on it. Where the database itself would refuse
the damage, the wrapper switches its guards off first, or answers something else than is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.job import Change, Job, JobId, LoggedEvent, NewJob
from holdfast.lifecycle.states import BEATS, EventType, KeyKind, Priority, State
from holdfast.lifecycle.times import NOW
from holdfast.ports import (
    Claimed,
    ClaimRequest,
    Committed,
    Count,
    Due,
    LedgerEntry,
    Lost,
    Outcome,
    Page,
    Query,
    QueueEvent,
    QueueStatus,
    Rejected,
    SubmitOutcome,
    SubmitRefused,
    Submitted,
    Tail,
)
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.turn import Turn
from holdfast.testing.factories import CONTROL, fresh, job_ids

DEFECTS: list[type[Wrapped]] = []


class Wrapped:
    """Hands everything on to the good store; a defect overrides what it gets wrong."""

    caught_by: ClassVar[tuple[str, ...]] = ()

    def __init__(self, inner: SqliteStore) -> None:
        self.inner = inner

    def __init_subclass__(cls, *, caught_by: tuple[str, ...]) -> None:
        cls.caught_by = caught_by
        DEFECTS.append(cls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def raw(self, sql: str, *parameters: Any) -> None:
        """Write past every guard of the schema."""

        def work(turn: Turn) -> None:
            connection = turn.connection
            connection.execute("PRAGMA ignore_check_constraints = ON")
            names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
            for (name,) in names.fetchall():
                connection.execute(f"DROP TRIGGER {name}")
            connection.execute(sql, parameters)

        await self.inner._write(work)

    async def force(self, change: Change) -> Outcome:
        """Write a change whatever the revision and the lease are."""
        [current] = await self.inner.get([change.id])
        if current is None:
            return Lost(None)
        rev = current.rev + 1
        forced = replace(
            change,
            record=current,
            event=replace(change.event, rev=rev),
            next=replace(change.next, rev=rev),
            fenced=False,
        )
        [outcome] = await self.inner.commit([forced])
        return outcome

    async def do(self, job: Job, command: c.Command) -> None:
        """Carry out a command that nobody asked for."""
        change = decide(job, command)
        assert isinstance(change, Change)
        await self.inner.commit([change])

    async def jobs_in(self, *states: State) -> list[Job]:
        return (await self.inner.find(Query(states=states))).jobs


# -- revisions, leases, owners


class SkipsTheRevisionCheck(
    Wrapped, caught_by=("test_a_stale_revision_is_refused_and_changes_nothing",)
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        return [
            await self.force(change) if isinstance(outcome, Lost) else outcome
            for change, outcome in zip(changes, outcomes, strict=True)
        ]


class WritesWhatItSaysIsLost(
    Wrapped,
    caught_by=(
        "test_a_stale_revision_is_refused_and_changes_nothing",
        "test_an_old_owner_cannot_write_over_the_new_one",
    ),
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, Lost):
                await self.force(change)
        return outcomes


class TellsNothingOfTheWinner(
    Wrapped, caught_by=("test_a_stale_revision_is_refused_and_changes_nothing",)
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        return [Lost(None) if isinstance(outcome, Lost) else outcome for outcome in outcomes]


class IgnoresAnExpiredLease(
    Wrapped,
    caught_by=(
        "test_an_expired_lease_refuses_its_owner_though_nothing_changed",
        "test_a_start_after_expiry_is_refused",
        "test_a_fold_of_an_expired_owner_leaves_nothing",
    ),
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        return await self.inner.commit([replace(change, fenced=False) for change in changes])


class AcceptsAnOldEpoch(Wrapped, caught_by=("test_a_raised_epoch_fences_the_claims_before_it",)):
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


class ForgetsToClearTheOwner(Wrapped, caught_by=("test_complete", "test_retry")):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            if change.record.owner is not None and change.next.owner is None:
                await self.raw(
                    "UPDATE jobs SET owner = ? WHERE id = ?", change.record.owner, change.id.bytes
                )
        return outcomes


class RenewsNoLease(
    Wrapped, caught_by=("test_a_renewed_lease_is_counted_from_its_renewal", "test_start")
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            if change.event.type in BEATS | {EventType.STARTED}:
                lease = change.record.lease_expires_at
                await self.raw(
                    "UPDATE jobs SET lease_expires_at = ? WHERE id = ?", lease, change.id.bytes
                )
        return outcomes


class BeatsWithoutARevision(
    Wrapped, caught_by=("test_heartbeats_raise_the_revision_and_are_counted",)
):
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


class ThawsAFinishedJob(Wrapped, caught_by=("test_a_late_result_is_recorded_and_changes_nothing",)):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            if change.event.type is EventType.RESULT_IGNORED:
                await self.raw("UPDATE jobs SET error_code = 'late' WHERE id = ?", change.id.bytes)
        return outcomes


# -- events


class AcknowledgesWithoutWriting(
    Wrapped,
    caught_by=(
        "test_a_change_is_one_revision_and_one_event",
        "test_a_large_batch_is_written_whole",
    ),
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        now = (await self.inner.clock()).now
        answers: list[Outcome] = []
        for change in changes:
            job: Any = replace(change.next, updated_at=now)
            answers.append(Committed(job))
        return answers


class DropsAnEvent(
    Wrapped,
    caught_by=(
        "test_a_change_is_one_revision_and_one_event",
        "test_hold_and_unhold_in_every_state_that_may_be_held",
    ),
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            await self.raw(
                "DELETE FROM events WHERE id = ? AND rev = ?", change.id.bytes, change.event.rev
            )
        return outcomes


class ClaimsWithoutAnEvent(
    Wrapped, caught_by=("test_a_claim_gives_owner_lease_attempt_and_event_in_one",)
):
    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        claimed = await self.inner.claim(request)
        for one in claimed:
            job = one.job
            await self.raw("DELETE FROM events WHERE id = ? AND rev = ?", job.id.bytes, job.rev)
        return claimed


class WritesAWrongAttempt(
    Wrapped, caught_by=("test_a_claim_gives_owner_lease_attempt_and_event_in_one",)
):
    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        claimed = await self.inner.claim(request)
        for one in claimed:
            await self.raw(
                "UPDATE events SET attempt = attempt + 1 WHERE id = ? AND rev = ?",
                one.job.id.bytes,
                one.job.rev,
            )
        return claimed


class ForgetsWhoAsked(
    Wrapped,
    caught_by=(
        "test_a_change_is_one_revision_and_one_event",
        "test_a_change_sent_again_after_a_lost_reply_is_success",
    ),
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            await self.raw(
                "UPDATE events SET request_id = NULL, reason = NULL WHERE id = ?", change.id.bytes
            )
        return outcomes


class TurnsTimeBack(Wrapped, caught_by=("test_the_clock_of_a_job_never_runs_backwards",)):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            await self.raw(
                "UPDATE events SET at = at - 1000000000 WHERE id = ? AND rev = ?",
                change.id.bytes,
                change.event.rev,
            )
        return outcomes


class KeepsTheDigestOfAnotherBody(Wrapped, caught_by=("test_complete", "test_progress")):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        other = b"0123456789abcdef"
        return await self.inner.commit(
            [
                replace(
                    change,
                    event=replace(change.event, digest=change.event.body and other),
                    next=replace(change.next, result_digest=change.next.result_digest and other),
                )
                for change in changes
            ]
        )


class WritesBodiesAnew(Wrapped, caught_by=("test_every_body_comes_back_byte_for_byte",)):
    async def events(self, id: JobId, *, after: int = 0, limit: int = 1000) -> list[LoggedEvent]:
        events = await self.inner.events(id, after=after, limit=limit)
        return [replace(event, body=_rewritten(event.body)) for event in events]


def _rewritten(body: bytes | None) -> bytes | None:
    return body and msgspec.json.format(body, indent=1)


class ReadsEventsFromTheStart(Wrapped, caught_by=("test_events_are_read_on_from_any_revision",)):
    async def events(self, id: JobId, *, after: int = 0, limit: int = 1000) -> list[LoggedEvent]:
        return await self.inner.events(id, limit=limit)


# -- repeats


class RepeatsARequestAsANewEvent(
    Wrapped,
    caught_by=(
        "test_a_change_sent_again_after_a_lost_reply_is_success",
        "test_a_heartbeat_sent_again_after_a_lost_reply_is_success",
    ),
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        return [
            await self.force(change)
            if isinstance(outcome, Committed) and outcome.repeated
            else outcome
            for change, outcome in zip(changes, outcomes, strict=True)
        ]


class TakesAnyRepeatForTheSame(
    Wrapped,
    caught_by=(
        "test_a_request_id_with_other_content_is_no_repeat",
        "test_a_request_id_of_another_actor_is_no_repeat",
    ),
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        return [
            Committed(outcome.current, repeated=True)
            if isinstance(outcome, Lost) and outcome.current and change.event.request_id
            else outcome
            for change, outcome in zip(changes, outcomes, strict=True)
        ]


class ForgetsClaimRequests(
    Wrapped,
    caught_by=(
        "test_a_repeated_request_returns_the_same_claim",
        "test_a_repeated_request_whose_jobs_moved_on_is_told_so",
    ),
):
    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self.inner.claim(replace(request, request_id=fresh("anew")))


class RemembersAnEmptyClaim(Wrapped, caught_by=("test_an_empty_claim_is_not_remembered",)):
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


class HandsAClaimToAStranger(
    Wrapped, caught_by=("test_a_claim_request_of_another_owner_is_refused",)
):
    def __init__(self, inner: SqliteStore) -> None:
        super().__init__(inner)
        self._owners: dict[str, str] = {}

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        owner = self._owners.setdefault(request.request_id, request.owner)
        return await self.inner.claim(replace(request, owner=owner))


class AnswersAnOldClaimFromMemory(
    Wrapped,
    caught_by=(
        "test_a_repeated_request_whose_lease_has_passed_is_told_so",
        "test_a_repeated_request_returns_what_it_still_holds",
    ),
):
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


# -- which jobs a claim takes


class ClaimsTwice(
    Wrapped,
    caught_by=(
        "test_claimers_at_once_never_share_a_job",
        "test_a_claim_takes_no_more_than_its_limit",
    ),
):
    def __init__(self, inner: SqliteStore) -> None:
        super().__init__(inner)
        self._given: list[Claimed] = []

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        claimed = await self.inner.claim(request)
        again = self._given[: request.limit - len(claimed)]
        self._given += claimed
        return claimed + again


class ClaimsBackwards(Wrapped, caught_by=("test_a_claim_lists_its_jobs_in_their_order",)):
    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return (await self.inner.claim(request))[::-1]


class ClaimsWithoutRegardToClass(Wrapped, caught_by=("test_classes_go_before_each_other",)):
    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        jobs = await self.jobs_in(State.QUEUED)
        await self.raw("UPDATE jobs SET priority = ?", Priority.INTERACTIVE.code)
        claimed = await self.inner.claim(request)
        for job in jobs:
            await self.raw(
                "UPDATE jobs SET priority = ? WHERE id = ?", job.priority.code, job.id.bytes
            )
        return claimed


class ClaimsWithoutAgeing(
    Wrapped, caught_by=("test_an_old_batch_job_goes_before_a_fresh_critical_one",)
):
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


class ClaimsWhatIsHeld(
    Wrapped, caught_by=("test_a_held_job_is_claimed_only_when_its_last_hold_is_lifted",)
):
    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        while held := [job for job in await self.jobs_in(State.QUEUED) if job.held_by]:
            await self.do(held[0], c.Unhold(actor=CONTROL, hold=held[0].held_by[0]))
        return await self.inner.claim(request)


class ClaimsBeforeItIsDue(
    Wrapped,
    caught_by=(
        "test_a_job_is_not_claimed_before_it_is_due",
        "test_a_retry_is_not_claimed_before_it_is_due",
    ),
):
    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        for job in await self.jobs_in(State.QUEUED, State.RETRYING):
            await self.do(job, c.Reschedule(actor=CONTROL, run_at=NOW))
        return await self.inner.claim(request)


class ClaimsFromAPausedQueue(
    Wrapped, caught_by=("test_a_paused_queue_is_left_out_until_it_is_resumed",)
):
    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        for queue in request.queues:
            await self.inner.resume(queue, actor="nobody")
        return await self.inner.claim(request)


class ClaimsFromAnyQueue(Wrapped, caught_by=("test_only_the_named_queues_are_claimed_from",)):
    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        queues = {job.queue for job in await self.jobs_in(State.QUEUED)}
        return await self.inner.claim(replace(request, queues=tuple(sorted(queues))))


class ClaimsWhatAWorkerCannotServe(
    Wrapped, caught_by=("test_a_worker_claims_only_what_it_can_serve",)
):
    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        needs = [job.needs for job in await self.jobs_in(State.QUEUED)]
        return await self.inner.claim(replace(request, capabilities=frozenset().union(*needs)))


class ClaimsWithoutLookingForRoom(
    Wrapped,
    caught_by=("test_jobs_are_taken_as_long_as_there_is_room", "test_a_limit_counts_what_fits"),
):
    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self.inner.claim(replace(request, capacity=None))


class LooksAheadWithoutABound(Wrapped, caught_by=("test_looking_for_what_fits_ends_at_the_bound",)):
    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self.inner.claim(replace(request, lookahead=10_000))


class ClaimsMoreThanAsked(Wrapped, caught_by=("test_a_claim_takes_no_more_than_its_limit",)):
    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        return await self.inner.claim(replace(request, limit=request.limit + 1))


class ClaimsForAMinute(Wrapped, caught_by=("test_a_claim_is_the_edge_of_the_law",)):
    """Grants its own lease instead of the policy's."""

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
        return [replace(one, job=job) for one, job in zip(claimed, jobs, strict=True)]


# -- folds and what hangs on a change


class LosesAFoldsFirstEvent(Wrapped, caught_by=("test_start_and_finish_fold_into_two_events",)):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for first, second in pairwise(changes):
            if first.id == second.id:
                await self.raw(
                    "DELETE FROM events WHERE id = ? AND rev = ?", first.id.bytes, first.event.rev
                )
        return outcomes


class AppliesHalfAFold(
    Wrapped,
    caught_by=(
        "test_start_and_finish_fold_into_two_events",
        "test_steps_in_a_fold_keep_their_bodies",
    ),
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        first = list({change.id: change for change in reversed(changes)}.values())
        outcomes = dict(
            zip((change.id for change in first), await self.inner.commit(first), strict=True)
        )
        return [outcomes[change.id] for change in changes]


class WritesWhatIsGoodOfABadFold(
    Wrapped, caught_by=("test_a_fold_with_a_bad_change_leaves_nothing",)
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, Rejected):
                await self.inner.commit([change])
        return outcomes


class InsertsSubmitsOfALostChange(Wrapped, caught_by=("test_a_lost_change_brings_no_submits",)):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, Lost):
                await self.inner.submit(change.submits)
        return outcomes


class ForgetsTheSubmitsOfAChange(
    Wrapped, caught_by=("test_an_accepted_change_brings_its_submits",)
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        return await self.inner.commit([replace(change, submits=()) for change in changes])


class AcceptsAChangeWithoutItsSubmit(
    Wrapped, caught_by=("test_a_change_whose_submit_is_refused_is_refused",)
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit([replace(change, submits=()) for change in changes])
        for change, outcome in zip(changes, outcomes, strict=True):
            if isinstance(outcome, Committed):
                await self.inner.submit(change.submits)
        return outcomes


# -- batches


class AnswersInItsOwnOrder(
    Wrapped,
    caught_by=(
        "test_answers_come_in_the_order_of_the_batch",
        "test_outcomes_come_in_the_order_of_the_changes",
    ),
):
    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        return await self.inner.submit(sorted(jobs, key=lambda job: job.record.id))

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        return await self.inner.commit(sorted(changes, key=lambda change: change.id))


class FailsABatchForOneBadRow(
    Wrapped,
    caught_by=(
        "test_one_bad_submit_does_not_fail_its_neighbours",
        "test_one_bad_change_does_not_fail_its_neighbours",
    ),
):
    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        outcomes = await self.inner.submit(jobs)
        refused = [outcome for outcome in outcomes if isinstance(outcome, SubmitRefused)]
        return [refused[0]] * len(jobs) if refused else outcomes

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        rejected = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
        return [rejected[0]] * len(changes) if rejected else outcomes


class ForgetsTheLawInTheDatabase(
    Wrapped,
    caught_by=(
        "test_a_move_that_is_not_in_the_table_is_rejected",
        "test_a_record_that_breaks_an_invariant_is_rejected",
    ),
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        await self.raw("SELECT 1")
        return await self.inner.commit(changes)


# -- keys


class LooksBeforeItInserts(Wrapped, caught_by=("test_submits_at_once_with_one_key_make_one_row",)):
    """Two who look at once both find nothing."""

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


class ForgetsToFreeAKey(
    Wrapped, caught_by=("test_a_live_key_is_free_as_soon_as_its_job_has_ended",)
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        await self.raw("CREATE TABLE IF NOT EXISTS kept AS SELECT * FROM keys")
        await self.raw("INSERT INTO kept SELECT * FROM keys")
        outcomes = await self.inner.commit(changes)
        await self.raw("INSERT OR IGNORE INTO keys SELECT * FROM kept")
        return outcomes


class FreesAKeyTooEarly(
    Wrapped,
    caught_by=(
        "test_a_live_key_is_held_until_its_job_ends",
        "test_keys_are_held_while_a_job_is_being_cleaned",
    ),
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            if change.event.type in (EventType.STARTED, EventType.CLEANING):
                await self.raw("DELETE FROM keys WHERE id = ?", change.id.bytes)
        return outcomes


class UsesAJobIdAgain(Wrapped, caught_by=("test_a_job_id_is_never_used_again",)):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            if change.event.type is EventType.CLEANED:
                await self.raw("DELETE FROM keys WHERE id = ?", change.id.bytes)
        return outcomes


class SharesKeysBetweenTenants(Wrapped, caught_by=("test_tenants_do_not_share_keys",)):
    async def look_up(self, tenant: str, kind: KeyKind, key: str) -> JobId | None:
        return await self.inner.look_up("default", kind, key)


class ComparesNoBodies(
    Wrapped,
    caught_by=(
        "test_a_known_job_id_with_another_body_is_refused",
        "test_a_request_id_with_another_body_is_refused",
    ),
):
    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        outcomes = await self.inner.submit(jobs)
        return [await self._accepted(outcome) for outcome in outcomes]

    async def _accepted(self, outcome: SubmitOutcome) -> SubmitOutcome:
        if isinstance(outcome, Submitted) or outcome.holder is None:
            return outcome
        [job] = await self.inner.get([outcome.holder])
        assert job is not None
        return Submitted(job, created=False)


class TakesKeysOfALosingSubmit(
    Wrapped,
    caught_by=("test_a_submit_that_meets_a_holder_takes_none_of_its_other_keys",),
):
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


class MakesASecondJobOfAResentOne(
    Wrapped, caught_by=("test_a_batch_sent_again_after_a_lost_reply_makes_no_second_job",)
):
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


# -- reading


class SkipsAnEventInTheTail(Wrapped, caught_by=("test_a_tail_followed_under_load_misses_nothing",)):
    async def tail(self, cursor: str | None, *, limit: int = 1000) -> Tail:
        tail = await self.inner.tail(cursor, limit=limit)
        return replace(tail, events=tail.events[:3] + tail.events[4:])


class RepeatsTheTail(Wrapped, caught_by=("test_the_tail_goes_on_where_it_ended",)):
    async def tail(self, cursor: str | None, *, limit: int = 1000) -> Tail:
        tail = await self.inner.tail(cursor, limit=limit)
        return replace(tail, cursor=cursor or "0") if len(tail.events) < limit else tail


class RepeatsAJobOnTheNextPage(
    Wrapped, caught_by=("test_pages_neither_skip_nor_repeat_while_jobs_come",)
):
    async def find(self, query: Query) -> Page:
        page = await self.inner.find(query)
        return page if page.next is None else Page(page.jobs, page.jobs[-2].id)


class SkipsAJobOnTheNextPage(
    Wrapped, caught_by=("test_pages_neither_skip_nor_repeat_while_jobs_come",)
):
    async def find(self, query: Query) -> Page:
        page = await self.inner.find(query)
        if page.next is None:
            return page
        following = await self.inner.find(replace(query, before=page.next, limit=1))
        return Page(page.jobs, following.jobs[0].id)


class PagesByNumber(Wrapped, caught_by=("test_pages_neither_skip_nor_repeat_while_jobs_come",)):
    """Counts rows from the newest, which moves while jobs come."""

    def __init__(self, inner: SqliteStore) -> None:
        super().__init__(inner)
        self._offset = 0

    async def find(self, query: Query) -> Page:
        self._offset = 0 if query.before is None else self._offset + query.limit
        everything = (await self.inner.find(replace(query, before=None, limit=1000))).jobs
        jobs = everything[self._offset : self._offset + query.limit]
        more = len(everything) > self._offset + query.limit
        return Page(jobs, jobs[-1].id if more else None)


class IgnoresAFilter(
    Wrapped, caught_by=("test_each_filter_keeps_what_it_names", "test_filters_narrow_each_other")
):
    async def find(self, query: Query) -> Page:
        return await self.inner.find(replace(query, task=None))


class DriftsInItsCounts(Wrapped, caught_by=("test_counts_tell_how_many_jobs_stand_where",)):
    async def counts(self, tenant: str | None = None) -> list[Count]:
        counts = await self.inner.counts(tenant)
        return [replace(count, jobs=count.jobs + 1) for count in counts]


class ForgetsToCountAClaim(Wrapped, caught_by=("test_counts_tell_how_many_jobs_stand_where",)):
    async def counts(self, tenant: str | None = None) -> list[Count]:
        return [
            replace(count, state=State.QUEUED if count.state is State.CLAIMED else count.state)
            for count in await self.inner.counts(tenant)
        ]


class HidesAJobFromTheLedger(Wrapped, caught_by=("test_the_ledger_is_read_in_batches_by_id",)):
    async def ledger(
        self, *, after: JobId | None = None, batch: int = 500
    ) -> AsyncIterator[list[LedgerEntry]]:
        async for entries in self.inner.ledger(after=after, batch=batch):
            yield entries[:-1]


class AnswersFromACache(Wrapped, caught_by=("test_a_change_is_one_revision_and_one_event",)):
    """Reads a job once and believes that for ever."""

    def __init__(self, inner: SqliteStore) -> None:
        super().__init__(inner)
        self._cache: dict[JobId, Job | None] = {}

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        outcomes = await self.inner.submit(jobs)
        await self.get([job.record.id for job in jobs])
        return outcomes

    async def get(self, ids: Sequence[JobId]) -> list[Job | None]:
        for id_, job in zip(ids, await self.inner.get(ids), strict=True):
            self._cache.setdefault(id_, job)
        return [self._cache[id_] for id_ in ids]


# -- sweeps


class OverlooksAPassedLease(
    Wrapped,
    caught_by=("test_a_passed_lease_is_due", "test_a_lease_that_a_start_cut_short_is_due"),
):
    async def due(self, *, limit: int = 500) -> Due:
        due = await self.inner.due(limit=limit)
        return replace(due, jobs=[job for job in due.jobs if job.owner is None])


class OverlooksADeadline(Wrapped, caught_by=("test_a_passed_deadline_is_due_in_every_live_state",)):
    async def due(self, *, limit: int = 500) -> Due:
        due = await self.inner.due(limit=limit)
        return replace(due, jobs=[job for job in due.jobs if job.state is not State.PENDING])


class SweepsTheLiving(Wrapped, caught_by=("test_nothing_is_due_before_its_time",)):
    async def due(self, *, limit: int = 500) -> Due:
        due = await self.inner.due(limit=limit)
        return replace(due, jobs=due.jobs + await self.jobs_in(State.RUNNING))


class SweepsTheNewestFirst(Wrapped, caught_by=("test_what_is_due_comes_oldest_first_and_bounded",)):
    async def due(self, *, limit: int = 500) -> Due:
        due = await self.inner.due()
        return replace(due, jobs=due.jobs[::-1][:limit])


class ForgetsWhatAnOwnerHolds(Wrapped, caught_by=("test_an_owner_is_told_what_it_holds",)):
    async def owned(self, owner: str) -> list[Job]:
        return [job for job in await self.inner.owned(owner) if job.state is State.CLAIMED]


# -- queues, upkeep


class PausesWithoutAnEntry(
    Wrapped, caught_by=("test_pauses_are_entered_in_the_ledger_of_the_queues",)
):
    async def queue_events(self, queue: str | None = None) -> list[QueueEvent]:
        return [one for one in await self.inner.queue_events(queue) if one.type != "paused"]


class PausesAgainOnARepeat(
    Wrapped,
    caught_by=(
        "test_a_pause_sent_again_is_success_and_no_second_entry",
        "test_a_pause_sent_again_after_a_resume_does_not_pause_again",
    ),
):
    async def pause(
        self, queue: str, *, actor: str, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        await self.raw("UPDATE queues SET paused_at = NULL WHERE name = ?", queue)
        return await self.inner.pause(queue, actor=actor, reason=reason)


class ErasesTheDigestWithTheBody(Wrapped, caught_by=("test_erased_bodies_leave_their_digests",)):
    async def erase_bodies(self, ids: Sequence[JobId]) -> int:
        erased = await self.inner.erase_bodies(ids)
        for id_ in ids:
            await self.raw("UPDATE events SET digest = NULL WHERE id = ?", id_.bytes)
        return erased


class ErasesWhatIsStillNeeded(
    Wrapped, caught_by=("test_bodies_of_a_job_that_nobody_cleans_are_kept",)
):
    async def erase_bodies(self, ids: Sequence[JobId]) -> int:
        for id_ in ids:
            await self.raw("UPDATE events SET body = NULL WHERE id = ?", id_.bytes)
        return len(ids)


class DropsTheHeartbeatOfALiveLease(
    Wrapped, caught_by=("test_heartbeats_that_a_present_lease_rests_on_are_kept",)
):
    async def drop_beats(self, *, before: int, limit: int = 10_000) -> int:
        await self.raw("DELETE FROM beats WHERE at < ?", before)
        return 0


class CountsNoHeartbeats(
    Wrapped, caught_by=("test_heartbeats_raise_the_revision_and_are_counted",)
):
    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        return await self.inner.commit(
            [replace(change, event=replace(change.event, beats=0)) for change in changes]
        )


class SealsNothing(Wrapped, caught_by=("test_events_are_sealed_while_sealing_is_on",)):
    async def set_sealing(self, on: bool) -> None:
        """Say yes and do nothing."""


class RaisesNoEpoch(Wrapped, caught_by=("test_a_raised_epoch_fences_the_claims_before_it",)):
    async def bump_epoch(self) -> int:
        return (await self.inner.clock()).epoch + 1


class RebuildsWithoutKeys(
    Wrapped, caught_by=("test_a_projection_rebuilt_from_events_is_the_same",)
):
    async def rebuild(self, jobs: Sequence[Job], *, keys: Sequence[Any]) -> None:
        await self.inner.rebuild(jobs, keys=())
