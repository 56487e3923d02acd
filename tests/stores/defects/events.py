"""Defects of the log and of batches: what is written, and what is answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.lifecycle.record import Change, JobId, LoggedEvent, NewJob
from holdfast.ports.models import (
    Claimed,
    ClaimRequest,
    Committed,
    Outcome,
    Query,
    Rejected,
    SubmitOutcome,
    SubmitRefused,
)
from tests.stores.defects.wrapped import Wrapped


class AcknowledgesWithoutWriting(Wrapped):
    caught_by = (
        "test_a_change_is_one_revision_and_one_event",
        "test_a_large_batch_is_written_whole",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        now = (await self.inner.clock()).now
        answers: list[Outcome] = []
        for change in changes:
            job: Any = replace(change.next, updated_at=now)
            answers.append(Committed(job))
        return answers


class DropsAnEvent(Wrapped):
    caught_by = (
        "test_a_change_is_one_revision_and_one_event",
        "test_hold_and_unhold_in_every_state_that_may_be_held",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            await self.raw(
                "DELETE FROM events WHERE id = ? AND rev = ?", change.id.bytes, change.event.rev
            )
        return outcomes


class ClaimsWithoutAnEvent(Wrapped):
    caught_by = ("test_a_claim_gives_owner_lease_attempt_and_event_in_one",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        claimed = await self.inner.claim(request)
        for one in claimed:
            job = one.job
            await self.raw("DELETE FROM events WHERE id = ? AND rev = ?", job.id.bytes, job.rev)
        return claimed


class WritesAWrongAttempt(Wrapped):
    caught_by = ("test_a_claim_gives_owner_lease_attempt_and_event_in_one",)

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        claimed = await self.inner.claim(request)
        for one in claimed:
            await self.raw(
                "UPDATE events SET attempt = attempt + 1 WHERE id = ? AND rev = ?",
                one.job.id.bytes,
                one.job.rev,
            )
        return claimed


class ForgetsWhoAsked(Wrapped):
    caught_by = (
        "test_a_change_is_one_revision_and_one_event",
        "test_a_change_sent_again_after_a_lost_reply_is_success",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            await self.raw(
                "UPDATE events SET request_id = NULL, reason = NULL WHERE id = ?", change.id.bytes
            )
        return outcomes


class TurnsTimeBack(Wrapped):
    caught_by = ("test_the_clock_of_a_job_never_runs_backwards",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            await self.raw(
                "UPDATE events SET at = at - 1000000000 WHERE id = ? AND rev = ?",
                change.id.bytes,
                change.event.rev,
            )
        return outcomes


class KeepsTheDigestOfAnotherBody(Wrapped):
    caught_by = ("test_complete", "test_progress")

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


class WritesBodiesAnew(Wrapped):
    caught_by = ("test_every_body_comes_back_byte_for_byte",)

    async def events(
        self, id: JobId, *, after: int = 0, limit: int = 1000, max_bytes: int | None = None
    ) -> list[LoggedEvent]:
        events = await self.inner.events(id, after=after, limit=limit, max_bytes=max_bytes)
        return [replace(event, body=_rewritten(event.body)) for event in events]


def _rewritten(body: bytes | None) -> bytes | None:
    return body and msgspec.json.format(body, indent=1)


class ReadsEventsFromTheStart(Wrapped):
    caught_by = ("test_events_are_read_on_from_any_revision",)

    async def events(
        self, id: JobId, *, after: int = 0, limit: int = 1000, max_bytes: int | None = None
    ) -> list[LoggedEvent]:
        return await self.inner.events(id, limit=limit, max_bytes=max_bytes)


class ReadsAllBodies(Wrapped):
    caught_by = ("test_a_page_ends_with_the_body_that_reaches_the_bytes",)

    async def events(
        self, id: JobId, *, after: int = 0, limit: int = 1000, max_bytes: int | None = None
    ) -> list[LoggedEvent]:
        return await self.inner.events(id, after=after, limit=limit)


class FindsRequestsOfAnyJob(Wrapped):
    caught_by = ("test_the_event_of_a_request_is_found_by_it",)

    async def request_event(self, id: JobId, request_id: str) -> LoggedEvent | None:
        for job in (await self.inner.find(Query())).jobs:
            if (found := await self.inner.request_event(job.id, request_id)) is not None:
                return found
        return None


class AnswersInItsOwnOrder(Wrapped):
    caught_by = (
        "test_answers_come_in_the_order_of_the_batch",
        "test_outcomes_come_in_the_order_of_the_changes",
    )

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        return await self.inner.submit(sorted(jobs, key=lambda job: job.record.id))

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        return await self.inner.commit(sorted(changes, key=lambda change: change.id))


class FailsABatchForOneBadRow(Wrapped):
    caught_by = (
        "test_one_bad_submit_does_not_fail_its_neighbours",
        "test_one_bad_change_does_not_fail_its_neighbours",
    )

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        outcomes = await self.inner.submit(jobs)
        refused = [outcome for outcome in outcomes if isinstance(outcome, SubmitRefused)]
        return [refused[0]] * len(jobs) if refused else outcomes

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        rejected = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
        return [rejected[0]] * len(changes) if rejected else outcomes


class ForgetsTheLawInTheDatabase(Wrapped):
    caught_by = (
        "test_a_move_that_is_not_in_the_table_is_rejected",
        "test_a_record_that_breaks_an_invariant_is_rejected",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        await self.raw("SELECT 1")
        return await self.inner.commit(changes)


DEFECTS: tuple[type[Wrapped], ...] = (
    AcknowledgesWithoutWriting,
    DropsAnEvent,
    ClaimsWithoutAnEvent,
    WritesAWrongAttempt,
    ForgetsWhoAsked,
    TurnsTimeBack,
    KeepsTheDigestOfAnotherBody,
    WritesBodiesAnew,
    ReadsEventsFromTheStart,
    ReadsAllBodies,
    FindsRequestsOfAnyJob,
    AnswersInItsOwnOrder,
    FailsABatchForOneBadRow,
    ForgetsTheLawInTheDatabase,
)
