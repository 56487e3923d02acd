"""Spans of OpenTelemetry, by its API alone. Only `tracing` comes here, and only if it is in use."""

from __future__ import annotations

from contextvars import Token
from types import TracebackType

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context

from holdfast import __version__
from holdfast.telemetry.tracing import Traceparent

LONGEST_DESCRIPTION = 500

_tracer = trace.get_tracer("holdfast", __version__)


def has_provider() -> bool:
    """Return whether spans are collected.

    Called for every job. The public way costs a microsecond, and should the private name go away,
    then the answer is yes, and the API's own no-op spans are made.
    """
    return vars(trace).get("_TRACER_PROVIDER", _tracer) is not None


def active_traceparent() -> str | None:
    """Return the context of the active span, if there is one."""
    return _write_traceparent(trace.get_current_span().get_span_context())


def _write_traceparent(span: trace.SpanContext) -> str | None:
    if not span.is_valid:
        return None
    trace_id, span_id = trace.format_trace_id(span.trace_id), trace.format_span_id(span.span_id)
    return str(Traceparent(trace_id, span_id, span.trace_flags))


def open_submit_span(task: str, queue: str) -> Spanning:
    """Enclose a submit, as a child of the active span."""
    attributes: dict[str, str | int] = {"messaging.operation.type": "send"}
    return Spanning(
        f"submit {task}", trace.SpanKind.PRODUCER, None, attributes | _common(task, queue)
    )


def open_run_span(
    task: str, parent: Traceparent | None, job_id: str, attempt: int, queue: str
) -> Spanning:
    """Enclose an attempt, as a child of the submit's span; a root where there was none."""
    attributes: dict[str, str | int] = {
        "messaging.operation.type": "process",
        "messaging.message.id": job_id,
        "holdfast.job_id": job_id,
        "holdfast.attempt": attempt,
    }
    return Spanning(
        f"run {task}",
        trace.SpanKind.CONSUMER,
        _make_base_context(parent),
        attributes | _common(task, queue),
    )


def attached(parent: Traceparent | None) -> Attached:
    """Make a trace the current one without a span of its own; None for no trace at all."""
    return Attached(_make_base_context(parent))


def _common(task: str, queue: str) -> dict[str, str | int]:
    named: dict[str, str | int] = {"messaging.system": "holdfast", "holdfast.task": task}
    return named | {"messaging.destination.name": queue} if queue else named


def _make_base_context(parent: Traceparent | None) -> Context:
    """Start from an empty context: what the worker was started in does not concern the job."""
    if parent is None:
        return Context()
    span = trace.SpanContext(
        trace_id=int(parent.trace_id, 16),
        span_id=int(parent.span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(parent.flags),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(span), Context())


class Attached:
    """A context that is the current one until it is detached."""

    __slots__ = ("_token",)

    def __init__(self, context: Context) -> None:
        self._token = contexts.attach(context)

    def detach(self) -> None:
        """Go back to what was before."""
        contexts.detach(self._token)


class Spanning:
    """A span that is the active one while its block runs."""

    __slots__ = ("_attributes", "_base", "_kind", "_name", "_span", "_token")
    _span: trace.Span
    _token: Token[Context]

    def __init__(
        self,
        name: str,
        kind: trace.SpanKind,
        base: Context | None,
        attributes: dict[str, str | int],
    ) -> None:
        """Upon `base`, or upon what is active when it is entered."""
        self._name, self._kind, self._base, self._attributes = name, kind, base, attributes

    def __enter__(self) -> str | None:
        span = self._span = _tracer.start_span(
            self._name, self._base, kind=self._kind, attributes=self._attributes
        )
        self._token = contexts.attach(trace.set_span_in_context(span, self._base))
        return _write_traceparent(span.get_span_context())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        contexts.detach(self._token)
        if error is not None and self._span.is_recording():
            self._record_error(error)
        self._span.end()

    def _record_error(self, error: BaseException) -> None:
        """Record an error; a cancellation is not an error."""
        if not isinstance(error, Exception):
            self._span.set_attribute("holdfast.stopped_by", type(error).__name__)
            return
        self._span.record_exception(error)
        text = f"{type(error).__name__}: {error}"[:LONGEST_DESCRIPTION]
        self._span.set_status(trace.Status(trace.StatusCode.ERROR, text))
