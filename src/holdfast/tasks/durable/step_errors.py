"""How a step's error is recorded, and raised again by a later attempt: as the same class, if this
process has it, so that the handler's `except` matches.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.errors import ErrorReport, HoldfastError, StepFailed
from holdfast.lifecycle.payload import Body, decode_body, encode_body
from holdfast.queries.error_reports import describe_error
from holdfast.telemetry.redaction import redacted_json

ARGUMENTS_LIMIT = 4_000
"""Bytes of JSON that the arguments of an error may have, to be kept as they are."""


class RecordedError(Struct, frozen=True, kw_only=True):
    """An error as a step's record keeps it."""

    report: ErrorReport
    classes: list[tuple[str, str]]
    """Its class and those above it, each by module and name."""
    arguments: list[Any]


def step_error_body(error: Exception) -> Body:
    """Return an error as a step's record keeps it."""
    report = describe_error(error)
    kinds = [kind for kind in type(error).__mro__ if issubclass(kind, Exception)]
    recorded = RecordedError(
        report=report,
        classes=[(kind.__module__, kind.__qualname__) for kind in kinds],
        arguments=_storable_arguments(error, report),
    )
    return encode_body(msgspec.to_builtins(recorded), "the error of a step")


def recorded_error(body: bytes | None) -> Exception:
    """Return the error that a step's record keeps."""
    recorded = msgspec.convert(decode_body(body), RecordedError)
    error = _rebuild_error(recorded)
    if isinstance(error, HoldfastError):
        error.code, error.report = recorded.report.code, recorded.report
    error.add_note("raised by an earlier attempt, and recorded")
    return error


def _storable_arguments(error: Exception, report: ErrorReport) -> list[Any]:
    try:
        arguments = decode_body(encode_body(list(error.args), limit=ARGUMENTS_LIMIT))
        return list(redacted_json(arguments))
    except Exception:  # noqa: BLE001  an error may hold anything
        return [report.message]


def _rebuild_error(recorded: RecordedError) -> Exception:
    for module, name in recorded.classes:
        kind = _find_class(module, name)
        if kind is not None and kind is not Exception:
            return _make_instance(kind, recorded.arguments)
    return StepFailed(f"{recorded.report.type}: {recorded.report.message}")


def _find_class(module: str, name: str) -> type[Exception] | None:
    """Find a class in what is imported: nothing is imported because a ledger names it."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _make_instance(kind: type[Exception], arguments: list[Any]) -> Exception:
    try:
        return kind(*arguments)
    except Exception:  # noqa: BLE001  its own way to be made may want what was not kept
        error = kind.__new__(kind)
        error.args = tuple(arguments)
        return error
