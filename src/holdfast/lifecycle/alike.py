"""Jobs alike: decided submits that differ in id and body alone, kept as one decision.

A value, and no law of its own: the first job is decided by `lifecycle.submit`, and every other one
is that decision with another id and body. `AlikeJobs.expand` returns them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from holdfast.lifecycle.holds import UNADMITTED
from holdfast.lifecycle.payload import digest, sound_body
from holdfast.lifecycle.record import DraftEvent, JobId, NewJob


class AlikeJobs(Struct, frozen=True, kw_only=True, gc=False):
    """Decided submits that differ in id and body alone."""

    first: NewJob
    """The decision that holds for all of them; its id and body are nobody's."""
    ids: Sequence[bytes]
    """The 16 bytes of each id: as objects they would cost as much as all the rest."""
    bodies: Sequence[bytes]
    digests: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, end: int) -> AlikeJobs:
        """Return some of them."""
        return AlikeJobs(
            first=self.first,
            ids=self.ids[start:end],
            bodies=self.bodies[start:end],
            digests=self.digests[start:end],
        )

    def expand(self) -> list[NewJob]:
        """Return each as a decision of its own."""
        return [
            _another(self.first, job_id_of(id_), body, digested)
            for id_, body, digested in zip(self.ids, self.bodies, self.digests, strict=True)
        ]


def job_id_of(id: bytes) -> JobId:
    """Return an id that is kept as bytes."""
    return JobId(UUID(bytes=id))


def may_be_alike(job: NewJob) -> bool:
    """Return whether others may be submitted by the decision on this job.

    Not one with keys, which are its own, nor one that is held or has a parent: a store writes more
    for it than a row and an event, and has no place for these in what alike jobs share.
    """
    record = job.record
    return (
        not job.keys
        and not record.key_kinds
        and record.job_id is None
        and job.event.request_id is None
        and record.parent_id is None
        and record.link_kind is None
        and not record.held_by
        and record.state not in UNADMITTED
    )


def make_alike(first: NewJob, ids: Sequence[bytes], bodies: Sequence[bytes]) -> AlikeJobs:
    """Decide submits that equal a decided one (`may_be_alike`), but for their ids and bodies."""
    kept = [sound_body(body, "body") for body in bodies]
    return AlikeJobs(first=first, ids=ids, bodies=kept, digests=[digest(body) for body in kept])


def gather_alike(jobs: Sequence[NewJob]) -> AlikeJobs | None:
    """Return decided submits that differ in id and body alone as one decision; None if others.

    Only for certain: what was not made of the same `Created` and `Facts` is taken for different.
    """
    first = jobs[0]
    if not may_be_alike(first) or not all(_is_like(first, job) for job in jobs):
        return None
    return AlikeJobs(
        first=first,
        ids=[job.event.id.bytes for job in jobs],
        bodies=[job.event.body or b"null" for job in jobs],
        digests=[job.event.digest or b"" for job in jobs],
    )


def _is_like(first: NewJob, job: NewJob) -> bool:
    one, other = first.event, job.event
    return (
        ask_alike(one, other)
        and one.run_at == other.run_at
        and one.deadline_at == other.deadline_at
        and one.correlation_id == other.correlation_id
        and other.request_id is None
        and not job.keys
        and other.body is not None
    )


def ask_alike(one: DraftEvent, other: DraftEvent) -> bool:
    """Return whether two first events ask for the same for certain: what many share was made once.

    They may still differ in id, body, times, correlation and keys.
    """
    return (
        one.created is other.created
        and one.to_state is other.to_state
        and one.facts is other.facts
        and one.actor == other.actor
        and one.reason == other.reason
    )


def decide_like(first: NewJob, id: JobId, body: bytes) -> NewJob:
    """Decide a submit that equals a decided one without keys, but for its id and body."""
    body = sound_body(body, "body")
    return _another(first, id, body, digest(body))


def _another(first: NewJob, id: JobId, body: bytes, digested: bytes) -> NewJob:
    return NewJob(
        record=replace(first.record, id=id),
        event=replace(first.event, id=id, body=body, digest=digested),
    )
