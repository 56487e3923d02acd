"""Keys that a submitter gives a job: which it asks for, who wins them, when they are free again.

A plan first returns which keys to take. The store reports which it took and who holds the others.
Then the plan knows for each job whether it is new, is an existing one, or is refused
(resolution 13).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.lifecycle.command_spec import CommandSpec
from holdfast.lifecycle.record import Draft, DraftEvent, Job, JobId, Key, LoggedEvent, NewJob
from holdfast.lifecycle.states import KeyKind, Retention
from holdfast.lifecycle.submission import Submission, content_digest

KeyName: TypeAlias = tuple[str, int, str]
"""A key as a store finds it: tenant, kind, key."""

_UNTIL_CLEANED = KeyKind.CLIENT_JOB_ID.code | KeyKind.DEDUPE.code
_NETWORK = "network"
"""How `Facts.asked` names the limit that changes a body."""
_BODY_MUST_MATCH = {
    KeyKind.JOB_ID.code: ("key_conflict", "job_id"),
    KeyKind.REQUEST_ID.code: ("request_id_reused", "request_id"),
}


class KeyHolder(Struct, frozen=True):
    """The job that holds a key, and the digest of what it was submitted with."""

    id: UUID
    digest: bytes


class Existing(Struct, frozen=True):
    """The job that a submit refers to instead of making a new one."""

    id: JobId


class KeyRefusal(Struct, frozen=True, kw_only=True):
    """A submit whose keys belong to another job than the one it asks for."""

    code: str
    message: str
    holder: JobId


KeyVerdict: TypeAlias = Existing | KeyRefusal | None
"""What a submit is instead of a new job; None if it is new."""


def has_keys(submission: Submission) -> bool:
    """Return whether a submitter gave any key."""
    return any(key is not None for _, key in _list_asked_keys(submission))


def keys_of(submission: Submission) -> tuple[Key, ...]:
    """Return the keys that a submit asks for."""
    asked = [(kind, key) for kind, key in _list_asked_keys(submission) if key is not None]
    if not asked:
        return ()
    content = submission.content or content_digest(submission)
    return tuple(Key(kind.code, key, content) for kind, key in asked)


def key_kinds(submission: Submission) -> int:
    """Return the kinds of these keys as bits, with how long the dedupe key is held."""
    kinds = sum(kind.code for kind, key in _list_asked_keys(submission) if key is not None)
    if submission.dedupe_key is not None and submission.unique_live:
        kinds |= KeyKind.DEDUPE_LIVE.code
    return kinds


def _list_asked_keys(submission: Submission) -> tuple[tuple[KeyKind, str | None], ...]:
    client = submission.client_job_id
    return (
        (KeyKind.JOB_ID, submission.job_id),
        (KeyKind.REQUEST_ID, submission.request_id),
        (KeyKind.CLIENT_JOB_ID, client and client.lower()),
        (KeyKind.DEDUPE, submission.dedupe_key),
    )


def freed_keys(before: Draft, after: Draft) -> int:
    """Return which kinds of keys a change frees: those whose term ends with it (resolution 13)."""
    if not after.key_kinds:
        return 0
    return _free_kinds(after) & ~_free_kinds(before)


def derived_keys(record: Job, first: LoggedEvent) -> tuple[Key, ...]:
    """Return the keys that a job holds now, from its first event and its record."""
    made = first.created
    if made is None or made.content is None:
        return ()
    held = record.key_kinds & ~_free_kinds(record)
    given = (
        (KeyKind.JOB_ID, made.job_id),
        (KeyKind.REQUEST_ID, first.request_id),
        (KeyKind.CLIENT_JOB_ID, made.client_job_id),
        (KeyKind.DEDUPE, made.dedupe_key),
    )
    return tuple(
        Key(kind.code, key, made.content)
        for kind, key in given
        if key is not None and held & kind.code
    )


def _free_kinds(record: Draft) -> int:
    """Return which kinds of a job's keys are free again."""
    kinds = record.key_kinds
    free = kinds & _UNTIL_CLEANED if record.retention is Retention.CLEANED else 0
    if kinds & KeyKind.DEDUPE_LIVE.code and record.terminal:
        free |= KeyKind.DEDUPE.code
    return free


class KeyPlan:
    """Decides who gets the keys of one batch of submits.

    A job that asks for a key which an earlier one of the batch asks for, too, comes `later`: in a
    plan of its own, when it is known which of the earlier ones got their keys.
    """

    def __init__(self, jobs: Sequence[NewJob]) -> None:
        self.jobs: list[NewJob] = []
        self.later: list[NewJob] = []
        self._taken: set[tuple[int, UUID]] = set()
        self._holders: dict[KeyName, KeyHolder] = {}
        self._verdicts: dict[JobId, Existing | KeyRefusal] = {}
        seen: set[KeyName] = set()
        for job in jobs:
            names = {_name(job, key) for key in job.keys}
            (self.jobs if seen.isdisjoint(names) else self.later).append(job)
            seen |= names

    def as_ids(self) -> list[tuple[NewJob, UUID]]:
        """List jobs whose given job_id could be the text of an internal id."""
        found = ((job, _read_id(job.record.job_id)) for job in self.jobs)
        return [(job, id_) for job, id_ in found if id_ is not None]

    def refers(self, job: NewJob, id_: UUID, digest: bytes | None) -> None:
        """Note that a job's given job_id is the text of an existing job's internal id.

        `digest` is that of the existing job's body: another body is another job (resolution 13).
        """
        verdict: Existing | KeyRefusal = Existing(JobId(id_))
        if digest != job.event.digest:
            verdict = _refuse_other_body(KeyKind.JOB_ID.code, str(id_), id_)
        self._verdicts[job.record.id] = verdict

    def wanted(self) -> list[tuple[str, Key, UUID]]:
        """List the keys that are neither taken nor held, with the job that asks for each."""
        return [
            (job.record.tenant, key, job.record.id)
            for job in self.jobs
            if job.record.id not in self._verdicts
            for key in job.keys
            if (key.kind, job.record.id) not in self._taken and _name(job, key) not in self._holders
        ]

    def took(self, taken: set[tuple[int, UUID]]) -> None:
        """Note which (kind, id) were inserted."""
        self._taken |= taken

    def held(self, holders: Mapping[KeyName, KeyHolder]) -> None:
        """Note who holds the keys that were wanted and not taken.

        A key that was neither taken nor has a holder was freed in between: it is still wanted.
        """
        self._holders |= holders

    def withdraw(self, ids: Collection[JobId]) -> list[UUID]:
        """Take jobs out of the plan; return those whose keys are to be given back."""
        withdrawn = [job for job in self.jobs if job.record.id in ids]
        self.jobs = [job for job in self.jobs if job.record.id not in ids]
        return [job.record.id for job in withdrawn if job.keys]

    def losers(self) -> list[UUID]:
        """List jobs that lost a key: those they took are to be given back."""
        return [job.record.id for job in self.jobs if self._lost(job)]

    def winners(self) -> list[NewJob]:
        """List the jobs to insert."""
        return [job for job in self.jobs if self.verdict(job) is None]

    def verdict(self, job: NewJob) -> KeyVerdict:
        """Return what a job is instead of a new one; None if it is new."""
        if (verdict := self._verdicts.get(job.record.id)) is not None:
            return verdict
        lost = self._lost(job)
        return _judge_lost_key(lost) if lost else None

    def _lost(self, job: NewJob) -> list[tuple[Key, KeyHolder]]:
        held = ((key, self._holders.get(_name(job, key))) for key in job.keys)
        return [(key, holder) for key, holder in held if holder is not None]


def _name(job: NewJob, key: Key) -> KeyName:
    return job.record.tenant, key.kind, key.key


def _read_id(text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        return None


def _judge_lost_key(lost: Sequence[tuple[Key, KeyHolder]]) -> Existing | KeyRefusal:
    holders = {holder.id for _, holder in lost}
    if len(holders) > 1:
        names = ", ".join(sorted(KeyKind.of(key.kind) for key, _ in lost))
        return KeyRefusal(
            code="key_conflict",
            message=f"the keys {names} belong to different jobs; submit with one of them",
            holder=JobId(lost[0][1].id),
        )
    for key, holder in lost:
        if key.kind in _BODY_MUST_MATCH and holder.digest != key.digest:
            return _refuse_other_body(key.kind, key.key, holder.id)
    return Existing(JobId(holders.pop()))


def _refuse_other_body(kind: int, key: str, holder: UUID) -> KeyRefusal:
    code, name = _BODY_MUST_MATCH[kind]
    return KeyRefusal(
        code=code,
        message=f"{name} {key!r} is taken by a job with another body; use a new one",
        holder=JobId(holder),
    )


def judge_known(job: NewJob, first: LoggedEvent | None) -> KeyRefusal | None:
    """Judge a submit whose internal id exists: its own, whose reply was lost, or another's.

    `first` is the first event of the existing job. None: it is this very submit.
    """
    mine = job.event
    if first and first.request_id == mine.request_id and _is_same_body(first, mine):
        return None
    return KeyRefusal(
        code="key_conflict",
        message=f"the id {job.record.id} belongs to another job; use a new one",
        holder=job.record.id,
    )


def _is_same_body(first: LoggedEvent, mine: DraftEvent) -> bool:
    """Return whether two bodies are the same but for the network, where rules have limited it.

    Other rules may be applied by now, so one body may be limited and the other not.
    """
    if first.digest == mine.digest:
        return True
    limited = any(_NETWORK in (event.facts.asked or ()) for event in (first, mine))
    asked = _without_network(mine.body) if limited else None
    return asked is not None and asked == _without_network(first.body)


def _without_network(body: bytes | None) -> CommandSpec | None:
    try:
        return replace(msgspec.json.decode(body or b"null", type=CommandSpec), network=None)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
