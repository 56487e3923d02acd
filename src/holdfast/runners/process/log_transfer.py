"""Log records on their way from a handler's process into the worker's logging."""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.queries.error_reports import writable
from holdfast.runners.process.protocol import LogRecord

TEXT_LIMIT = 20_000
FIELD_LIMIT = 1_000
FIELDS_LIMIT = 32

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def log_levels() -> dict[str, int]:
    """Return the levels of this process's loggers: what it would drop need not be sent."""
    loggers = {"": logging.root, **logging.root.manager.loggerDict}
    return {
        name: logger.level
        for name, logger in loggers.items()
        if isinstance(logger, logging.Logger) and logger.level
    }


def forward(send: Callable[[LogRecord], None], levels: dict[str, int]) -> LogForwarder:
    """Send all that is logged here to the worker, at its levels."""
    forwarder = LogForwarder(send)
    logging.root.addHandler(forwarder)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    return forwarder


class LogForwarder(logging.Handler):
    """Sends every record to the worker."""

    def __init__(self, send: Callable[[LogRecord], None]) -> None:
        super().__init__()
        self._send = send

    def step_aside(self) -> None:
        """Stop if the app has set up handlers of its own: nothing is logged twice."""
        if logging.root.handlers != [self]:
            logging.root.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record as text: nothing else crosses."""
        try:
            self._send(_record_as_text(record))
        except Exception:  # noqa: BLE001  (a record that cannot be sent must not fail the job)
            self.handleError(record)


def replay(sent: LogRecord) -> None:
    """Log a record in the worker as if it had been made there."""
    logger = logging.getLogger(sent.name)
    if not logger.isEnabledFor(sent.level):
        return
    record = logging.LogRecord(
        sent.name, sent.level, sent.pathname, sent.line, sent.message, None, None, sent.function
    )
    record.created, record.process, record.threadName = sent.created, sent.process, sent.thread
    record.msecs = int((sent.created % 1) * 1000) + 0.0
    record.exc_text = sent.traceback
    vars(record).update({name: sent.fields[name] for name in sent.fields.keys() - _STANDARD})
    logger.handle(record)


def _record_as_text(record: logging.LogRecord) -> LogRecord:
    return LogRecord(
        name=writable(record.name, FIELD_LIMIT),
        level=record.levelno,
        message=writable(record.getMessage(), TEXT_LIMIT),
        created=record.created,
        pathname=writable(record.pathname, FIELD_LIMIT),
        line=record.lineno,
        function=writable(record.funcName or "", FIELD_LIMIT),
        thread=writable(record.threadName or "", FIELD_LIMIT),
        process=record.process or 0,
        traceback=_traceback(record),
        fields=_fields(record),
    )


def _traceback(record: logging.LogRecord) -> str | None:
    if record.exc_info and not record.exc_text:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
    return writable(record.exc_text, TEXT_LIMIT) if record.exc_text else None


def _fields(record: logging.LogRecord) -> dict[str, str | int | float | bool | None]:
    extra = [name for name in vars(record) if name not in _STANDARD]
    return {writable(name, 200): _field_value(vars(record)[name]) for name in extra[:FIELDS_LIMIT]}


def _field_value(value: object) -> str | int | float | bool | None:
    match value:
        case None | bool() | float():
            return value
        case int() if abs(value) < 2**63:
            return int(value)
        case _:
            return writable(str(value), FIELD_LIMIT)
