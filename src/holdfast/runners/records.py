"""Log records on their way from a handler's process into the worker's logging."""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.flow.reports import writable
from holdfast.runners.wire import LogRecord

TEXT_LIMIT = 20_000
FIELD_LIMIT = 1_000
FIELDS_LIMIT = 32

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def log_levels() -> dict[str, int]:
    """The levels that this process set, by logger: what it would drop need not be sent."""
    loggers = {"": logging.root, **logging.root.manager.loggerDict}
    return {
        name: logger.level
        for name, logger in loggers.items()
        if isinstance(logger, logging.Logger) and logger.level
    }


def forward(send: Callable[[LogRecord], None], levels: dict[str, int]) -> Forwarder:
    """Have everything that is logged here sent to the worker, at its levels."""
    forwarder = Forwarder(send)
    logging.root.addHandler(forwarder)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    return forwarder


class Forwarder(logging.Handler):
    """Hands every record to the worker."""

    def __init__(self, send: Callable[[LogRecord], None]) -> None:
        """Send through the process's channel."""
        super().__init__()
        self._send = send

    def step_aside(self) -> None:
        """Stop if the app has set up handlers of its own: nothing shall be said twice."""
        if logging.root.handlers != [self]:
            logging.root.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Put the record into words: only text crosses."""
        try:
            self._send(_in_words(record))
        except Exception:  # noqa: BLE001  (a log record that cannot be told must not fail the job)
            self.handleError(record)


def replay(told: LogRecord) -> None:
    """Let the worker's logging treat a record as if it had been made here."""
    logger = logging.getLogger(told.name)
    if not logger.isEnabledFor(told.level):
        return
    record = logging.LogRecord(
        told.name, told.level, told.pathname, told.line, told.message, None, None, told.function
    )
    record.created, record.process, record.threadName = told.created, told.process, told.thread
    record.msecs = int((told.created % 1) * 1000) + 0.0
    record.exc_text = told.traceback
    vars(record).update({name: told.fields[name] for name in told.fields.keys() - _STANDARD})
    logger.handle(record)


def _in_words(record: logging.LogRecord) -> LogRecord:
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
    return {writable(name, 200): _field(vars(record)[name]) for name in extra[:FIELDS_LIMIT]}


def _field(value: object) -> str | int | float | bool | None:
    match value:
        case None | bool() | float():
            return value
        case int() if abs(value) < 2**63:
            return int(value)
        case _:
            return writable(str(value), FIELD_LIMIT)
