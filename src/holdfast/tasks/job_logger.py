"""`ctx.log`: a logger that writes to the process's log and to the log of a job.

The log of a job keeps lines of INFO and above, and lower levels if the process's log shows them.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

from holdfast.errors import RemoteError
from holdfast.ports.models import LOG_TEXT
from holdfast.queries.error_reports import describe_error, redact_and_cut
from holdfast.telemetry.redaction import REDACTOR, Redact, is_redacting, redacting

Keep: TypeAlias = Callable[[int, str], None]
"""Takes a level and a line. Callable from any thread; never blocks."""


class JobLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger whose every record names the job, the attempt and the trace."""

    def __init__(
        self,
        logger: logging.Logger,
        extra: Mapping[str, object],
        keep: Keep,
        redact: Redact | None = None,
    ) -> None:
        """Write to a logger, and pass each line to `keep`.

        `redact` is the app's function, which a thread that the handler started cannot see.
        """
        super().__init__(logger, extra)
        self._keep = keep
        self._redact = redact

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line."""
        shown = self.isEnabledFor(level)
        with redacting(self._redact or REDACTOR.get()):
            if shown or level >= logging.INFO:
                self._keep(level, _format_line(msg, args, kwargs.get("exc_info")))
            if shown and is_redacting():
                # Whatever formats the record must not see more than is kept.
                error = _find_exception(kwargs.get("exc_info"))
                kwargs["exc_info"] = None if error is None else RemoteError(describe_error(error))
                msg, args = "%s", (_format_line(msg, args, None),)
            if shown:
                # The caller is one frame further up than the logger would look.
                kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
                super().log(level, msg, *args, **kwargs)

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the job's fields to what the caller gave."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def _format_line(msg: object, args: tuple[object, ...], given: Any) -> str:
    """Format a line as logging does; a wrong call must not lose its line."""
    try:
        record = logging.LogRecord("", logging.INFO, "", 0, msg, args, None)
        text = redact_and_cut(record.getMessage(), LOG_TEXT)
    except Exception:  # noqa: BLE001  a handler may log an object of any class
        text = redact_and_cut(
            msg if isinstance(msg, str) else f"<{type(msg).__qualname__}>", LOG_TEXT
        )
    error = _find_exception(given)
    room = LOG_TEXT - len(text) - 1
    if error is None or room <= 0:
        return text
    # The end of a traceback names the error and its place.
    return f"{text}\n{describe_error(error).traceback.rstrip()[-room:]}"


def _find_exception(given: Any) -> BaseException | None:
    """Return the exception of an `exc_info` argument."""
    match given:
        case BaseException():
            return given
        case (_, BaseException() as error, _):
            return error
        case None | False:
            return None
        case _:
            return sys.exception()
