"""One tree of errors, each with a stable code: the same in Python, on the CLI and over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from holdfast.durations import Span, span_seconds


class ErrorReport(Struct, frozen=True, kw_only=True):
    """An error as bounded text, as it is stored and sent between processes.

    `chain` lists the errors behind it: relation (cause, context, member), type and message.
    """

    type: str
    message: str
    code: str
    traceback: str = ""
    chain: tuple[dict[str, str], ...] = ()


class HoldfastError(Exception):
    """The base of all errors of Holdfast. `code` is stable, the message is for people."""

    code: str = "error"
    """The code of the class, or a more specific one that the error was raised with."""
    report: ErrorReport | None = None
    """The report of the process that raised it, if that was another process."""

    def __init_subclass__(cls, *, code: str | None = None, **more: Any) -> None:
        """Set the code of a class; without one it has its base's."""
        super().__init_subclass__(**more)
        if code is not None:
            cls.code = code

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        job_id: str | None = None,
        field: str | None = None,
    ) -> None:
        """Describe what happened, with the code, the job and the field of the input."""
        super().__init__(message)
        self.code = code or type(self).code
        self.job_id = job_id
        self.field = field
        """Its name, such as `queue` or `policy.lease`; in a request a JSON path."""


class BadData(HoldfastError, code="bad_data"):
    """A value cannot be stored: it is not JSON, too large, too deep, or not valid text."""


class ValidationError(BadData, code="validation_failed"):
    """The input does not match what the task accepts (B26)."""


class ReservedName(BadData, code="reserved_name"):
    """The name of a task or queue starts with `holdfast.`, which is reserved for Holdfast."""


class NoPoolForTopic(BadData, code="no_pool_for_topic"):
    """No pattern in `[topics]` matches the topic of the job."""


class TransientError(HoldfastError, code="transient"):
    """A retry may succeed (B26), after `retry_in` seconds if that is known."""

    def __init__(
        self,
        message: str = "",
        *,
        retry_in: Span | None = None,
        code: str | None = None,
        job_id: str | None = None,
    ) -> None:
        """Describe what failed, and when to retry if not by the backoff."""
        super().__init__(message, code=code, job_id=job_id)
        self.retry_in = None if retry_in is None else span_seconds(retry_in, "retry_in")


class PermanentError(HoldfastError, code="permanent"):
    """No retry can succeed (B26)."""


class AddressBlocked(PermanentError, code="address_blocked"):
    """The address of a webhook is not public. Nothing was sent to it."""


class Undelivered(TransientError, code="undelivered"):
    """The address of a webhook did not answer, or not with success."""


class RemoteError(HoldfastError, code="handler_error"):
    """A handler raised an error in its own process; `report` describes it."""

    def __init__(self, report: ErrorReport) -> None:
        """Describe the error by the report of the handler's process."""
        super().__init__(f"{report.type}: {report.message}", code=report.code)
        self.report = report


class HandlerDied(HoldfastError, code="handler_died"):
    """The process of a handler ended while it ran: it exited, crashed or was killed."""

    def __init__(
        self, message: str, *, exit_code: int | None = None, signal: str | None = None
    ) -> None:
        """Describe how it ended: with an exit code, or by a signal of that name."""
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal


class BoxRefused(HoldfastError, code="box_refused"):
    """A box cannot be made or started through its own fault; no other host would do better."""


class RuntimeTrouble(HoldfastError, code="runtime_trouble"):
    """What runs boxes on this host failed or does not answer; the state of a box is not known."""


class BoxLost(HoldfastError, code="container_lost"):
    """A box ended or vanished, and no exit code of its command will ever be known."""


class BoxUnkillable(HoldfastError, code="unkillable"):
    """Processes of a box are still there after they were killed."""


class Refused(HoldfastError, code="refused"):
    """The state of the job does not allow the request. Nothing was written."""


class LeaseConflictError(Refused, code="lease_lost"):
    """The caller does not, or no longer, own the job (B26). It must stop and write nothing."""


class StaleRevision(Refused, code="stale_revision"):
    """`expected_rev` is not the current revision (C3)."""


class KeyConflict(Refused, code="key_conflict"):
    """A key belongs to a job with another body (resolution 13)."""


class RequestIdReused(Refused, code="request_id_reused"):
    """A request_id was already used for another request (resolution 9)."""


class NoSuchJob(HoldfastError, code="no_such_job"):
    """The tenant has no job with that id."""


class JobPurged(NoSuchJob, code="job_purged"):
    """The job ended long ago, and retention removed it. Its id is never used again."""


class NoSuchPolicy(HoldfastError, code="no_such_policy"):
    """No policy with that digest was ever applied."""


class NoSuchWebhook(HoldfastError, code="no_such_webhook"):
    """There is no webhook with that id that the caller may manage."""


class NoSuchToken(HoldfastError, code="no_such_token"):
    """There is no token with that id that the caller may manage."""


class NoTokens(HoldfastError, code="no_tokens"):
    """A server that other machines can reach needs tokens, and the store has none."""


class Unauthorized(HoldfastError, code="unauthorized"):
    """The token of a request is missing, unknown, expired or revoked."""


class Forbidden(HoldfastError, code="forbidden"):
    """The token does not cover the request."""


class NoSuchRoute(HoldfastError, code="no_such_route"):
    """The server has no such route."""


class NoSuchMethod(HoldfastError, code="no_such_method"):
    """The route does not accept this method."""


class TooLarge(BadData, code="too_large"):
    """The request is larger than the server accepts."""


class UnsupportedMedia(BadData, code="unsupported_media"):
    """The body has a format that the server does not read."""


class TooSlow(HoldfastError, code="too_slow"):
    """The body of a request took too long to arrive. Nothing was written."""


class ServerEnding(HoldfastError, code="server_ending"):
    """The server is stopping and accepts no new requests."""


class ServerFailed(HoldfastError, code="server_failed"):
    """The server failed; its log has the reason under the id of the request."""


class RateLimited(HoldfastError, code="rate_limited"):
    """Too many requests; retry in `retry_in` seconds."""

    def __init__(self, message: str = "", *, retry_in: float = 1.0) -> None:
        """Keep when to retry."""
        super().__init__(message)
        self.retry_in = retry_in


class Overloaded(HoldfastError, code="overloaded"):
    """The server has as many concurrent requests as it accepts. Nothing was done; retry."""


class TooManyNames(HoldfastError, code="too_many_names"):
    """A submit would give a tenant more queues or sets of needs than it may have."""


class StoreError(HoldfastError, code="store_error"):
    """The database failed. What was acknowledged before is safe."""


class StoreUnavailable(StoreError, code="store_unavailable"):
    """The database was unreachable or busy until the deadline. Safe to retry."""


class ServerUnavailable(StoreUnavailable, code="server_unavailable"):
    """The server was unreachable or did not answer within the patience. Safe to retry."""


class KeyBusy(StoreUnavailable, code="key_busy"):
    """An open transaction has the key. Nothing was submitted; safe to retry."""


class JobBusy(StoreUnavailable, code="job_busy"):
    """Another transaction has locked the row of the job. Nothing was written; safe to retry."""


class StoreFull(StoreError, code="store_full"):
    """The disk is full. Nothing of this request was written; free space, then retry."""


class StoreBroken(StoreError, code="store_broken"):
    """The disk or the file failed: an I/O error or a damaged database. Run `holdfast verify`."""


class StoreForked(StoreError, code="store_forked"):
    """The store was open when this process was forked; it cannot be used in the child."""


class ForkRefused(HoldfastError, code="fork_refused"):
    """A fork was refused because a worker is open in this process."""


class StoreReplaced(StoreBroken, code="store_replaced"):
    """The SQLite file was removed or replaced while it was open. Nothing is acknowledged."""


class LawBroken(StoreError, code="law_broken"):
    """The database refused an illegal row: a bug in Holdfast, or another program wrote it."""


class PolicyChanged(StoreError, code="policy_changed"):
    """The policy that is applied now has not judged the job. Nothing was written; retry."""


class KernelUnavailable(HoldfastError, code="kernel_unavailable"):
    """The external kernel of the policy did not decide: it is away, slow, or answers nonsense."""

    tries = 1
    """How often it was asked; 0 while it is left alone after several failures."""


class JobUnreadable(HoldfastError, code="job_unreadable"):
    """The row or the events of the job are damaged. It is set aside, without effect on others."""

    damage = "it cannot be read"
    """What is wrong with it, without advice."""


class SchemaMismatch(StoreError, code="schema_mismatch"):
    """The schema of the database is not the one that this version needs. Run `holdfast migrate`."""


class NoSuchStore(StoreError, code="no_such_store"):
    """There is no store at that address. `holdfast migrate` creates one."""


class BadAddress(HoldfastError, code="bad_address"):
    """The address of a store, or of its place of blobs, is invalid."""


class BadConfig(HoldfastError, code="bad_config"):
    """The settings file cannot be read, or a setting is invalid."""


class BadPolicy(HoldfastError, code="bad_policy"):
    """A rules file is invalid; the message names the line, the rule and what to write."""


class CannotServe(HoldfastError, code="cannot_serve"):
    """The address to serve at cannot be used, or a package for it is missing."""


class BadTask(HoldfastError, code="bad_task"):
    """A task cannot be registered, because of its signature, its options or its name."""


class StepMismatch(HoldfastError, code="step_mismatch"):
    """The steps of a handler differ from the recorded ones: its code has changed."""


class StepFailed(HoldfastError, code="step_failed"):
    """A step failed in an earlier attempt, with an error whose class is not known here."""


class WaitTimeout(HoldfastError, TimeoutError, code="wait_timeout"):
    """What a handler waited for did not arrive in time."""


class UnfitResult(HoldfastError, code="unfit_result"):
    """The result of a handler is not JSON, too large, or does not match its annotation."""


class NoSuchTask(HoldfastError, code="no_such_task"):
    """No task with that name is registered here."""


class BadConnection(HoldfastError, code="bad_connection"):
    """`submit_in` got an object that is not a usable connection, session or transaction."""


class BadTransaction(HoldfastError, code="bad_transaction"):
    """The caller has no transaction, or it has failed or is read-only."""


class NotCommitted(HoldfastError, code="not_committed"):
    """The job is not in the ledger: its transaction is still open, or was rolled back."""


class StatementFailed(HoldfastError, code="statement_failed"):
    """A statement of the caller failed or is not allowed. Its transaction is rolled back."""


class PartlySubmitted(Refused, code="partly_submitted"):
    """Some of many jobs were refused; the others are in the ledger.

    `outcomes` has, in the order of the calls, a handle for each job that was accepted, and an
    error for each that was refused.
    """

    def __init__(self, message: str, outcomes: list[Any]) -> None:
        """Keep the outcome of each call."""
        super().__init__(message)
        self.outcomes = outcomes


class ResultTimeout(HoldfastError, TimeoutError, code="result_timeout"):
    """The job did not end while the caller waited. It continues; wait again, or cancel it."""


class ResultErased(HoldfastError, code="result_erased"):
    """The job succeeded, and retention erased its result."""


class UploadRefused(HoldfastError, code="upload_refused"):
    """What was uploaded cannot be accepted: it is hostile, broken, or beyond a limit."""


class NoSuchUpload(HoldfastError, code="no_such_upload"):
    """There is no such upload, or it belongs to another tenant."""


class UploadExpired(NoSuchUpload, code="upload_expired"):
    """The upload expired or was deleted; its files are gone. Upload them again."""


class UploadConflict(Refused, code="upload_conflict"):
    """The state of the upload does not allow it, or another client uses it at the same time."""


class UploadTooLarge(TooLarge, code="upload_too_large"):
    """The upload would have more bytes or files than one may have."""


class UploadQuotaExceeded(HoldfastError, code="upload_quota_exceeded"):
    """The uploads of the tenant would have more bytes than they may. Delete some, or wait."""


class NoSuchBlob(HoldfastError, code="no_such_blob"):
    """There is no blob under that key."""


class BlobsUnavailable(HoldfastError, code="blobs_unavailable"):
    """The place of blobs was unreachable, full, or refused. Safe to retry."""


class BusUnavailable(HoldfastError, code="bus_unavailable"):
    """The bus was unreachable, or does not offer what is asked of it. Safe to retry."""


class ArtifactsTooLarge(HoldfastError, code="artifacts_too_large"):
    """A command left more in /artifacts than may be kept."""


class ArtifactsErased(HoldfastError, code="artifacts_erased"):
    """Retention has erased what the job's command left in /artifacts."""


class ArtifactsDamaged(HoldfastError, code="artifacts_damaged"):
    """What is kept of the job's artifacts is not what was collected."""


class NoSuchArtifact(HoldfastError, code="no_such_artifact"):
    """The job has no artifact with that path."""


class RangeNotSatisfiable(BadData, code="range_not_satisfiable"):
    """The range of a request is beyond the end of the file."""


class FileNotSaved(HoldfastError, code="file_not_saved"):
    """A file could not be written on this machine; one that exists is not overwritten unasked."""


class BlobsElsewhere(HoldfastError, code="blobs_elsewhere"):
    """The logs, artifacts and uploads of the store are at another place than the one set here."""


class BlobsFull(BlobsUnavailable, code="blobs_full"):
    """The place of blobs has too little room for what is to be written."""


class LogErased(HoldfastError, code="log_erased"):
    """Retention has erased what the job's command printed."""


class LogUnreadable(HoldfastError, code="log_unreadable"):
    """The log of an ended job is not complete in the place of blobs."""


class JobError(HoldfastError, code="job_error"):
    """The job ended without a result. `error` is its recorded error, `exit_code` a command's."""

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        job_id: str | None = None,
        error_code: str | None = None,
        error: Any = None,
        exit_code: int | None = None,
    ) -> None:
        """Describe the end of a job; `error` is the error of its last event."""
        super().__init__(message, code=code, job_id=job_id)
        self.exit_code = exit_code
        self.error_code = error_code
        self.error = error
        fields = error if isinstance(error, dict) else {}
        self.error_type: str | None = fields.get("type")
        self.error_message: str | None = fields.get("message")
        self.traceback: str | None = fields.get("traceback")


class JobFailed(JobError, code="job_failed"):
    """The job failed."""


class JobCancelled(JobError, code="job_cancelled"):
    """The job was cancelled."""


class JobTimedOut(JobError, code="job_timed_out"):
    """The job exceeded its timeout or its deadline."""


class JobDenied(JobError, code="job_denied"):
    """The job was denied by policy."""


class JobDeadLettered(JobError, code="job_dead_lettered"):
    """The job became a dead letter."""


@contextmanager
def about(field: str) -> Iterator[None]:
    """Name the field of the input in errors that the block raises.

    If an error already names a field, that is a part of this one.
    """
    try:
        yield
    except (BadData, NoSuchJob, AddressBlocked) as error:
        error.field = field if error.field is None else f"{field}.{error.field}"
        raise


REFUSED_BY_STORE: dict[str, type[HoldfastError]] = {
    kind.code: kind
    for kind in (
        BadPolicy,
        JobPurged,
        JobUnreadable,
        KeyBusy,
        KeyConflict,
        RequestIdReused,
        TooManyNames,
    )
}
"""The errors with which a store refuses a job or a change that the law allows, by code."""
