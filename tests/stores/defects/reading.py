"""Defects of lists, the tail, summaries and sweeps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.lifecycle.record import Change, Job, JobId, LoggedEvent, NewJob
from holdfast.lifecycle.states import State
from holdfast.ports.models import Count, Due, LedgerEntry, Outcome, Page, Query, SubmitOutcome, Tail
from holdfast.ports.store import NO_CLAIMS
from holdfast.stores.sqlite.store import SqliteStore
from tests.stores.defects.wrapped import Wrapped


class SkipsAnEventInTheTail(Wrapped):
    caught_by = ("test_a_tail_followed_under_load_misses_nothing",)

    async def tail(self, cursor: str | None, *, limit: int = 1000) -> Tail:
        tail = await self.inner.tail(cursor, limit=limit)
        events, cursors = tail.events, tail.cursors
        return replace(tail, events=events[:3] + events[4:], cursors=cursors[:3] + cursors[4:])


class RepeatsTheTail(Wrapped):
    caught_by = ("test_the_tail_goes_on_where_it_ended",)

    async def tail(self, cursor: str | None, *, limit: int = 1000) -> Tail:
        tail = await self.inner.tail(cursor, limit=limit)
        return replace(tail, cursor=cursor or "0" * 19) if len(tail.events) < limit else tail


class GivesAStretchOneCursor(Wrapped):
    caught_by = ("test_the_tail_goes_on_behind_any_event",)

    async def tail(self, cursor: str | None, *, limit: int = 1000) -> Tail:
        tail = await self.inner.tail(cursor, limit=limit)
        return replace(tail, cursors=[tail.cursor] * len(tail.events))


class EndsTheTailAtItsBeginning(Wrapped):
    caught_by = ("test_behind_the_end_of_the_tail_comes_what_is_new",)

    async def tail_end(self) -> str:
        return (await self.inner.tail(None, limit=1)).cursor


class RepeatsAJobOnTheNextPage(Wrapped):
    caught_by = ("test_pages_neither_skip_nor_repeat_while_jobs_come",)

    async def find(self, query: Query) -> Page:
        page = await self.inner.find(query)
        return page if page.next is None else Page(page.jobs, page.jobs[-2].id)


class SkipsAJobOnTheNextPage(Wrapped):
    caught_by = ("test_pages_neither_skip_nor_repeat_while_jobs_come",)

    async def find(self, query: Query) -> Page:
        page = await self.inner.find(query)
        if page.next is None:
            return page
        following = await self.inner.find(replace(query, before=page.next, limit=1))
        return Page(page.jobs, following.jobs[0].id)


class PagesByNumber(Wrapped):
    """Counts rows from the newest, which moves while jobs come."""

    caught_by = ("test_pages_neither_skip_nor_repeat_while_jobs_come",)

    def __init__(self, inner: SqliteStore) -> None:
        super().__init__(inner)
        self._offset = 0

    async def find(self, query: Query) -> Page:
        self._offset = 0 if query.before is None else self._offset + query.limit
        everything = (await self.inner.find(replace(query, before=None, limit=1000))).jobs
        jobs = everything[self._offset : self._offset + query.limit]
        more = len(everything) > self._offset + query.limit
        return Page(jobs, jobs[-1].id if more else None)


class IgnoresAFilter(Wrapped):
    caught_by = ("test_each_filter_keeps_what_it_names", "test_filters_narrow_each_other")

    async def find(self, query: Query) -> Page:
        return await self.inner.find(replace(query, task=None))


class DriftsInItsCounts(Wrapped):
    caught_by = ("test_counts_are_the_jobs_in_each_state",)

    async def counts(self, tenant: str | None = None) -> list[Count]:
        counts = await self.inner.counts(tenant)
        return [replace(count, jobs=count.jobs + 1) for count in counts]


class ForgetsToCountAClaim(Wrapped):
    caught_by = ("test_counts_are_the_jobs_in_each_state",)

    async def counts(self, tenant: str | None = None) -> list[Count]:
        return [
            replace(count, state=State.QUEUED if count.state is State.CLAIMED else count.state)
            for count in await self.inner.counts(tenant)
        ]


class HidesAJobFromTheLedger(Wrapped):
    caught_by = ("test_the_ledger_is_read_in_batches_by_id",)

    async def ledger(
        self, *, after: JobId | None = None, batch: int = 500
    ) -> AsyncIterator[list[LedgerEntry]]:
        async for entries in self.inner.ledger(after=after, batch=batch):
            yield entries[:-1]


class AnswersFromACache(Wrapped):
    """Reads a job once and believes that for ever."""

    caught_by = ("test_a_change_is_one_revision_and_one_event",)

    def __init__(self, inner: SqliteStore) -> None:
        super().__init__(inner)
        self._cache: dict[JobId, Job | None] = {}

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        outcomes = await self.inner.submit(jobs)
        await self.get([job.record.id for job in jobs])
        return outcomes

    async def get(self, ids: Sequence[JobId], *, signals: bool = True) -> list[Job | None]:
        for id_, job in zip(ids, await self.inner.get(ids, signals=signals), strict=True):
            self._cache.setdefault(id_, job)
        return [self._cache[id_] for id_ in ids]


class OverlooksSignalsItDoesNotRead(Wrapped):
    caught_by = ("test_pending_signals_are_counted_without_being_read",)

    async def get(self, ids: Sequence[JobId], *, signals: bool = True) -> list[Job | None]:
        found = await self.inner.get(ids, signals=signals)
        return [None if job is None else replace(job, unread_signals=0) for job in found]


class KeepsConsumedSignals(Wrapped):
    caught_by = ("test_the_last_consumed_signal_leaves_none",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            if (rev := change.event.facts.consumed) is not None:
                row = (change.id.bytes, rev, "go")
                await self.raw("INSERT INTO signals (id, rev, name) VALUES (?, ?, ?)", *row)
        return outcomes


class OverlooksAPassedLease(Wrapped):
    caught_by = ("test_a_passed_lease_is_due", "test_a_lease_that_a_start_cut_short_is_due")

    async def due(self, *, limit: int = 500) -> Due:
        due = await self.inner.due(limit=limit)
        return replace(due, jobs=[job for job in due.jobs if job.owner is None])


class OverlooksADeadline(Wrapped):
    caught_by = ("test_a_passed_deadline_is_due_in_every_live_state",)

    async def due(self, *, limit: int = 500) -> Due:
        due = await self.inner.due(limit=limit)
        return replace(due, jobs=[job for job in due.jobs if job.state is not State.PENDING])


class SweepsTheLiving(Wrapped):
    caught_by = ("test_nothing_is_due_before_its_time",)

    async def due(self, *, limit: int = 500) -> Due:
        due = await self.inner.due(limit=limit)
        return replace(due, jobs=due.jobs + await self.jobs_in(State.RUNNING))


class SweepsTheNewestFirst(Wrapped):
    caught_by = ("test_what_is_due_comes_oldest_first_and_bounded",)

    async def due(self, *, limit: int = 500) -> Due:
        due = await self.inner.due()
        return replace(due, jobs=due.jobs[::-1][:limit])


class ForgetsWhatAnOwnerHolds(Wrapped):
    caught_by = ("test_an_owner_sees_what_it_holds",)

    async def owned(
        self, owner: str, *, ended: Mapping[str, int] = NO_CLAIMS, older_than: int = 0
    ) -> list[Job]:
        found = await self.inner.owned(owner, ended=ended, older_than=older_than)
        return [job for job in found if job.state is State.CLAIMED]


class ClosesAClaimOfWhichSomeHasEnded(Wrapped):
    caught_by = ("test_a_claim_of_which_its_owner_knows_some_jobs_is_looked_at",)

    async def owned(
        self, owner: str, *, ended: Mapping[str, int] = NO_CLAIMS, older_than: int = 0
    ) -> list[Job]:
        for request in ended:
            await self.raw("UPDATE claims SET held = 0 WHERE request_id = ?", request)
        return await self.inner.owned(owner, older_than=older_than)


class ForgetsEveryClaimOnceOneHasEnded(Wrapped):
    caught_by = ("test_a_claim_that_its_owner_knows_to_have_ended_hides_no_other",)

    async def owned(
        self, owner: str, *, ended: Mapping[str, int] = NO_CLAIMS, older_than: int = 0
    ) -> list[Job]:
        return [] if ended else await self.inner.owned(owner, older_than=older_than)


class TakesOneHostForAnother(Wrapped):
    """Compares the beginnings of names, and not the whole name of the host."""

    caught_by = ("test_a_worker_sees_what_the_others_of_its_host_hold",)

    async def owned_on(self, host: str, *, but: str, **wishes: Any) -> list[Job]:
        running = await self.jobs_in(State.CLAIMED, State.RUNNING)
        return [job for job in running if (job.owner or "").startswith(host) and job.owner != but]


class ListsAsOthersWhatWasAdopted(Wrapped):
    """Goes by who claimed a job, and not by who holds it."""

    caught_by = ("test_what_a_worker_adopted_is_its_own_and_no_longer_of_the_others",)

    async def owned_on(self, host: str, *, but: str, **wishes: Any) -> list[Job]:
        return await self.inner.owned_on(host, but="", **wishes)


class ClosesTheClaimsOfOthers(Wrapped):
    caught_by = ("test_an_owner_that_was_looked_at_from_its_host_sees_what_it_holds",)

    async def owned_on(self, host: str, *, but: str, **wishes: Any) -> list[Job]:
        found = await self.inner.owned_on(host, but=but, **wishes)
        await self.raw("UPDATE claims SET held = 0")
        return found


class HandsOutWhatIsSetAsideOnAHost(Wrapped):
    caught_by = ("test_an_owner_is_not_asked_to_give_back_what_is_set_aside",)

    async def owned_on(self, host: str, *, but: str, **wishes: Any) -> list[Job]:
        running = await self.jobs_in(State.RUNNING)
        return [job for job in running if job.owner != but]


class FindsOnlyTheNewestUseOfAStep(Wrapped):
    caught_by = ("test_a_step_is_found_however_many_came_after_it",)

    async def step_events(self, id: JobId, steps: Sequence[tuple[str, int]]) -> list[LoggedEvent]:
        return (await self.inner.step_events(id, steps))[:1]


DEFECTS: tuple[type[Wrapped], ...] = (
    SkipsAnEventInTheTail,
    GivesAStretchOneCursor,
    EndsTheTailAtItsBeginning,
    FindsOnlyTheNewestUseOfAStep,
    RepeatsTheTail,
    RepeatsAJobOnTheNextPage,
    SkipsAJobOnTheNextPage,
    PagesByNumber,
    IgnoresAFilter,
    DriftsInItsCounts,
    ForgetsToCountAClaim,
    HidesAJobFromTheLedger,
    AnswersFromACache,
    OverlooksSignalsItDoesNotRead,
    KeepsConsumedSignals,
    OverlooksAPassedLease,
    OverlooksADeadline,
    SweepsTheLiving,
    SweepsTheNewestFirst,
    ForgetsWhatAnOwnerHolds,
    ForgetsEveryClaimOnceOneHasEnded,
    ClosesAClaimOfWhichSomeHasEnded,
    TakesOneHostForAnother,
    ListsAsOthersWhatWasAdopted,
    ClosesTheClaimsOfOthers,
    HandsOutWhatIsSetAsideOnAHost,
)
