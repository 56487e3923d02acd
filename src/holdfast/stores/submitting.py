"""Who wins a key: the rules of resolution 13, on what a store found.

A plan first says which keys to take; the store tells which it took and who holds the others; then
the plan knows for each job whether it is new, is an existing one, or is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias
from uuid import UUID

from msgspec import Struct

from holdfast.lifecycle.job import Job, JobId, Key, LoggedEvent, NewJob
from holdfast.lifecycle.states import KeyKind
from holdfast.ports import SubmitOutcome, SubmitRefused, Submitted

Asked: TypeAlias = tuple[str, int, str]
"""A key to look up: tenant, kind, key."""

_BODY_MUST_MATCH = {
    KeyKind.JOB_ID.code: ("key_conflict", "job_id"),
    KeyKind.REQUEST_ID.code: ("request_id_reused", "request_id"),
}


class Holder(Struct, frozen=True):
    """Who holds a key, and what it was submitted with."""

    id: UUID
    digest: bytes


class Existing(Struct, frozen=True):
    """The job that a submit refers to instead of making a new one."""

    id: JobId


class Enlisted(Struct, frozen=True, kw_only=True):
    """What became of a submit inside a transaction that is the caller's to commit."""

    id: JobId
    job_id: str
    """The public id."""
    created: bool


class Plan:
    """Settles the keys of one batch of submits.

    A job that wants a key which an earlier one of the batch wants, too, comes `later`: in a plan of
    its own, when it is known who of the earlier ones has got its keys.
    """

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        """Begin with nothing taken and nothing known to be held."""
        self.jobs: list[NewJob] = []
        self.later: list[NewJob] = []
        self._taken: set[tuple[int, UUID]] = set()
        self._holders: dict[Asked, Holder] = {}
        self._settled: dict[JobId, Existing | SubmitRefused] = {}
        seen: set[Asked] = set()
        for job in jobs:
            asked = {_asked(job, key) for key in job.keys}
            (self.jobs if seen.isdisjoint(asked) else self.later).append(job)
            seen |= asked

    def as_ids(self) -> list[tuple[NewJob, UUID]]:
        """List jobs whose given job_id could be the text of an internal id."""
        found = ((job, _as_id(job.record.job_id)) for job in self.jobs)
        return [(job, id_) for job, id_ in found if id_ is not None]

    def refers(self, job: NewJob, id_: UUID, digest: bytes | None) -> None:
        """Hear that a job's given job_id is the text of an existing job's internal id.

        `digest` is that of the existing job's body: another body is another job (resolution 13).
        """
        existing: Existing | SubmitRefused = Existing(JobId(id_))
        if digest != job.event.digest:
            existing = _other_body(KeyKind.JOB_ID.code, str(id_), id_)
        self._settled[job.record.id] = existing

    def wanted(self) -> list[tuple[str, Key, UUID]]:
        """List the keys that are neither taken nor held, with the job that wants each."""
        return [
            (job.record.tenant, key, job.record.id)
            for job in self.jobs
            if job.record.id not in self._settled
            for key in job.keys
            if (key.kind, job.record.id) not in self._taken
            and _asked(job, key) not in self._holders
        ]

    def took(self, taken: set[tuple[int, UUID]]) -> None:
        """Hear which (kind, id) were inserted."""
        self._taken |= taken

    def held(self, holders: dict[Asked, Holder]) -> None:
        """Hear who holds what was wanted and not taken.

        A key that was neither taken nor has a holder was freed in between: it is wanted still.
        """
        self._holders |= holders

    def refuse(self, refused: Mapping[JobId, SubmitRefused]) -> list[UUID]:
        """Refuse jobs that would have been new; return those whose keys are to be given back."""
        self._settled |= refused
        return [job.record.id for job in self.jobs if job.keys and job.record.id in refused]

    def losers(self) -> list[UUID]:
        """List jobs that lost a key: those they took are to be given back."""
        return [job.record.id for job in self.jobs if self._lost(job)]

    def winners(self) -> list[NewJob]:
        """List the jobs to insert."""
        return [job for job in self.jobs if self.verdict(job) is None]

    def verdict(self, job: NewJob) -> Existing | SubmitRefused | None:
        """Tell what a job is instead of a new one; None if it is new."""
        if job.record.id in self._settled:
            return self._settled[job.record.id]
        lost = self._lost(job)
        return _judge(lost) if lost else None

    def _lost(self, job: NewJob) -> list[tuple[Key, Holder]]:
        held = ((key, self._holders.get(_asked(job, key))) for key in job.keys)
        return [(key, holder) for key, holder in held if holder is not None]


def _asked(job: NewJob, key: Key) -> Asked:
    return job.record.tenant, key.kind, key.key


def _as_id(text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        return None


def _judge(lost: list[tuple[Key, Holder]]) -> Existing | SubmitRefused:
    holders = {holder.id for _, holder in lost}
    if len(holders) > 1:
        names = ", ".join(sorted(KeyKind.of(key.kind) for key, _ in lost))
        return SubmitRefused(
            code="key_conflict",
            message=f"the keys {names} belong to different jobs; submit with one of them",
            holder=JobId(lost[0][1].id),
        )
    for key, holder in lost:
        if key.kind in _BODY_MUST_MATCH and holder.digest != key.digest:
            return _other_body(key.kind, key.key, holder.id)
    return Existing(JobId(holders.pop()))


def _other_body(kind: int, key: str, holder: UUID) -> SubmitRefused:
    code, name = _BODY_MUST_MATCH[kind]
    return SubmitRefused(
        code=code,
        message=f"{name} {key!r} is taken by a job with another body; use a new one",
        holder=JobId(holder),
    )


def settle_known(job: NewJob, known: Job, first: LoggedEvent | None) -> SubmitOutcome:
    """Answer a submit whose internal id is there: its own, whose reply was lost, or another's."""
    mine = job.event
    if first and (first.digest, first.request_id) == (mine.digest, mine.request_id):
        return Submitted(known, created=True)
    return SubmitRefused(
        code="key_conflict",
        message=f"the id {known.id} is taken by another job; mint a new one",
        holder=known.id,
    )
