"""Traces: the W3C context of a submit goes with the job to its handler, and on from there.

With OpenTelemetry there are spans; without it, or without a provider, the context alone is carried.
OpenTelemetry is never imported here before the application has done so: until then there can be no
provider, and it would cost every start.
"""

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from types import ModuleType

TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
LONGEST_TRACEPARENT = 512

_carried: ContextVar[str | None] = ContextVar("holdfast_traceparent", default=None)
"""The trace context of the code that runs here, where no span of OpenTelemetry has it."""


class Traceparent(Struct, frozen=True):
    """A W3C trace context: which trace, which span of it, and whether it is sampled."""

    trace_id: str
    span_id: str
    flags: int

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


def read_traceparent(text: str | None) -> Traceparent | None:
    """Read a `traceparent`; None for garbage, which is ignored."""
    if not isinstance(text, str) or len(text) > LONGEST_TRACEPARENT:
        return None
    found = TRACEPARENT.match(text)
    if found is None:
        return None
    # A later version may have more behind a dash; version 00 may not.
    rest = text[found.end() :]
    if rest and (text.startswith("00") or not rest.startswith("-")):
        return None
    trace_id, span_id, flags = found.groups()
    if trace_id == "0" * 32 or span_id == "0" * 16:
        return None
    return Traceparent(trace_id, span_id, int(flags, 16))


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the trace that a `traceparent` belongs to; None for garbage."""
    read = read_traceparent(traceparent)
    return None if read is None else read.trace_id


def current_traceparent() -> str | None:
    """Return the context to hand on: that of the active span, else the one carried here."""
    otel = _find_otel()
    active: str | None = None if otel is None else otel.active_traceparent()
    return active or _carried.get()


class Span(Protocol):
    """A stretch of work. Entering it returns the `traceparent` to hand on."""

    def __enter__(self) -> str | None:
        """Start."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End, also by an error."""


def submit_span(task: str, queue: str = "") -> Span:
    """Enclose a submit. What it returns on entering belongs into the job."""
    otel = _find_otel()
    if otel is not None and otel.has_provider():
        span: Span = otel.open_submit_span(task, queue)
        return span
    return _HERE


def run_span(
    task: str, traceparent: str | None, job_id: str, attempt: int, queue: str = ""
) -> Span:
    """Enclose an attempt, as a child of the span that submitted the job.

    Whatever context the worker itself was started in is left outside.
    """
    otel = _find_otel()
    if otel is not None and otel.has_provider():
        span: Span = otel.open_run_span(task, read_traceparent(traceparent), job_id, attempt, queue)
        return span
    return carry(traceparent) if is_traced(traceparent) else UNTRACED


def is_traced(traceparent: str | None) -> bool:
    """Return whether a `run_span` would do anything."""
    if traceparent is not None or _carried.get() is not None:
        return True
    otel = _find_otel()
    return otel is not None and bool(otel.has_provider() or otel.active_traceparent())


def carry(traceparent: str | None) -> Span:
    """Run the enclosed code in a trace, without a span: in a child process, or after HTTP.

    Garbage, like None, means no trace.
    """
    return _Carried(read_traceparent(traceparent))


class _Here:
    """Changes nothing, and returns the current trace."""

    __slots__ = ()

    def __enter__(self) -> str | None:
        return current_traceparent()

    def __exit__(self, *_: object) -> None:
        pass


_HERE = _Here()
UNTRACED: Span = nullcontext()
"""Most jobs."""


class _Carried:
    """Carries a context, and lets OpenTelemetry's own propagation know of it."""

    __slots__ = ("_attached", "_parent", "_token")
    _token: Token[str | None]

    def __init__(self, parent: Traceparent | None) -> None:
        self._parent = parent

    def __enter__(self) -> str | None:
        traceparent = None if self._parent is None else str(self._parent)
        self._token = _carried.set(traceparent)
        otel = _find_otel()
        self._attached = None if otel is None else otel.attached(self._parent)
        return traceparent

    def __exit__(self, *_: object) -> None:
        if self._attached is not None:
            self._attached.detach()
        _carried.reset(self._token)


def _find_otel() -> ModuleType | None:
    """Return the bridge to OpenTelemetry, once the application has imported it."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    return _bridge or _import_otel()


_bridge: ModuleType | None = None


def _import_otel() -> ModuleType:
    global _bridge  # noqa: PLW0603 - a module is imported once
    from holdfast.telemetry import otel

    _bridge = otel
    return otel
