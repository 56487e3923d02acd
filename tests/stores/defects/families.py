"""Defects of marks, of children and of families."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.lifecycle.record import Change, Job, JobId, NewJob
from holdfast.lifecycle.states import Link, State
from holdfast.ports.models import Mark, Outcome, Query, SubmitOutcome
from tests.stores.defects.wrapped import Wrapped


class Marking(Wrapped):
    """Can put marks where none belong, and take those away that came with a write."""

    async def mark(self, *ids: JobId) -> None:
        for id_ in ids:
            await self.raw("INSERT INTO marks (id) VALUES (?)", id_.bytes)

    async def new_marks(self, known: Sequence[Mark]) -> list[Mark]:
        return [mark for mark in await self.inner.marked() if mark not in known]


class MarksNobodyAtAnEnd(Marking):
    caught_by = (
        "test_the_birth_and_every_end_of_a_child_mark_its_parent",
        "test_a_child_that_starts_and_ends_in_one_commit_marks_its_parent",
        "test_a_wait_for_children_marks_the_job_that_waits",
        "test_a_requested_cancel_marks_a_job_with_children",
        "test_every_end_but_success_marks_a_job_with_children",
        "test_a_cancelled_parent_in_the_queue_is_marked",
        "test_a_mark_that_came_since_stays",
        "test_the_end_of_a_linked_retry_marks_the_try_before",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        known = await self.inner.marked()
        outcomes = await self.inner.commit(changes)
        await self.inner.unmark(await self.new_marks(known))
        return outcomes


class MarksNobodyAtABirth(Marking):
    caught_by = ("test_the_birth_and_every_end_of_a_child_mark_its_parent",)

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        known = await self.inner.marked()
        outcomes = await self.inner.submit(jobs)
        await self.inner.unmark(await self.new_marks(known))
        return outcomes


class MarksForEveryLink(Marking):
    caught_by = ("test_a_redrive_and_a_compensation_mark_nobody",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        for change in changes:
            if change.next.terminal and change.next.link_kind not in (None, Link.CHILD, Link.RETRY):
                await self.mark(change.next.parent_id or change.id)
        return outcomes


class MarksWhateverBecameOfTheChange(Marking):
    caught_by = (
        "test_a_change_that_was_refused_marks_nobody",
        "test_only_the_accepted_of_a_batch_mark",
    )

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        known = await self.inner.marked()
        outcomes = await self.inner.commit(changes)
        marked = [mark.id for mark in await self.new_marks(known)]
        for change in changes:
            parent = change.next.parent_id
            if change.next.terminal and parent is not None and parent not in marked:
                await self.mark(parent)
        return outcomes


class MarksEveryEnd(Marking):
    caught_by = ("test_the_end_of_a_job_without_family_marks_nobody",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        await self.mark(*[change.id for change in changes if change.next.terminal])
        return outcomes


class MarksEveryWait(Marking):
    caught_by = ("test_any_other_wait_marks_nobody",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        await self.mark(*[one.id for one in changes if one.next.state is State.WAITING])
        return outcomes


class MarksAnnotations(Marking):
    caught_by = ("test_a_note_on_a_child_after_its_end_marks_nobody",)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        outcomes = await self.inner.commit(changes)
        await self.mark(*[one.id for one in changes if one.record.terminal])
        return outcomes


class UnmarksTheWholeParent(Marking):
    caught_by = ("test_a_mark_that_came_since_stays",)

    async def unmark(self, marks: Sequence[Mark]) -> None:
        for mark in marks:
            await self.raw("DELETE FROM marks WHERE id = ?", mark.id.bytes)


class GivesNumbersAgain(Marking):
    caught_by = ("test_a_mark_never_passes_for_one_that_was_removed",)

    async def unmark(self, marks: Sequence[Mark]) -> None:
        await self.inner.unmark(marks)
        await self.raw("DELETE FROM sqlite_sequence WHERE name = 'marks'")


class ListsTheNewestMarks(Marking):
    caught_by = ("test_marks_come_oldest_first_up_to_the_limit",)

    async def marked(self, *, limit: int = 500) -> list[Mark]:
        return (await self.inner.marked(limit=10_000))[::-1][:limit]


class ListsEveryLinkedJob(Marking):
    caught_by = ("test_children_are_listed_by_parent_and_age",)

    async def children(
        self,
        parents: Sequence[JobId],
        *,
        live_only: bool = False,
        after: JobId | None = None,
        limit: int = 100,
    ) -> list[Job]:
        pages = [await self.inner.find(Query(parent_id=parent)) for parent in sorted(set(parents))]
        return [job for page in pages for job in page.jobs[::-1]]


class LimitsChildrenAsAWhole(Marking):
    caught_by = ("test_children_are_listed_by_parent_and_age",)

    async def children(
        self,
        parents: Sequence[JobId],
        *,
        live_only: bool = False,
        after: JobId | None = None,
        limit: int = 100,
    ) -> list[Job]:
        found = await self.inner.children(parents, live_only=live_only, after=after, limit=limit)
        return found[:limit]


class KnowsNoFamilyThatOnlyWaits(Marking):
    caught_by = ("test_families_are_parents_of_live_children_and_those_who_wait_for_any",)

    async def families(self, *, after: JobId | None = None, limit: int = 500) -> list[JobId]:
        found = await self.inner.families(after=after, limit=limit)
        live = {job.parent_id for job in await self.inner.children(found, live_only=True)}
        return [id_ for id_ in found if id_ in live]


DEFECTS: tuple[type[Wrapped], ...] = (
    MarksNobodyAtAnEnd,
    MarksNobodyAtABirth,
    MarksForEveryLink,
    MarksWhateverBecameOfTheChange,
    MarksEveryEnd,
    MarksEveryWait,
    MarksAnnotations,
    UnmarksTheWholeParent,
    GivesNumbersAgain,
    ListsTheNewestMarks,
    ListsEveryLinkedJob,
    LimitsChildrenAsAWhole,
    KnowsNoFamilyThatOnlyWaits,
)
