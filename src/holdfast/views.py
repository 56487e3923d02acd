"""Jobs as they are told to the outside: over HTTP, and read back by a client as the same record."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import Any
from uuid import UUID

from msgspec import Struct
from msgspec.structs import asdict

from holdfast.errors import BadData
from holdfast.json_format import Instant, instant, micros
from holdfast.lifecycle.job import Job, JobId, Record, Signal
from holdfast.lifecycle.policy import DEFAULT_POLICY, POLICY_SPANS, Policy
from holdfast.lifecycle.states import Cancel, Kind, Letter, Link, Priority, Retention, State
from holdfast.ports import LogLine
from holdfast.spans import span_micros, span_text

__all__ = ["Instant", "JobView", "LogView", "PolicyView", "instant", "micros"]


class PolicyView(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The terms of a job. Spans are text with a unit (`60s`); in a request also seconds."""

    max_attempts: int = DEFAULT_POLICY.max_attempts
    idempotent: bool = DEFAULT_POLICY.idempotent
    on_exhausted: str = DEFAULT_POLICY.on_exhausted
    letter_on_fail: bool = DEFAULT_POLICY.letter_on_fail
    on_silence: str = DEFAULT_POLICY.on_silence
    backoff_first: str | float = span_text(DEFAULT_POLICY.backoff_first)
    backoff_factor: float = DEFAULT_POLICY.backoff_factor
    backoff_max: str | float = span_text(DEFAULT_POLICY.backoff_max)
    lease: str | float = span_text(DEFAULT_POLICY.lease)
    heartbeat: str | float = span_text(DEFAULT_POLICY.heartbeat)
    start_timeout: str | float | None = None
    timeout: str | float | None = None
    host_recovery: str | float = span_text(DEFAULT_POLICY.host_recovery)
    compensates: bool = DEFAULT_POLICY.compensates

    @classmethod
    def of(cls, policy: Policy) -> PolicyView:
        """Show a policy."""
        return _policy_view(policy)

    def policy(self) -> Policy:
        """Read the policy back; BadData names the span that is none."""
        terms: dict[str, Any] = asdict(self)
        for name in POLICY_SPANS:
            if terms[name] is not None:
                try:
                    terms[name] = span_micros(terms[name], name)
                except ValueError as error:
                    raise BadData(str(error), field=f"policy.{name}") from error
        return Policy(**terms)


# The same few come with every job.
@lru_cache(maxsize=1024)
def _policy_view(policy: Policy) -> PolicyView:
    terms: dict[str, Any] = asdict(policy)
    spans = {name: terms[name] for name in POLICY_SPANS if terms[name] is not None}
    return PolicyView(**terms | {name: span_text(one) for name, one in spans.items()})


class JobView(Struct, frozen=True, kw_only=True):
    """A job. `id` is what it is asked for by: the id its submitter gave, else the internal one."""

    id: str
    internal_id: UUID
    tenant: str
    kind: Kind
    task: str
    task_version: str | None = None
    """Only workers that have the task in this version may claim it; null: in any."""
    queue: str
    priority: Priority
    needs: tuple[str, ...]
    policy: PolicyView
    state: State
    rev: int
    """Rises with every change; `If-Match` compares it."""
    attempt: int
    failures: int
    releases: int
    created_at: Instant
    updated_at: Instant
    run_at: Instant | None
    started_at: Instant | None
    finished_at: Instant | None
    deadline_at: Instant | None
    timeout_at: Instant | None
    owner: str | None
    lost_owner: str | None
    """The last owner, if it was lost: nobody knows whether its run has ended."""
    lease_expires_at: Instant | None
    held_by: tuple[str, ...]
    cancel_requested: Cancel | None
    wait_for: str | None
    signals: tuple[str, ...]
    """Names of signals that no wait has consumed; the answer to a signal may name that one only."""
    signal_revs: tuple[int, ...]
    pending_signals: int
    """How many signals no wait has consumed."""
    error_code: str | None
    exit_code: int | None
    letter: Letter | None
    retention: Retention
    parent_id: UUID | None
    link_kind: Link | None
    workflow_id: str | None
    step_index: int | None
    cpus: int | None
    memory_mb: int | None

    @classmethod
    def of(cls, job: Job) -> JobView:
        """Tell a record."""
        plain: dict[str, Any] = dict(zip(_SAME, _get_same(job), strict=True))
        dates: dict[str, Any] = dict(zip(_TIMES, map(_date, _get_times(job)), strict=True))
        return cls(
            id=job.public_id,
            internal_id=job.id,
            needs=tuple(sorted(job.needs)),
            policy=PolicyView.of(job.policy),
            signals=tuple(one.name for one in job.signals),
            signal_revs=tuple(one.rev for one in job.signals),
            pending_signals=job.pending_signals,
            **plain,
            **dates,
        )

    def record(self) -> Job:
        """Read the record back; what only the store needs of it is left out."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in _SAME}
        times: dict[str, Any] = {name: _time(getattr(self, name)) for name in _TIMES}
        given = None if self.id == str(self.internal_id) else self.id
        signals = zip(self.signals, self.signal_revs, strict=True)
        return Record(
            id=JobId(self.internal_id),
            job_id=given,
            needs=frozenset(self.needs),
            policy=self.policy.policy(),
            signals=tuple(Signal(name, rev) for name, rev in signals),
            unread_signals=self.pending_signals - len(self.signals),
            **plain,
            **times,
        )


class LogView(Struct, frozen=True, kw_only=True):
    """A line that a handler said by `ctx.log`, at a time of its worker's clock."""

    position: int
    """Of the last line that was read: `?after=` goes on there."""
    attempt: int
    at: Instant
    level: int
    """As Python's logging counts: 20 is INFO, 40 is ERROR."""
    message: str

    @classmethod
    def of(cls, line: LogLine) -> LogView:
        """Tell a line."""
        return cls(
            position=line.position,
            attempt=line.attempt,
            at=instant(line.at),
            level=line.level,
            message=line.message,
        )

    def line(self, id: JobId) -> LogLine:
        """Read the line back."""
        return LogLine(
            id=id,
            position=self.position,
            attempt=self.attempt,
            at=micros(self.at),
            level=self.level,
            message=self.message,
        )


_APART = ("id", "internal_id", "needs", "policy", "signals", "signal_revs", "pending_signals")
_TIMES = tuple(name for name in JobView.__struct_fields__ if name.endswith("_at"))
_SAME = tuple(name for name in JobView.__struct_fields__ if name not in (*_APART, *_TIMES))


_get_same, _get_times = attrgetter(*_SAME), attrgetter(*_TIMES)


def _date(time: int | None) -> Instant | None:
    return None if time is None else instant(time)


def _time(date: Instant | None) -> int | None:
    return None if date is None else micros(date)
