"""What a handler raised: told by its process, raised again in the worker.

Only text and plain fields cross, so that no exception is too odd for it. The worker gets the class
that decides what becomes of the job; the report says the rest.
"""

from __future__ import annotations

import msgspec

from holdfast import errors
from holdfast.flow.reports import report_of
from holdfast.runners.wire import Condition, Raised

# The narrower before the wider.
_KINDS: tuple[type[errors.HoldfastError], ...] = (
    errors.TransientError,
    errors.PermanentError,
    errors.ValidationError,
    errors.BadData,
    errors.LeaseConflictError,
)
_BY_NAME = {kind.__name__: kind for kind in _KINDS}


def raised(error: BaseException, condition: Condition) -> Raised:
    """Tell the worker what the handler raised."""
    kind = next((kind for kind in _KINDS if issubclass(type(error), kind)), None)
    return Raised(
        report=report_of(error),
        condition=condition,
        kind=None if kind is None else kind.__name__,
        retry_in=_seconds(getattr(error, "retry_in", None)) if kind else None,
        job_id=_text(getattr(error, "job_id", None)) if kind else None,
    )


def error_of(told: Raised) -> errors.HoldfastError:
    """Make the error that the worker raises for what a handler's process told."""
    kind = _BY_NAME.get(told.kind or "")
    if kind is None:
        return errors.RemoteError(told.report)
    words = {"code": told.report.code, "job_id": told.job_id}
    error: errors.HoldfastError
    if kind is errors.TransientError:
        error = errors.TransientError(told.report.message, retry_in=told.retry_in, **words)
    else:
        error = kind(told.report.message, **words)
    error.report = told.report
    return error


def not_loaded(app: str, report: errors.ErrorReport) -> errors.RemoteError:
    """Make the error for an app that a handler's process could not load."""
    message = f"{app} could not be loaded in the handler's process: {report.message}"
    return errors.RemoteError(msgspec.structs.replace(report, message=message))


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
