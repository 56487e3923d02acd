"""One tree of errors, each with a stable code: the same in Python, on the CLI and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from holdfast.spans import Span, span_seconds


class ErrorReport(Struct, frozen=True, kw_only=True):
    """An error in words, bounded: what is kept of it, and what crosses from one process to another.

    `chain` says for each error behind it the relation (cause, context, member), type and message.
    """

    type: str
    message: str
    code: str
    traceback: str = ""
    chain: tuple[dict[str, str], ...] = ()


class HoldfastError(Exception):
    """Whatever Holdfast raises on purpose. `code` is stable, the message is for a person."""

    code: str = "error"
    """The class's own, or a finer one that the error was raised with."""
    report: ErrorReport | None = None
    """What the process told in which it was raised, if that was another one."""

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        job_id: str | None = None,
        field: str | None = None,
    ) -> None:
        """Say what happened, to which job, under which code, about which field of the input."""
        super().__init__(message)
        self.code = code or type(self).code
        self.job_id = job_id
        self.field = field
        """By its name, such as `queue` or `policy.lease`; in a request as a JSON path."""


class BadData(HoldfastError):
    """A value that cannot be kept: not JSON, too large, too deep, or no real text."""

    code = "bad_data"


class ValidationError(BadData):
    """Input that does not fit what the job asks for (B26)."""

    code = "validation_failed"


class ReservedName(BadData):
    """A task or queue whose name begins with `holdfast.`; those are for Holdfast itself."""

    code = "reserved_name"


class TransientError(HoldfastError):
    """A failure after which a retry may succeed (B26), in `retry_in` seconds if that is known."""

    code = "transient"

    def __init__(
        self,
        message: str = "",
        *,
        retry_in: Span | None = None,
        code: str | None = None,
        job_id: str | None = None,
    ) -> None:
        """Say what failed, and when to try again if not by the policy's backoff."""
        super().__init__(message, code=code, job_id=job_id)
        self.retry_in = None if retry_in is None else span_seconds(retry_in, "retry_in")


class PermanentError(HoldfastError):
    """A failure after which no retry can succeed (B26)."""

    code = "permanent"


class AddressBlocked(PermanentError):
    """A webhook's address that is not public. Nothing was sent there."""

    code = "address_blocked"


class Undelivered(TransientError):
    """A webhook's address did not answer, or not with success."""

    code = "undelivered"


class RemoteError(HoldfastError):
    """What a handler raised in a process of its own; its `report` says all that is known."""

    code = "handler_error"

    def __init__(self, report: ErrorReport) -> None:
        """Tell it as the handler's process did."""
        super().__init__(f"{report.type}: {report.message}", code=report.code)
        self.report = report


class HandlerDied(HoldfastError):
    """The process of a handler ended under it: it exited, crashed, or was killed by someone."""

    code = "handler_died"

    def __init__(
        self, message: str, *, exit_code: int | None = None, signal: str | None = None
    ) -> None:
        """Say how it ended: by itself with an exit code, or by a signal of that name."""
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal


class Refused(HoldfastError):
    """The law, or the record as it now stands, does not allow it. Nothing was written."""

    code = "refused"


class LeaseConflictError(Refused):
    """The caller does not hold the job, or no longer (B26). It must stop and write nothing."""

    code = "lease_lost"


class StaleRevision(Refused):
    """`expected_rev` is not the current revision (C3)."""

    code = "stale_revision"


class KeyConflict(Refused):
    """A key that is taken by a job with another body (resolution 13)."""

    code = "key_conflict"


class RequestIdReused(Refused):
    """A request_id that already stands for something else (resolution 9)."""

    code = "request_id_reused"


class NoSuchJob(HoldfastError):
    """No job of that id in this tenant."""

    code = "no_such_job"


class JobPurged(NoSuchJob):
    """The job ended long ago and was removed whole by retention. Its id is never given again."""

    code = "job_purged"


class NoSuchWebhook(HoldfastError):
    """No webhook of that id that the caller has a say over."""

    code = "no_such_webhook"


class NoSuchToken(HoldfastError):
    """No token of that id that the caller has a say over."""

    code = "no_such_token"


class NoTokens(HoldfastError):
    """Serving beyond this machine takes tokens, and the store has none."""

    code = "no_tokens"


class Unauthorized(HoldfastError):
    """A request without a token that counts: none, unknown, expired or revoked."""

    code = "unauthorized"


class Forbidden(HoldfastError):
    """A token that does not cover what was asked."""

    code = "forbidden"


class NoSuchRoute(HoldfastError):
    """The server has nothing at that address."""

    code = "no_such_route"


class NoSuchMethod(HoldfastError):
    """The server has something at that address, and not by that method."""

    code = "no_such_method"


class TooLarge(BadData):
    """More than the server takes in one request."""

    code = "too_large"


class UnsupportedMedia(BadData):
    """A body in a form that the server does not read."""

    code = "unsupported_media"


class TooSlow(HoldfastError):
    """A request whose body took too long to arrive. Nothing was written."""

    code = "too_slow"


class ServerEnding(HoldfastError):
    """The server is about to end, and takes nothing new."""

    code = "server_ending"


class ServerFailed(HoldfastError):
    """The server failed by itself; its log says how, under the request's id."""

    code = "server_failed"


class RateLimited(HoldfastError):
    """Too many requests; the next is welcome in `retry_in` seconds."""

    code = "rate_limited"

    def __init__(self, message: str = "", *, retry_in: float = 1.0) -> None:
        """Say when to come again."""
        super().__init__(message)
        self.retry_in = retry_in


class Overloaded(HoldfastError):
    """The server has as many requests under way as it takes. Nothing was done; come again."""

    code = "overloaded"


class TooManyNames(HoldfastError):
    """A submit that would give a tenant more queues or sets of needs than it may have."""

    code = "too_many_names"


class StoreError(HoldfastError):
    """The database could not do it. What was acknowledged before is safe."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The database could not be reached, or stayed busy, until the deadline. Safe to try again."""

    code = "store_unavailable"


class ServerUnavailable(StoreUnavailable):
    """The server could not be reached, or did not answer, until patience ended. Safe to repeat."""

    code = "server_unavailable"


class KeyBusy(StoreUnavailable):
    """A key is held by a transaction that has not ended. Nothing was submitted; safe to repeat."""

    code = "key_busy"


class JobBusy(StoreUnavailable):
    """Another transaction keeps the job's row locked. Nothing was written; safe to repeat."""

    code = "job_busy"


class StoreFull(StoreError):
    """No room left on the disk. Nothing of this request was written; make room, then repeat it."""

    code = "store_full"


class StoreBroken(StoreError):
    """The disk or the file failed: an I/O error or a damaged database. See `holdfast verify`."""

    code = "store_broken"


class StoreForked(StoreError):
    """The store was open when this process was forked, and cannot be used in the child."""

    code = "store_forked"


class ForkRefused(HoldfastError):
    """A fork was refused because a worker is open in this process."""

    code = "fork_refused"


class StoreReplaced(StoreBroken):
    """The SQLite file was removed or replaced while it was open. Nothing more is acknowledged."""

    code = "store_replaced"


class LawBroken(StoreError):
    """The database itself refused an illegal row. This is a bug in Holdfast or a foreign writer."""

    code = "law_broken"


class JobUnreadable(HoldfastError):
    """The job's row or events are damaged. It is set aside; no other job is concerned."""

    code = "job_unreadable"
    damage = "it cannot be read"
    """What is wrong with it, without what to do."""


class SchemaMismatch(StoreError):
    """The database's schema is not the one this version needs. Run `holdfast migrate`."""

    code = "schema_mismatch"


class NoSuchStore(StoreError):
    """There is no store at that place. `holdfast migrate` makes one."""

    code = "no_such_store"


class BadAddress(HoldfastError):
    """An address that names no store."""

    code = "bad_address"


class BadConfig(HoldfastError):
    """A settings file that cannot be read, or a setting that does not fit."""

    code = "bad_config"


class CannotServe(HoldfastError):
    """The address to serve at cannot be used, or a package for it is missing."""

    code = "cannot_serve"


class BadTask(HoldfastError):
    """A task that cannot be registered: its signature, its options or its name."""

    code = "bad_task"


class StepMismatch(HoldfastError):
    """A handler's steps are not those that its earlier attempts recorded: its code has changed."""

    code = "step_mismatch"


class StepFailed(HoldfastError):
    """A step failed in an earlier attempt, with an error whose class is not known here."""

    code = "step_failed"


class WaitTimeout(HoldfastError, TimeoutError):
    """What a handler waited for did not come in time."""

    code = "wait_timeout"


class UnfitResult(HoldfastError):
    """A handler returned what cannot be kept: not JSON, too large, or not what it announced."""

    code = "unfit_result"


class NoSuchTask(HoldfastError):
    """No task of that name is registered here."""

    code = "no_such_task"


class BadConnection(HoldfastError):
    """What was given to submit in is no connection, session or transaction that can be used."""

    code = "bad_connection"


class BadTransaction(HoldfastError):
    """The caller's transaction cannot take a job: there is none, it has failed, or only reads."""

    code = "bad_transaction"


class NotCommitted(HoldfastError):
    """The job is not in the ledger: its transaction is still open, or was rolled back."""

    code = "not_committed"


class StatementFailed(HoldfastError):
    """A caller's own statement failed, or may not be run there. Its transaction is undone."""

    code = "statement_failed"


class PartlySubmitted(Refused):
    """Some of many jobs were refused, the others are in the ledger.

    `outcomes` has, in the order of the calls, a handle for each job that is there, and the error
    for each that is not.
    """

    code = "partly_submitted"

    def __init__(self, message: str, outcomes: list[Any]) -> None:
        """Keep what became of each."""
        super().__init__(message)
        self.outcomes = outcomes


class ResultTimeout(HoldfastError, TimeoutError):
    """The job did not end while the caller waited. It goes on; wait again, or cancel it."""

    code = "result_timeout"


class ResultErased(HoldfastError):
    """The job succeeded, and its result was erased by retention."""

    code = "result_erased"


class JobError(HoldfastError):
    """The job ended without a result. `error` is what its record says of it."""

    code = "job_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        job_id: str | None = None,
        error_code: str | None = None,
        error: Any = None,
    ) -> None:
        """Take what the job's last event says."""
        super().__init__(message, code=code, job_id=job_id)
        self.error_code = error_code
        self.error = error
        told = error if isinstance(error, dict) else {}
        self.error_type: str | None = told.get("type")
        self.error_message: str | None = told.get("message")
        self.traceback: str | None = told.get("traceback")


class JobFailed(JobError):
    """The job failed."""

    code = "job_failed"


class JobCancelled(JobError):
    """The job was cancelled."""

    code = "job_cancelled"


class JobTimedOut(JobError):
    """The job ran out of time."""

    code = "job_timed_out"


class JobDenied(JobError):
    """The job was denied by policy."""

    code = "job_denied"


class JobDeadLettered(JobError):
    """The job ended in the dead letters."""

    code = "job_dead_lettered"


@contextmanager
def about(field: str) -> Iterator[None]:
    """Let an error of the block say which field of the input it is about.

    One that names a field itself names a part of this one.
    """
    try:
        yield
    except (BadData, NoSuchJob, AddressBlocked) as error:
        error.field = field if error.field is None else f"{field}.{error.field}"
        raise
