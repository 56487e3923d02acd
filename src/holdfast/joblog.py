"""`ctx.log`: a logger bound to a job. What it says goes to the process's log, and into the job's.

That keeps INFO and above, whatever the process's log shows, and what is below where that shows it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

from holdfast.errors import RemoteError
from holdfast.flow.redaction import Redact, current_redactor, is_redacting, redacting
from holdfast.flow.reports import fitting, report_of
from holdfast.ports import LOG_TEXT

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
        """Speak through a logger; each line is handed to `keep`, too.

        `redact` is the app's: a thread that the handler started does not know it.
        """
        super().__init__(logger, extra)
        self._keep = keep
        self._redact = redact

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Say a line."""
        shown = self.isEnabledFor(level)
        with redacting(self._redact or current_redactor()):
            if shown or level >= logging.INFO:
                self._keep(level, _line(msg, args, kwargs.get("exc_info")))
            if shown and is_redacting():
                # Whatever formats the record must not see more than is kept.
                error = _error(kwargs.get("exc_info"))
                kwargs["exc_info"] = None if error is None else RemoteError(report_of(error))
                msg, args = "%s", (_line(msg, args, None),)
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


def _line(msg: object, args: tuple[object, ...], given: Any) -> str:
    """Put a line together as logging would; a call that is wrong must not lose its line."""
    try:
        record = logging.LogRecord("", logging.INFO, "", 0, msg, args, None)
        text = fitting(record.getMessage(), LOG_TEXT)
    except Exception:  # noqa: BLE001  what a handler says may be of any class
        text = fitting(msg if isinstance(msg, str) else f"<{type(msg).__qualname__}>", LOG_TEXT)
    error = _error(given)
    room = LOG_TEXT - len(text) - 1
    if error is None or room <= 0:
        return text
    # Its end says what happened where.
    return f"{text}\n{report_of(error).traceback.rstrip()[-room:]}"


def _error(given: Any) -> BaseException | None:
    """Read what `exc_info` may be."""
    match given:
        case BaseException():
            return given
        case (_, BaseException() as error, _):
            return error
        case None | False:
            return None
        case _:
            return sys.exception()
