"""Redaction: an app's own function removes secrets from texts before they are stored or logged.

It sees the texts of errors, their tracebacks and log lines, never arguments or results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

Redact: TypeAlias = Callable[[str], str]
WITHHELD = "(withheld: the app's redact function failed)"
"""Replaces a text that could not be redacted: it may hold what must not be shown."""

REDACTOR: ContextVar[Redact | None] = ContextVar("holdfast_redact", default=None)
"""The function by which texts are redacted here; a thread has to be given it."""


@contextmanager
def redacting(redact: Redact | None) -> Iterator[None]:
    """Redact what is stored or logged from here, and from all tasks that are started here."""
    token = REDACTOR.set(redact)
    try:
        yield
    finally:
        REDACTOR.reset(token)


def redact_from_now_on(redact: Redact | None) -> None:
    """Redact whatever this context and those made from it store or log."""
    REDACTOR.set(redact)


def is_redacting() -> bool:
    """Return whether texts are redacted here."""
    return REDACTOR.get() is not None


def redacted(text: str) -> str:
    """Return a text without its secrets; never the text itself where that failed."""
    redact = REDACTOR.get()
    if redact is None:
        return text
    try:
        cleaned: object = redact(text)
    except Exception:  # noqa: BLE001  a user's function may raise anything
        return WITHHELD
    return cleaned if isinstance(cleaned, str) else WITHHELD


def redacted_json(value: Any) -> Any:
    """Redact every text within a JSON value."""
    match value:
        case str():
            return redacted(value)
        case list():
            return [redacted_json(one) for one in value]
        case dict():
            return {redacted_json(key): redacted_json(one) for key, one in value.items()}
        case _:
            return value
