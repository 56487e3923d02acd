"""What a handler raised: told by its process, raised again in the worker.

Only text and plain fields cross, so that no exception is too odd for it. The worker gets the class
that decides what becomes of the job; the report says the rest.
"""

from __future__ import annotations

import asyncio
from math import inf

import msgspec

from holdfast import errors
from holdfast.errors import ErrorReport, HoldfastError, TransientError
from holdfast.flow.reports import report_of
from holdfast.runners.wire import Condition, Raised

# All of ours that are made from a message and a code; what else they may carry is in the report.
_KINDS: dict[str, type[HoldfastError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(kind, HoldfastError)
    and kind is not HoldfastError
    and kind.__init__ in (HoldfastError.__init__, TransientError.__init__)
}
_CANCELLED = asyncio.CancelledError.__name__


def raised(error: BaseException, condition: Condition) -> Raised:
    """Tell the worker what the handler raised."""
    ours = issubclass(type(error), HoldfastError)
    return Raised(
        report=report_of(error),
        condition=condition,
        kind=_kind(error),
        retry_in=_seconds(getattr(error, "retry_in", None)) if ours else None,
        job_id=_text(getattr(error, "job_id", None)) if ours else None,
    )


def error_of(told: Raised) -> BaseException:
    """Make the error that the worker raises for what a handler's process told."""
    if told.kind == _CANCELLED:
        return asyncio.CancelledError(told.report.message)
    kind = _KINDS.get(told.kind or "")
    if kind is None:
        return errors.RemoteError(told.report)
    error = _made(kind, told)
    error.report = told.report
    return error


def _made(kind: type[HoldfastError], told: Raised) -> HoldfastError:
    message, code, job_id = told.report.message, told.report.code, told.job_id
    if kind is TransientError:
        return TransientError(message, retry_in=told.retry_in, code=code, job_id=job_id)
    return kind(message, code=code, job_id=job_id)


def _kind(error: BaseException) -> str | None:
    """Name the nearest class of an error that decides what becomes of the job."""
    if issubclass(type(error), asyncio.CancelledError):
        return _CANCELLED
    names = (kind.__name__ for kind in type(error).__mro__ if kind in _KINDS.values())
    return next(names, None)


def not_loaded(app: str, report: ErrorReport) -> errors.RemoteError:
    """Make the error for an app that a handler's process could not load."""
    message = f"{app} could not be loaded in the handler's process: {report.message}"
    return errors.RemoteError(msgspec.structs.replace(report, message=message))


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < inf else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
