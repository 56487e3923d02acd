"""How a step's error is remembered, and raised again by a later attempt: as the same class, as far
as this process knows it, so that the handler's `except` finds it.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.errors import ErrorReport, HoldfastError, StepFailed
from holdfast.flow.redaction import redacted_json
from holdfast.flow.reports import report_of
from holdfast.lifecycle.payload import Body, decode_body, encode_body

ARGUMENTS_LIMIT = 4_000
"""Bytes of JSON that the arguments of an error may have, to be kept as they are."""


class Failure(Struct, frozen=True, kw_only=True):
    """An error as it is remembered."""

    report: ErrorReport
    classes: list[tuple[str, str]]
    """Its class and those above it, each by module and name."""
    arguments: list[Any]


def told(error: Exception) -> Body:
    """Write an error down."""
    report = report_of(error)
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, Exception)]
    failure = Failure(
        report=report,
        classes=[(kind.__module__, kind.__qualname__) for kind in kinds],
        arguments=_arguments(error, report),
    )
    return encode_body(msgspec.to_builtins(failure), "the error of a step")


def remembered(body: bytes | None) -> Exception:
    """Make the error again that was written down."""
    failure = msgspec.convert(decode_body(body), Failure)
    error = _made(failure)
    if isinstance(error, HoldfastError):
        error.code, error.report = failure.report.code, failure.report
    error.add_note("raised by an earlier attempt, and remembered")
    return error


def _arguments(error: Exception, report: ErrorReport) -> list[Any]:
    try:
        arguments = decode_body(encode_body(list(error.args), limit=ARGUMENTS_LIMIT))
        return list(redacted_json(arguments))
    except Exception:  # noqa: BLE001  an error may hold anything
        return [report.message]


def _made(failure: Failure) -> Exception:
    for module, name in failure.classes:
        kind = _class(module, name)
        if kind is not None and kind is not Exception:
            return _instance(kind, failure.arguments)
    return StepFailed(f"{failure.report.type}: {failure.report.message}")


def _class(module: str, name: str) -> type[Exception] | None:
    """Find a class in what is imported: nothing is imported because a ledger names it."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _instance(kind: type[Exception], arguments: list[Any]) -> Exception:
    try:
        return kind(*arguments)
    except Exception:  # noqa: BLE001  its own way to be made may want what was not kept
        error = kind.__new__(kind)
        error.args = tuple(arguments)
        return error
