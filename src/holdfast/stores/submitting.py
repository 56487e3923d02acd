"""Who wins a key: the rules of resolution 13, on what a store found.

A plan first says which keys to take; the store tells which it took and who holds the others; then
the plan knows for each job whether it is new, is an existing one, or is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias
from uuid import UUID

from msgspec import Struct

from holdfast.lifecycle.job import JobId, Key, NewJob
from holdfast.lifecycle.states import KeyKind
from holdfast.ports import SubmitRefused

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


class Plan:
    """Settles the keys of one batch of submits."""

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        """Begin with all jobs as winners; a key wanted twice in the batch goes to the first."""
        self.jobs = jobs
        self._first: dict[Asked, NewJob] = {}
        self._within: dict[JobId, NewJob] = {}
        self._holders: dict[Asked, Holder] = {}
        self._lost: dict[JobId, list[tuple[Key, Holder]]] = {}
        self._missing: dict[JobId, list[Key]] = {}
        self._refers: dict[JobId, JobId] = {}
        for job in jobs:
            self._enter(job)

    def _enter(self, job: NewJob) -> None:
        tenant = job.record.tenant
        asked = [(tenant, key.kind, key.key) for key in job.keys]
        for one in asked:
            earlier = self._first.get(one)
            if earlier is not None:
                self._within[job.record.id] = earlier
                return
        self._first.update(dict.fromkeys(asked, job))

    def as_ids(self) -> list[tuple[NewJob, UUID]]:
        """List jobs whose given job_id could be the text of an internal id."""
        found = []
        for job in self.jobs:
            if (id_ := _as_id(job.record.job_id)) is not None:
                found.append((job, id_))
        return found

    def refers(self, job: NewJob, id_: UUID) -> None:
        """Hear that a job's given job_id is the text of an existing job's internal id."""
        self._refers[job.record.id] = JobId(id_)

    def wanted(self) -> list[tuple[str, Key, UUID]]:
        """List the keys to take, with the job that takes each."""
        return [
            (job.record.tenant, key, job.record.id)
            for job in self.jobs
            if not self._settled(job)
            for key in job.keys
        ]

    def _settled(self, job: NewJob) -> bool:
        return job.record.id in self._within or job.record.id in self._refers

    def took(self, taken: set[tuple[int, UUID]]) -> None:
        """Hear which (kind, id) were inserted."""
        for job in self.jobs:
            if self._settled(job):
                continue
            missing = [key for key in job.keys if (key.kind, job.record.id) not in taken]
            if missing:
                self._missing[job.record.id] = missing

    def to_look_up(self) -> list[Asked]:
        """List the keys that were not taken: their holders decide."""
        return [
            (job.record.tenant, key.kind, key.key)
            for job in self.jobs
            for key in self._missing.get(job.record.id, ())
        ]

    def held(self, holders: dict[Asked, Holder]) -> None:
        """Hear who holds what was asked for."""
        for job in self.jobs:
            if self._settled(job):
                continue
            for key in job.keys:
                asked = (job.record.tenant, key.kind, key.key)
                holder = holders.get(asked)
                if holder is not None and holder.id != job.record.id:
                    self._lost.setdefault(job.record.id, []).append((key, holder))

    def losers(self) -> list[UUID]:
        """List jobs that took some keys and lost others: theirs are to be given back."""
        return list(self._lost)

    def winners(self) -> list[NewJob]:
        """List the jobs to insert."""
        return [
            job for job in self.jobs if job.record.id not in self._lost and not self._settled(job)
        ]

    def verdict(self, job: NewJob) -> Existing | SubmitRefused | None:
        """Tell what a job is instead of a new one; None if it is new."""
        if job.record.id in self._refers:
            return Existing(self._refers[job.record.id])
        lost = self._lost.get(job.record.id)
        if lost:
            return _judge(job, lost)
        earlier = self._within.get(job.record.id)
        if earlier is None:
            return None
        digests = {key.kind: key.digest for key in earlier.keys}
        mine = [
            (key, Holder(earlier.record.id, digests[key.kind]))
            for key in job.keys
            if key.kind in digests
        ]
        verdict = self.verdict(earlier)
        if isinstance(verdict, Existing):
            mine = [(key, Holder(verdict.id, holder.digest)) for key, holder in mine]
        return verdict if isinstance(verdict, SubmitRefused) else _judge(job, mine)


def _as_id(text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        return None


def _judge(job: NewJob, lost: list[tuple[Key, Holder]]) -> Existing | SubmitRefused:
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
            code, name = _BODY_MUST_MATCH[key.kind]
            return SubmitRefused(
                code=code,
                message=f"{name} {key.key!r} is taken by a job with another body; use a new one",
                holder=JobId(holder.id),
            )
    return Existing(JobId(holders.pop()))
