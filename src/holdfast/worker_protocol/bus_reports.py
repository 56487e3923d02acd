"""What a bridge reports of the jobs that a bus owns: what workers reported, and what it did itself.

A worker's word counts only as far as A10 lets it: each report here checks that against the record
and the store's clock. `apply_reports` writes them like those of workers over HTTP.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import Refused
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.lease import is_over_time
from holdfast.lifecycle.payload import encode_body
from holdfast.lifecycle.record import LoggedEvent
from holdfast.lifecycle.times import is_past
from holdfast.lifecycle.transitions import OWNER_LEAVES
from holdfast.worker_protocol.report_commands import (
    Situation,
    became_cancel,
    build_failure,
    is_failure,
)
from holdfast.worker_protocol.reports import FailReport, OwnReport, TimeOutReport, Trouble

FORBIDDEN = "forbidden_status"
"""The code of a status that is not a worker's to report."""


class RunEnd(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a worker reported of the end of a run, all of which is kept (A9)."""

    worker: str
    result_ptr: str | None = None
    execution_ms: int | None = None
    artifact_ptrs: tuple[str, ...] = ()
    error: Trouble | None = None
    """Beside another status than a failure, which carries it itself."""

    def add_to(self, command: c.Command) -> c.Command:
        """Return the command with the facts of the run, and with its error."""
        if not isinstance(command, c.EndOfRun):
            return command
        known = replace(
            command,
            worker=self.worker,
            result_ptr=self.result_ptr,
            execution_ms=self.execution_ms,
        )
        if self.error is None or not isinstance(known, c.Failing | c.Cancel):
            return known
        return replace(known, body=encode_body(msgspec.to_builtins(self.error), "error"))


class BusStart(OwnReport, frozen=True, kw_only=True):
    """A worker has started it."""

    needs_request: ClassVar[bool] = False

    def command_on(self, situation: Situation) -> c.Command:
        return c.Start(actor=situation.actor)

    def is_written_by(self, event: LoggedEvent) -> bool:
        return c.written_by(event, c.Start, c.Adopt)


class BusProgress(OwnReport, frozen=True, kw_only=True):
    """A worker reports how far it is."""

    needs_request: ClassVar[bool] = False

    data: dict[str, Any]

    def command_on(self, situation: Situation) -> c.Command:
        return c.Progress(actor=situation.actor, body=encode_body(self.data, "progress"))

    def is_written_by(self, event: LoggedEvent) -> bool:
        # The attempt had ended: nothing is left to write.
        return event.type in OWNER_LEAVES


class BusComplete(OwnReport, frozen=True, kw_only=True):
    """A worker reports success. Its result is where `result_ptr` points."""

    needs_request: ClassVar[bool] = False

    end: RunEnd

    def command_on(self, situation: Situation) -> c.Command:
        body = encode_body(msgspec.to_builtins(self.end), "result")
        return self.end.add_to(c.Complete(actor=situation.actor, body=body))

    def is_written_by(self, event: LoggedEvent) -> bool:
        return c.written_by(event, c.Complete) and _is_by(self.end, event)


class BusFail(OwnReport, frozen=True, kw_only=True):
    """A worker reports a failure; the terms of the topic decide what follows."""

    end: RunEnd
    error: Trouble
    permanent: bool = False

    def command_on(self, situation: Situation) -> c.Command:
        return self.end.add_to(build_failure(self._as_report(), situation))

    def is_written_by(self, event: LoggedEvent) -> bool:
        return is_failure(self._as_report(), event)

    def _as_report(self) -> FailReport:
        return FailReport(
            internal_id=self.internal_id,
            attempt=self.attempt,
            error=self.error,
            kind="permanent" if self.permanent else "transient",
        )


class BusTimeOut(OwnReport, frozen=True, kw_only=True):
    """A worker, or the bridge, reports that a time limit has passed: it must have, by the store."""

    end: RunEnd | None = None

    def command_on(self, situation: Situation) -> c.Command:
        job, now = situation.job, situation.now
        if not is_over_time(job, now):
            raise Refused(
                f"job {job.public_id} is not past its timeout or deadline",
                code="not_timed_out",
                job_id=job.public_id,
            )
        if is_past(job.deadline_at, now):
            command: c.Command = c.TimeOut(
                actor=situation.actor, error_code="deadline", reason="deadline passed"
            )
        else:
            report = TimeOutReport(internal_id=self.internal_id, attempt=self.attempt)
            command = build_failure(report, situation)
        return command if self.end is None else self.end.add_to(command)

    def is_written_by(self, event: LoggedEvent) -> bool:
        return c.written_by(event, c.TimeOut, c.Retry, c.DeadLetter) or became_cancel(event)


class BusCancelled(OwnReport, frozen=True, kw_only=True):
    """It was asked to end, and a worker reports that it did; or the grace is over, and none did."""

    needs_request: ClassVar[bool] = False

    end: RunEnd | None = None

    def command_on(self, situation: Situation) -> c.Command:
        seen = self.end is not None
        command = c.Cancel(actor=situation.actor, gone=seen)
        return command if self.end is None else self.end.add_to(command)

    def is_written_by(self, event: LoggedEvent) -> bool:
        return c.written_by(event, c.Cancel)


class BusRelease(OwnReport, frozen=True, kw_only=True):
    """It certainly did not reach a worker, and goes back to its queue."""

    needs_request: ClassVar[bool] = False

    reason: str
    free_releases: int = 10
    """So often it is due again at once; then after a pause that costs nothing either."""

    def command_on(self, situation: Situation) -> c.Command:
        if not situation.job.claimed:
            raise Refused(
                f"job {situation.job.public_id} has started",
                code="already_started",
                job_id=situation.job.public_id,
            )
        often = situation.job.releases >= self.free_releases
        return c.Release(actor=situation.actor, reason=self.reason, unserved=often)

    def is_written_by(self, event: LoggedEvent) -> bool:
        return c.written_by(event, c.Release) or became_cancel(event)


def _is_by(end: RunEnd, event: LoggedEvent) -> bool:
    facts = event.facts
    return (facts.worker, facts.result_ptr) == (end.worker, end.result_ptr)
