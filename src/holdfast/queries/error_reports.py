"""Errors as text: type, message, traceback and what they came from, all bounded and writable.

Describing an error never fails, whatever a handler's exception does when it is read.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from types import FrameType
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.errors import ErrorReport, HoldfastError, RemoteError
from holdfast.telemetry.redaction import is_redacting, redacted

__all__ = ["ErrorReport", "describe_error", "redact_and_cut", "writable"]

MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 20_000
CHAIN_LIMIT = 5
FRAMES_LIMIT = 100
TYPE_LIMIT = 200
NOTES_LIMIT = 5
REDACTED_LIMIT = 100_000
"""Characters of one text that an app's redact function is given: it may take long for more."""
REDACTED_EDGE = 1_000
"""Characters left out at the end of a text that was cut before it was redacted."""

_HEADINGS = {
    "cause": "Caused by",
    "context": "While handling",
    "member": "Member of the group",
}

T = TypeVar("T")


def describe_error(error: BaseException) -> ErrorReport:
    """Describe an error, redacted; one from another process as it was described there."""
    known = _look_safely(lambda: error.report if _is(error, HoldfastError) else None, None)  # type: ignore[attr-defined]
    if type(known) is ErrorReport:
        return _redacted_report(known) if is_redacting() else known
    behind = list(islice(_walk_causes(error), CHAIN_LIMIT))
    return ErrorReport(
        type=_type_name(error),
        message=_message(error),
        code=_code(error),
        traceback=_shorten(redacted(_tracebacks(error, behind)), TRACEBACK_LIMIT),
        chain=tuple(
            {"relation": relation, "type": _type_name(other), "message": _message(other)}
            for relation, other in behind
        ),
    )


def _redacted_report(report: ErrorReport) -> ErrorReport:
    return replace(
        report,
        message=redact_and_cut(report.message, MESSAGE_LIMIT),
        traceback=_shorten(redacted(report.traceback), TRACEBACK_LIMIT),
        chain=tuple(
            {**one, "message": redact_and_cut(one["message"], MESSAGE_LIMIT)}
            for one in report.chain
        ),
    )


def redact_and_cut(text: str, limit: int) -> str:
    """Redact text, then cut it to a length: a secret that was cut would not be recognised."""
    if is_redacting() and len(text) > REDACTED_LIMIT:
        # Its end may be half a secret.
        return writable(redacted(text[:REDACTED_LIMIT])[:-REDACTED_EDGE], limit)
    return writable(redacted(text), limit)


def writable(text: str, limit: int) -> str:
    """Cut text to a length, and replace what no database text can hold: NUL, lone surrogates."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return cut.replace("\0", "�").encode("utf-8", "replace").decode()


def _walk_causes(error: BaseException) -> Iterator[tuple[str, BaseException]]:
    """Return the causes of an error, nearest first, each once: causes may form a cycle."""
    seen, waiting = {id(error)}, deque([error])
    while waiting:
        for relation, other in _next_to(waiting.popleft()):
            if id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)
                yield relation, other


def _next_to(error: BaseException) -> list[tuple[str, BaseException]]:
    nothing: list[tuple[str, BaseException]] = []
    return _look_safely(lambda: _list_direct_exceptions(error), nothing)


def _list_direct_exceptions(error: BaseException) -> list[tuple[str, BaseException]]:
    found: list[tuple[str, BaseException]] = []
    if error.__cause__ is not None:
        found.append(("cause", error.__cause__))
    elif error.__context__ is not None and not error.__suppress_context__:
        found.append(("context", error.__context__))
    if isinstance(error, BaseExceptionGroup):
        found += [("member", member) for member in error.exceptions[:CHAIN_LIMIT]]
    return found


def _tracebacks(error: BaseException, behind: list[tuple[str, BaseException]]) -> str:
    parts = [_traceback(error)]
    parts += [f"{_HEADINGS[relation]}:\n{_traceback(other)}" for relation, other in behind]
    return "\n".join(parts)


def _traceback(error: BaseException) -> str:
    frames = _look_safely(lambda: _format_frames(error), "")
    notes = _look_safely(lambda: _notes(error), "")
    return f"{frames}{_type_name(error)}: {_message(error)}\n{notes}"


def _format_frames(error: BaseException) -> str:
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return ""
    # The middle of an endless recursion shows nothing that its ends do not.
    left_out = len(frames) - 2 * FRAMES_LIMIT
    if left_out <= 0:
        shown = _format(frames)
    else:
        head, tail = _format(frames[:FRAMES_LIMIT]), _format(frames[-FRAMES_LIMIT:])
        shown = f"{head}  … {left_out:,} more frames …\n{tail}"
    return f"Traceback (most recent call last):\n{shown}"


def _format(frames: list[tuple[FrameType, int]]) -> str:
    return "".join(traceback.StackSummary.extract(iter(frames)).format())


def _notes(error: BaseException) -> str:
    notes: Any = getattr(error, "__notes__", [])
    return "".join(f"{redact_and_cut(str(note), MESSAGE_LIMIT)}\n" for note in notes[:NOTES_LIMIT])


def _code(error: BaseException) -> str:
    if not _is(error, HoldfastError):
        return RemoteError.code
    return writable(_look_safely(lambda: str(error.code), "error"), TYPE_LIMIT)  # type: ignore[attr-defined]


def _type_name(error: BaseException) -> str:
    kind = type(error)
    module = _look_safely(lambda: str(kind.__module__), "?")
    name = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    return writable(name, TYPE_LIMIT)


def _message(error: BaseException) -> str:
    return redact_and_cut(
        _look_safely(lambda: str(error), "(its text cannot be read)"), MESSAGE_LIMIT
    )


def _shorten(text: str, limit: int) -> str:
    """Keep the head and the tail: where it started, and where it broke."""
    if len(text) > limit:
        half = limit // 2 - 20
        text = f"{text[:half]}\n… {len(text) - 2 * half:,} characters …\n{text[-half:]}"
    return writable(text, limit)


def _is(error: BaseException, kind: type[BaseException]) -> bool:
    # Not isinstance: it would ask the object for its __class__, which may be code.
    return issubclass(type(error), kind)


def _look_safely(look: Callable[[], T], otherwise: T) -> T:
    try:
        return look()
    except BaseException:  # noqa: BLE001  (an exception's own methods may raise anything)
        return otherwise
