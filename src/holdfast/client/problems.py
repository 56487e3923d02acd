"""From a problem document back to the error that it tells of: the class that Python knows."""

from __future__ import annotations

from msgspec import UNSET

from holdfast import errors as e
from holdfast.messages import Problem

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


def error_of(problem: Problem, retry_in: float = 1.0) -> e.HoldfastError:
    """Make the error that a server told of."""
    if problem.code == e.RateLimited.code:
        return e.RateLimited(problem.detail, retry_in=retry_in)
    kind = _KINDS.get(problem.code) or _by_status(problem.status)
    job = None if problem.job_id is UNSET else problem.job_id
    field = None if problem.field is UNSET else problem.field
    return kind(_text(problem), code=problem.code, job_id=job, field=field)


def _text(problem: Problem) -> str:
    """Say what happened; where only the server's log says more, under which name."""
    if problem.status < 500:
        return problem.detail
    return f"{problem.detail} (request {problem.request_id})"


def _by_status(status: int) -> type[e.HoldfastError]:
    return _BY_STATUS.get(status) or (e.ServerFailed if status >= 500 else e.HoldfastError)


def _tree(root: type[e.HoldfastError]) -> list[type[e.HoldfastError]]:
    return [root, *(found for child in root.__subclasses__() for found in _tree(child))]


# Only those that are made of a message, a code and a job: no other is told over HTTP.
_KINDS = {
    kind.code: kind for kind in _tree(e.HoldfastError) if kind.__init__ is e.HoldfastError.__init__
}
