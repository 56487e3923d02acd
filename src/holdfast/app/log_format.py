"""Log lines: one JSON object each for machines, or one line each for people.

Every line names the job, attempt and trace it belongs to. What a handler or a submitter wrote can
neither end a line nor reach a terminal as a command. Lines are written at once, not by a thread of
their own: the last words before a crash are those that count.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum
from traceback import format_exception
from typing import Any, TextIO

from holdfast.errors import ErrorReport, HoldfastError
from holdfast.tasks.context import current_context
from holdfast.telemetry.tracing import current_traceparent, trace_id_of

LONGEST_TEXT = 16_000
MOST_EXTRAS = 30
OURS = ("job_id", "attempt", "task", "worker", "trace_id", "correlation_id")
"""Fields of their own in every line, where they are known."""

_COMMON = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", *OURS}
_FAR = 2**53
_MARKS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "CRITICAL": "\x1b[1;31m"}


class LogFormat(StrEnum):
    """How lines look."""

    TEXT = "text"
    JSON = "json"


class Severity(StrEnum):
    """How grave a line is, from the least."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in ASCII: nothing in it can break the line or move a cursor."""

    def __init__(self, worker: str | None = None) -> None:
        """Name the worker in every line that does not name one itself."""
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        line = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _format_message(record),
            **_collect_fields(record, self._worker),
        }
        if (error := _describe_error(record)) is not None:
            line["error"] = error
        if extras := _extras(record):
            line["extra"] = extras
        return json.dumps(line, ensure_ascii=True, default=_text)


class TextFormatter(logging.Formatter):
    """One line per record for a person; a traceback follows, set off from it."""

    def __init__(self, worker: str | None = None, *, colour: bool = False) -> None:
        """Name the worker in every line that does not name one itself."""
        super().__init__()
        self._worker = worker
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        fields = _collect_fields(record, self._worker) | _extras(record)
        shown = printable(" ".join(f"{name}={value}" for name, value in fields.items()))
        message = printable(f"{record.name}: {_format_message(record)}")
        line = f"{_time(record)} {self._level(record)} {message}"
        lines = [f"{line}  [{shown}]" if shown else line]
        if (error := _describe_error(record)) is not None:
            # Indented, so that no line of a traceback can pass for a record of its own.
            lines += [f"    {printable(each)}" for each in error["traceback"].splitlines()]
        return "\n".join(lines)

    def _level(self, record: logging.LogRecord) -> str:
        name = printable(f"{record.levelname:<7}")
        mark = _MARKS.get(record.levelname) if self._colour else None
        return name if mark is None else f"{mark}{name}\x1b[0m"


def printable(text: str) -> str:
    """Escape what is not plain text: line ends, controls, marks that turn the direction."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def configure_logging(
    format: LogFormat | str = LogFormat.TEXT,
    level: str | int = Severity.INFO,
    *,
    worker: str | None = None,
    stream: TextIO | None = None,
) -> None:
    """Send the process's log to a stream, by default stderr. Again replaces what it set before."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    if LogFormat(format) is LogFormat.JSON:
        handler.setFormatter(JsonFormatter(worker))
    else:
        handler.setFormatter(TextFormatter(worker, colour=stream.isatty()))
    handler.set_name("holdfast")
    root = logging.getLogger()
    for old in [each for each in root.handlers if each.get_name() == "holdfast"]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper() if isinstance(level, str) else level)


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _format_message(record: logging.LogRecord) -> str:
    try:
        return _cut(record.getMessage())
    except Exception:  # noqa: BLE001 - a log call that is wrong must not lose its line
        return _cut(f"{_text(record.msg)} {_text(record.args)}")


def _collect_fields(record: logging.LogRecord, worker: str | None) -> dict[str, Any]:
    """Name the job: as the caller named it, else as it is known here."""
    known: dict[str, Any] = {"worker": worker, "trace_id": trace_id_of(current_traceparent())}
    context = current_context.get(None)
    if context is not None:
        job = context.job
        known |= {"job_id": job.id, "attempt": context.attempt, "task": job.task}
        known["correlation_id"] = job.correlation_id
        known["trace_id"] = job.trace_id or known["trace_id"]
    given = {name: getattr(record, name, None) for name in OURS}
    fields = {name: known.get(name) if given[name] is None else given[name] for name in OURS}
    return {name: _plain(value) for name, value in fields.items() if value is not None}


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    """Take what else the caller gave by `extra`, up to a bound."""
    named = [name for name in vars(record) if name not in _COMMON][:MOST_EXTRAS]
    return {_cut(str(name)): _plain(getattr(record, name)) for name in named}


def _describe_error(record: logging.LogRecord) -> dict[str, str] | None:
    if record.exc_info is None or record.exc_info[1] is None:
        return None
    error = record.exc_info[1]
    report = getattr(error, "report", None) if isinstance(error, HoldfastError) else None
    if isinstance(report, ErrorReport):
        # Raised in another process, or redacted: the report describes it, this object does not.
        return {
            "type": report.type,
            "message": _cut(report.message),
            "traceback": report.traceback[-LONGEST_TEXT:],
            "code": report.code,
        }
    shown = {
        "type": type(error).__qualname__,
        "message": _cut(_text(error)),
        # Its end shows what happened where.
        "traceback": "".join(_format_traceback(error))[-LONGEST_TEXT:],
    }
    return shown | {"code": error.code} if isinstance(error, HoldfastError) else shown


def _format_traceback(error: BaseException) -> list[str]:
    try:
        return format_exception(error)
    except Exception:  # noqa: BLE001 - an error of a hostile class
        return [f"{type(error).__qualname__}: its traceback cannot be shown"]


def _plain(value: Any) -> Any:
    """Keep numbers that every reader of JSON takes; all else as text, within the bound."""
    if isinstance(value, bool | None) or (isinstance(value, int | float) and -_FAR < value < _FAR):
        return value
    return _cut(_text(value))


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - a value of a hostile class
        return f"<{type(value).__qualname__}>"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text)} characters)"
