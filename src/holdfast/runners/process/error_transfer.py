"""Errors of handlers on their way from their process into the worker.

Only text and plain fields cross, so that any exception can. The worker gets the class that decides
how the job ends; the report has the rest.
"""

from __future__ import annotations

import asyncio
from math import inf

import msgspec

from holdfast import errors
from holdfast.errors import ErrorReport, HoldfastError, TransientError
from holdfast.queries.error_reports import describe_error
from holdfast.runners.process.protocol import ProcessCondition, Raised

# All of ours that are made from a message and a code; what else they carry is in the report.
_KINDS: dict[str, type[HoldfastError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(kind, HoldfastError)
    and kind is not HoldfastError
    and kind.__init__ in (HoldfastError.__init__, TransientError.__init__)
}
_CANCELLED = asyncio.CancelledError.__name__


def describe_raised(error: BaseException, condition: ProcessCondition) -> Raised:
    """Return the message about what a handler raised."""
    ours = issubclass(type(error), HoldfastError)
    return Raised(
        report=describe_error(error),
        condition=condition,
        kind=_find_deciding_class(error),
        retry_in=_seconds(getattr(error, "retry_in", None)) if ours else None,
        job_id=_text(getattr(error, "job_id", None)) if ours else None,
    )


def error_of(message: Raised) -> BaseException:
    """Return the error that the worker raises for that message."""
    if message.kind == _CANCELLED:
        return asyncio.CancelledError(message.report.message)
    kind = _KINDS.get(message.kind or "")
    if kind is None:
        return errors.RemoteError(message.report)
    error = _make_error(kind, message)
    error.report = message.report
    return error


def _make_error(kind: type[HoldfastError], message: Raised) -> HoldfastError:
    text, code, job_id = message.report.message, message.report.code, message.job_id
    if kind is TransientError:
        return TransientError(text, retry_in=message.retry_in, code=code, job_id=job_id)
    return kind(text, code=code, job_id=job_id)


def _find_deciding_class(error: BaseException) -> str | None:
    """Return the nearest class of an error that decides how the job ends."""
    if issubclass(type(error), asyncio.CancelledError):
        return _CANCELLED
    names = (kind.__name__ for kind in type(error).__mro__ if kind in _KINDS.values())
    return next(names, None)


def not_loaded(app: str, report: ErrorReport) -> errors.RemoteError:
    """Return the error for an app that a handler's process could not load."""
    message = f"{app} could not be loaded in the handler's process: {report.message}"
    return errors.RemoteError(msgspec.structs.replace(report, message=message))


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < inf else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
