"""Errors as problem documents (RFC 9457) and back, with the codes of Python and the CLI."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import UNSET, Struct, UnsetType

from holdfast import errors as e


class ProblemDocument(Struct, frozen=True, kw_only=True):
    """What went wrong, for a program and for a person."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    advice: str
    """What to do about it."""
    request_id: str
    job_id: str | UnsetType = UNSET
    """The job that it is about."""
    field: str | UnsetType = UNSET
    """Where in the request, as a JSON path."""


Shown: TypeAlias = tuple[int, str, str]
"""How a kind of error is shown: its status, its title, and what to do about it."""

# The first match counts: a subclass comes before its base.
PROBLEM_KINDS: dict[type[e.HoldfastError], Shown] = {
    e.Unauthorized: (401, "No valid token", "send a token: `Authorization: Bearer <token>`"),
    e.Forbidden: (403, "Not covered by this token", "use a token with a role that covers it"),
    e.NoSuchRoute: (404, "No such route", "see /openapi.json for the routes"),
    e.NoSuchMethod: (405, "Method not allowed", "see the Allow header"),
    e.JobPurged: (410, "Purged", "its record was removed by retention; see docs/retention.md"),
    e.NoSuchJob: (404, "No such job", "check the id, and that the token is of the job's tenant"),
    e.NoSuchToken: (404, "No such token", "list the tokens that this one may manage"),
    e.NoSuchWebhook: (404, "No such webhook", "list the webhooks of the token's tenant"),
    e.NoSuchPolicy: (404, "No such policy", "list the policies that were applied"),
    e.BadPolicy: (422, "Invalid policy", "fix the line named in `detail`"),
    e.AddressBlocked: (422, "Not a public address", "use a public address"),
    e.TooSlow: (408, "Too slow", "send the whole body at once; nothing was written"),
    e.UploadTooLarge: (413, "Upload too large", "send less; see `holdfast limits`"),
    e.TooLarge: (413, "Too large", "send less in one request"),
    e.UnsupportedMedia: (415, "Unsupported media type", "send JSON, not compressed"),
    e.StaleRevision: (412, "The job has changed", "read it again, and use its current revision"),
    e.KeyConflict: (409, "Key in use", "use another key, or repeat the request it belongs to"),
    e.RequestIdReused: (409, "Request id in use", "use a new Idempotency-Key for a new request"),
    e.LeaseConflictError: (409, "Lease lost", "stop this attempt, and write nothing more for it"),
    e.TooManyNames: (409, "Too many names", "use a queue or needs that the tenant has already"),
    e.ReservedName: (422, "Reserved name", "choose a name that does not start with `holdfast.`"),
    e.NoPoolForTopic: (422, "No pool for topic", "add the topic to `[topics]`, or use another"),
    e.RangeNotSatisfiable: (416, "Range not satisfiable", "ask for a part of the file"),
    e.ValidationError: (422, "Invalid input", "fix the field named in `detail`"),
    e.BadData: (422, "Invalid input", "fix the field named in `detail`"),
    e.NoSuchTask: (422, "No such task", "check the task's name"),
    e.UploadConflict: (409, "Upload in another state", "read the upload, then decide again"),
    e.Refused: (409, "Refused", "read the job: its state does not allow it"),
    e.ResultErased: (410, "Erased", "its result was removed by retention"),
    e.LogErased: (410, "Erased", "its log was removed by retention"),
    e.ArtifactsErased: (410, "Erased", "its artifacts were removed by retention"),
    e.ArtifactsDamaged: (500, "Artifacts damaged", "check the place of blobs; run it again"),
    e.NoSuchArtifact: (404, "No such artifact", "list the artifacts of the job"),
    e.LogUnreadable: (500, "Log unreadable", "check --blobs of this process and of its worker"),
    e.UploadRefused: (422, "Upload refused", "fix what `detail` names, and upload it again"),
    e.UploadExpired: (410, "Upload gone", "upload the files again"),
    e.NoSuchUpload: (404, "No such upload", "list the uploads of the token's tenant"),
    e.UploadQuotaExceeded: (507, "Quota of uploads reached", "delete uploads, or let them expire"),
    e.NoSuchBlob: (404, "No such file", "list what the job has"),
    e.BlobsElsewhere: (503, "Files elsewhere", "set --blobs of this process to the store's place"),
    e.BlobsFull: (507, "No space left", "free space where the blobs are, then retry"),
    e.BlobsUnavailable: (503, "Files unavailable", "retry; check --blobs and `holdfast doctor`"),
    e.RateLimited: (429, "Too many requests", "retry after Retry-After"),
    e.Overloaded: (503, "Server busy", "retry after Retry-After"),
    e.JobUnreadable: (500, "The job is damaged", "run `holdfast verify`, and repair what it names"),
    e.StoreFull: (507, "No space left", "free space on the database's disk, then retry"),
    e.StoreReplaced: (503, "Database file replaced", "restart the server on the right file"),
    e.KeyBusy: (503, "Key locked", "retry once the transaction has ended"),
    e.PolicyChanged: (503, "Policy changed", "send the request again"),
    e.JobBusy: (503, "Job locked", "retry once the transaction has ended"),
    e.StoreUnavailable: (503, "Database unavailable", "retry with the same Idempotency-Key"),
    e.ServerEnding: (503, "Server stopping", "retry: at another server, or when it is back"),
    e.ServerFailed: (500, "Server error", "look in its log for the request id"),
    e.StoreError: (500, "Database error", "run `holdfast doctor` and `verify`"),
    e.HoldfastError: (400, "Bad request", "see `detail`"),
}

_BY_STATUS: dict[int, type[e.HoldfastError]] = {
    401: e.Unauthorized,
    403: e.Forbidden,
    404: e.NoSuchJob,
    409: e.Refused,
    412: e.StaleRevision,
    413: e.TooLarge,
    422: e.BadData,
    503: e.StoreUnavailable,
}
"""For a finer code than a class has, and for codes of a newer server."""


def shown_as(error: e.HoldfastError) -> Shown:
    """Return how an error is shown."""
    return next(shown for kind, shown in PROBLEM_KINDS.items() if isinstance(error, kind))


def problem_of(
    error: e.HoldfastError, request_id: str, place: str | None = None
) -> ProblemDocument:
    """Show an error as a problem document; `place` is where in a body its field is, if in one."""
    status, title, advice = shown_as(error)
    return ProblemDocument(
        type=f"urn:holdfast:error:{error.code}",
        title=title,
        status=status,
        code=error.code,
        detail=str(error) or title,
        advice=advice,
        request_id=request_id,
        job_id=UNSET if error.job_id is None else error.job_id,
        field=_path(error.field, place),
    )


def _path(field: str | None, place: str | None) -> str | UnsetType:
    """Return a field's path; an error of reading a body has one already."""
    if field is None:
        return UNSET
    return field if place is None or field.startswith("$") else f"{place}.{field}"


def error_of(problem: ProblemDocument, retry_in: float = 1.0) -> e.HoldfastError:
    """Return the error that a problem document shows, in the class that Python knows."""
    if problem.code == e.RateLimited.code:
        return e.RateLimited(problem.detail, retry_in=retry_in)
    kind = _KINDS.get(problem.code) or _by_status(problem.status)
    job = None if problem.job_id is UNSET else problem.job_id
    field = None if problem.field is UNSET else problem.field
    # Only the server's log has more about its own errors, under the request's id.
    own = f" (request {problem.request_id})" if problem.status >= 500 else ""
    return kind(f"{problem.detail}{own}", code=problem.code, job_id=job, field=field)


def _by_status(status: int) -> type[e.HoldfastError]:
    return _BY_STATUS.get(status) or (e.ServerFailed if status >= 500 else e.HoldfastError)


def _tree(root: type[e.HoldfastError]) -> list[type[e.HoldfastError]]:
    return [root, *(found for child in root.__subclasses__() for found in _tree(child))]


# Only those that are made of a message, a code and a job: no other goes over HTTP.
_KINDS = {
    kind.code: kind for kind in _tree(e.HoldfastError) if kind.__init__ is e.HoldfastError.__init__
}
