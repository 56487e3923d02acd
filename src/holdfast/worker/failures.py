"""Failures: what a worker logs, keeps and reports when an attempt fails or is lost.

Each failure is a line in the process's log (limited in rate, its traceback once), a line in the
job's own log, and a call of the app's `on_failure` hooks, in a thread of their own.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.errors import BoxRefused, ErrorReport, RemoteError, StepMismatch
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import MISMATCH, Change, Draft, Job, JobId
from holdfast.lifecycle.retry import backoff
from holdfast.lifecycle.transitions import TARGETS
from holdfast.ports.box import CommandFailed, CommandStopped
from holdfast.ports.models import LOG_TEXT, LogEntry
from holdfast.queries.error_reports import writable
from holdfast.telemetry.redaction import is_redacting
from holdfast.worker.owned_job import OwnedJob

log = logging.getLogger(__name__)

LINES = 10
"""How many failures of one task with one outcome and error are logged in a window."""
WINDOW_SECONDS = 10.0
MOST_KINDS = 1000
"""Kinds of failures whose rate is remembered."""
MOST_WAITING = 1000
"""Failures that wait for the hooks; beyond that, hooks miss some, and it is logged."""
HOOK_LIMIT_SECONDS = 2.0
"""How long a worker that ends waits for its hooks."""

Keep: TypeAlias = Callable[[LogEntry], None]


class Failure(Struct, frozen=True, kw_only=True):
    """One failed or lost attempt, as `app.on_failure` hooks receive it."""

    job_id: str
    task: str
    queue: str
    tenant: str
    attempt: int
    outcome: str
    """What followed: `retrying`, `failed`, `timed_out`, `dead_lettered`, `parked` (this code does
    not have the recorded steps), or `lost` (the worker lost the job; another one may run it)."""
    code: str
    """The error's stable code."""
    message: str
    """The error's type and text, redacted if the app redacts."""
    error: BaseException | None
    """The exception as the handler raised it, not redacted; None where there was none."""
    retry_in_seconds: float | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    labels: dict[str, str] = {}


Hook: TypeAlias = Callable[[Failure], object]

_OUTCOMES: dict[type[c.Command], str] = {
    kind: TARGETS[kind.operation] for kind in (c.Retry, c.Fail, c.TimeOut, c.DeadLetter)
}


class _Report(Struct, frozen=True, kw_only=True):
    """What is known of one failed or lost attempt."""

    job: OwnedJob
    outcome: str
    level: int
    code: str
    text: str
    detail: ErrorReport | None = None
    """The error as it is stored, redacted if the app redacts."""
    error: BaseException | None = None
    retry_in: float | None = None


class Failures:
    """Reports the failures of one worker's attempts; on its event loop."""

    def __init__(self, keep_log: Keep, hooks: Sequence[Hook] = ()) -> None:
        self._keep_log = keep_log
        self._lines = JobLines(log)
        self._hooks = HookThread(hooks)

    def ended(self, job: OwnedJob, command: c.Command, error: BaseException | None) -> None:
        """Report how an attempt ended, if it failed or could not be made here. Never raises."""
        if isinstance(command, c.Release) and command.unserved:
            log.warning("job %s is given back: %s", job.record.public_id, command.reason)
        self._report(lambda: _describe_failure(job, command, error))

    def lost(self, job: OwnedJob, why: str) -> None:
        """Report that an attempt lost its job. Never raises."""
        self._report(lambda: _lost(job, why))

    def _report(self, make: Callable[[], _Report | None]) -> None:
        """Report to each place, though another one fails: by then the job has ended."""
        try:
            report = make()
        except Exception:  # noqa: BLE001  the edge: a report must not hold up what follows it
            _not_reported()
            return
        if report is not None:
            for write in (self._keep_line, self._log_line, self._call_hooks):
                try:
                    write(report)
                except Exception:  # noqa: BLE001  a filter or a handler of logging may raise
                    _not_reported()

    def _keep_line(self, report: _Report) -> None:
        job = report.job.claimed.job
        traceback = "" if report.detail is None else report.detail.traceback
        self._keep_log(log_entry(job.id, job.attempt, report.level, report.text, traceback))

    def _log_line(self, report: _Report) -> None:
        claimed, detail = report.job.claimed, report.detail
        # Redacted, the exception itself must not reach a formatter.
        shown = RemoteError(detail) if detail is not None and is_redacting() else report.error
        self._lines.write(
            claimed.job,
            report.level,
            report.text,
            kind=(report.outcome, "" if detail is None else detail.type),
            error=shown,
            correlation_id=claimed.correlation_id,
            trace_id=claimed.created.trace_id,
        )

    def _call_hooks(self, report: _Report) -> None:
        claimed, detail = report.job.claimed, report.detail
        job = claimed.job
        self._hooks.call(
            Failure(
                job_id=job.public_id,
                task=job.task,
                queue=job.queue,
                tenant=job.tenant,
                attempt=job.attempt,
                outcome=report.outcome,
                code=report.code,
                message=report.text if detail is None else f"{detail.type}: {detail.message}",
                error=report.error,
                retry_in_seconds=report.retry_in,
                correlation_id=claimed.correlation_id,
                trace_id=claimed.created.trace_id,
                labels=claimed.created.labels,
            )
        )

    def close(self) -> None:
        """Wait, not for long, until the hooks have seen everything. Blocks."""
        self._hooks.close(HOOK_LIMIT_SECONDS)


def _describe_failure(
    job: OwnedJob, command: c.Command, error: BaseException | None
) -> _Report | None:
    """Describe how an attempt ended; None if it did not fail."""
    if isinstance(command, c.Wait):
        return _describe_wait_for_code(job, command, error)
    outcome = _OUTCOMES.get(type(command))
    if outcome is None or not isinstance(command, c.Failing):
        return None
    detail = _error_report(command)
    retry_in = _retry_in(job, command)
    follows = _follows(outcome, retry_in, linked=bool(command.submits))
    if command.error_code == "timeout":
        error = error or TimeoutError(detail.message)
    if isinstance(error, CommandFailed | CommandStopped | BoxRefused):
        # A command has no traceback, and that of its runner shows nothing.
        error = None
    attempt = job.record.attempt
    return _Report(
        job=job,
        outcome=outcome,
        level=logging.WARNING if retry_in is not None else logging.ERROR,
        code=command.error_code,
        text=f"attempt {attempt} failed: {detail.type}: {detail.message}; {follows}",
        detail=detail,
        error=error,
        retry_in=retry_in,
    )


def _describe_wait_for_code(
    job: OwnedJob, command: c.Wait, error: BaseException | None
) -> _Report | None:
    """Describe why a worker suspended a job; None where its handler did."""
    if command.signal != MISMATCH:
        return None
    reason = command.reason or "its code does not have the recorded steps"
    return _Report(
        job=job,
        outcome="parked",
        level=logging.WARNING,
        code=StepMismatch.code,
        text=f"attempt {job.record.attempt} is suspended until matching code is deployed: {reason}",
        detail=ErrorReport(type="StepMismatch", message=reason, code=StepMismatch.code),
        error=error,
    )


def _lost(job: OwnedJob, why: str) -> _Report:
    text = f"attempt {job.record.attempt} is lost: {why}"
    return _Report(job=job, outcome="lost", level=logging.WARNING, code="lease_lost", text=text)


def _not_reported() -> None:
    with suppress(Exception):
        log.exception("a failure could not be reported")


class JobLines:
    """Lines about jobs in the process's log: some of each kind, its traceback once."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._limit = RateLimit()

    def write(
        self,
        job: Job | Draft,
        level: int,
        text: str,
        *,
        kind: object,
        error: BaseException | None = None,
        **fields: object,
    ) -> None:
        """Write a line, if lines of this kind and task may pass."""
        passed = self._limit.passes((job.task, kind))
        if passed is None:
            return
        more = f" ({passed.left_out} more like this were not logged)" if passed.left_out else ""
        about = {"job_id": job.public_id, "attempt": job.attempt, "task": job.task}
        self._logger.log(
            level,
            "job %s (%s): %s%s",
            job.public_id,
            job.task,
            text,
            more,
            exc_info=error if passed.first else None,
            extra={**about, **fields},
        )


def log_entry(id: JobId, attempt: int, level: int, text: str, traceback: str = "") -> LogEntry:
    """Make a line of a job's own log; of a long traceback its end."""
    text = writable(text, LOG_TEXT)
    room = LOG_TEXT - len(text) - 1
    if traceback and room > 0:
        text = f"{text}\n{traceback.rstrip()[-room:]}"
    return LogEntry(id=id, attempt=attempt, at=time.time_ns() // 1000, level=level, message=text)


_SWEPT: dict[type[c.Command], tuple[int, str]] = {
    c.Stall: (logging.WARNING, "it is due again"),
    c.DeadLetter: (logging.ERROR, "it is dead-lettered"),
    c.TimeOut: (logging.ERROR, "it has timed out"),
    c.Lose: (logging.ERROR, "it has failed"),
    c.Cancel: (logging.INFO, "it is cancelled, as was asked"),
}


def swept_line(change: Change) -> tuple[int, str] | None:
    """Describe what a sweep did to a job, with a level; None if it did not fail."""
    kind = next((kind for kind in _SWEPT if c.written_by(change.event, kind)), None)
    if kind is None:
        return None
    level, follows = _SWEPT[kind]
    owner = change.event.facts.last_owner
    held = f"attempt {change.record.attempt} by {owner} was lost" if owner else "its time is over"
    reason = f" ({change.event.reason})" if change.event.reason else ""
    return level, f"{held}{reason}; {follows}"


class Passed(Struct, frozen=True):
    """That a line may be logged."""

    first: bool
    """The first of its kind in this window: with its traceback."""
    left_out: int
    """How many were left out before it."""


class RateLimit:
    """Lets some lines of each kind through in a window, and counts the others."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._kinds: dict[object, list[float]] = {}
        """By kind: when its window ends, lines in it, lines left out."""

    def passes(self, kind: object) -> Passed | None:
        """Count a line; None where it must not be logged."""
        now = self._now()
        window = self._kinds.get(kind)
        if window is None or window[0] <= now:
            if len(self._kinds) >= MOST_KINDS:
                self._kinds.clear()
            self._kinds[kind] = [now + WINDOW_SECONDS, 1, 0]
            return Passed(first=True, left_out=0 if window is None else int(window[2]))
        if window[1] >= LINES:
            window[2] += 1
            return None
        window[1] += 1
        return Passed(first=False, left_out=0)


class HookThread:
    """Calls hooks in a thread: one that raises is logged, one that hangs holds up only others."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = tuple(hooks)
        self._waiting: queue.Queue[Failure | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._limit = RateLimit()

    def call(self, failure: Failure) -> None:
        """Have the hooks called; never waits."""
        if not self._hooks:
            return
        if self._thread is None:
            thread = threading.Thread(
                target=self._serve, name="holdfast failure hooks", daemon=True
            )
            thread.start()
            self._thread = thread
        try:
            self._waiting.put_nowait(failure)
        except queue.Full:
            if self._limit.passes("full") is not None:
                log.error("on_failure hooks are stuck: they miss failures")

    def close(self, limit_seconds: float) -> None:
        """Let the thread end, and wait for it up to a limit."""
        if self._thread is not None:
            try:
                self._waiting.put_nowait(None)
            except queue.Full:
                return
            self._thread.join(limit_seconds)
            if self._thread.is_alive():
                log.error("on_failure hooks are stuck: the worker stops without them")

    def _serve(self) -> None:
        while (failure := self._waiting.get()) is not None:
            for hook in self._hooks:
                self._call(hook, failure)

    def _call(self, hook: Hook, failure: Failure) -> None:
        try:
            hook(failure)
        except BaseException:  # also SystemExit: it would end the thread, and with it all hooks
            name = getattr(hook, "__qualname__", type(hook).__qualname__)
            if self._limit.passes(name) is not None:
                log.exception("on_failure hook %s raised for job %s", name, failure.job_id)


def _error_report(command: c.Failing) -> ErrorReport:
    """Read the error that a command carries: what is stored, and no more."""
    body: Any = decode_body(command.body)
    stored = body if isinstance(body, dict) else {}
    return ErrorReport(
        type=str(stored.get("type", command.error_code)),
        message=str(stored.get("message") or command.reason or ""),
        code=command.error_code,
        traceback=str(stored.get("traceback", "")),
    )


def _retry_in(job: OwnedJob, command: c.Failing) -> float | None:
    if not isinstance(command, c.Retry):
        return None
    delay = command.retry_in
    if delay is None:
        delay = backoff(job.record.policy, job.record.failures + 1, command.jitter)
    return delay / 1e6


def _follows(outcome: str, retry_in: float | None, *, linked: bool) -> str:
    if retry_in is not None:
        return f"retry in {retry_in:.3g} s"
    return f"{outcome.replace('_', '-')}" + (", tried again as a new job" if linked else "")
