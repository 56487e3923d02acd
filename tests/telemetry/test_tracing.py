"""Traces: W3C context from submit to the handler and out, with OpenTelemetry and without."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from holdfast.telemetry import otel
from holdfast.telemetry.tracing import (
    Traceparent,
    carry,
    current_traceparent,
    read_traceparent,
    run_span,
    submit_span,
    trace_id_of,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GIVEN = f"00-{TRACE}-{SPAN}-01"


class Spans:
    """What was exported."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        """Read from an exporter in memory."""
        self._exporter = exporter

    def __getitem__(self, name: str) -> ReadableSpan:
        """Find the one span of a name."""
        (found,) = [span for span in self._exporter.get_finished_spans() if span.name == name]
        return found


def use(provider: TracerProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a provider for one test: the API itself lets it be set but once per process."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    monkeypatch.setattr(otel, "_tracer", provider.get_tracer("holdfast"))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """A real SDK that exports into memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    use(provider, monkeypatch)
    yield Spans(exporter)
    provider.shutdown()


def parent_of(span: ReadableSpan) -> int | None:
    """Name the span that it is a child of."""
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    """Name a span."""
    assert span.context is not None
    return int(span.context.span_id)


def test_a_traceparent_reads_back_as_it_was_written() -> None:
    read = read_traceparent(GIVEN)
    assert read == Traceparent(TRACE, SPAN, 1)
    assert str(read) == GIVEN
    assert trace_id_of(GIVEN) == TRACE
    assert read_traceparent(f"cc-{TRACE}-{SPAN}-03-what-comes-later") == Traceparent(TRACE, SPAN, 3)


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        "",
        "00",
        GIVEN.upper(),
        GIVEN + "\n",
        GIVEN + " ",
        " " + GIVEN,
        GIVEN + "-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-0g",
        f"00-{TRACE[:-1]}\u0661-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01-" + "x" * 5000,
        "\udc80",
    ],
)
def test_garbage_is_no_trace(garbage: str | None) -> None:
    assert read_traceparent(garbage) is None
    with run_span("mail", garbage, "j", 1) as traceparent:
        assert traceparent is None
        assert current_traceparent() is None


@pytest.mark.req("B23")
def test_without_a_provider_the_context_still_goes_on() -> None:
    with run_span("mail", GIVEN, "j", 1) as traceparent:
        assert traceparent == GIVEN
        with submit_span("next") as handed_on:
            assert handed_on == GIVEN
        headers: dict[str, str] = {}
        propagate.inject(headers)
        assert headers["traceparent"] == GIVEN, "what the handler calls by HTTP belongs to it too"
    assert current_traceparent() is None


@pytest.mark.req("B23")
def test_a_trace_goes_from_submit_to_the_handler_and_out(spans: Spans) -> None:
    tracer = trace.get_tracer("application")
    with tracer.start_as_current_span("request"), submit_span("mail", "default") as traceparent:
        pass
    assert current_traceparent() is None
    with run_span("mail", traceparent, "job-1", 2, "default"):
        with tracer.start_as_current_span("query"):
            pass
        with submit_span("next") as handed_on:
            assert handed_on == current_traceparent()
    with run_span("next", handed_on, "job-2", 1):
        pass
    for child, parent in (
        ("submit mail", "request"),
        ("run mail", "submit mail"),
        ("query", "run mail"),
        ("submit next", "run mail"),
        ("run next", "submit next"),
    ):
        assert parent_of(spans[child]) == id_of(spans[parent]), child
    assert trace_id_of(traceparent) == trace_id_of(handed_on)


def test_a_run_says_which_job_and_attempt_it_is(spans: Spans) -> None:
    with run_span("mail", None, "job-1", 2, "slow"):
        pass
    told = spans["run mail"].attributes or {}
    assert (told["holdfast.job_id"], told["holdfast.attempt"]) == ("job-1", 2)
    assert (told["holdfast.task"], told["messaging.destination.name"]) == ("mail", "slow")
    assert spans["run mail"].kind is trace.SpanKind.CONSUMER


def test_a_worker_that_was_started_inside_a_span_does_not_adopt_its_jobs(spans: Spans) -> None:
    with trace.get_tracer("application").start_as_current_span("startup"):
        with run_span("mail", None, "j", 1):
            pass
        with run_span("news", GIVEN, "j", 1):
            pass
    assert parent_of(spans["run mail"]) is None
    assert parent_of(spans["run news"]) == int(SPAN, 16)


def test_a_worker_that_carries_a_trace_does_not_hand_it_to_its_jobs() -> None:
    with carry(GIVEN):
        with run_span("mail", None, "j", 1) as traceparent:
            assert (traceparent, current_traceparent()) == (None, None)
        assert current_traceparent() == GIVEN


def test_a_failed_run_is_marked_and_a_cancelled_one_is_not_an_error(spans: Spans) -> None:
    with pytest.raises(ZeroDivisionError), run_span("mail", None, "j", 1):
        raise ZeroDivisionError("x" * 10_000)
    with pytest.raises(asyncio.CancelledError), run_span("news", None, "j", 1):
        raise asyncio.CancelledError
    failed, stopped = spans["run mail"], spans["run news"]
    assert failed.status.status_code is StatusCode.ERROR
    assert len(failed.status.description or "") <= 500
    assert [event.name for event in failed.events] == ["exception"]
    assert stopped.status.status_code is StatusCode.UNSET
    assert (stopped.attributes or {})["holdfast.stopped_by"] == "CancelledError"


def test_a_trace_that_is_not_sampled_goes_on_unsampled(monkeypatch: pytest.MonkeyPatch) -> None:
    use(TracerProvider(sampler=ALWAYS_OFF), monkeypatch)
    with submit_span("mail") as traceparent:
        read = read_traceparent(traceparent)
    assert read is not None
    assert read.flags & 1 == 0


async def test_each_of_many_attempts_has_its_own_trace(spans: Spans) -> None:
    async def attempt(number: int) -> str | None:
        with run_span(f"task-{number}", f"00-{number + 1:032x}-{SPAN}-01", "j", 1):
            await asyncio.sleep(0)
            return trace_id_of(current_traceparent())

    jobs = [asyncio.create_task(attempt(n), context=contextvars.Context()) for n in range(20)]
    assert await asyncio.gather(*jobs) == [f"{n + 1:032x}" for n in range(20)]
    assert parent_of(spans["run task-7"]) == int(SPAN, 16)


async def test_a_handler_in_a_thread_belongs_to_its_trace(spans: Spans) -> None:
    with run_span("mail", GIVEN, "j", 1):
        seen = await asyncio.to_thread(current_traceparent)
    assert seen == f"00-{TRACE}-{id_of(spans['run mail']):016x}-01"


def test_a_child_process_carries_the_trace_on(spans: Spans) -> None:
    with run_span("mail", GIVEN, "j", 1) as traceparent:
        pass
    with carry(traceparent), trace.get_tracer("application").start_as_current_span("in child"):
        pass
    assert parent_of(spans["in child"]) == id_of(spans["run mail"])


WITHOUT_OTEL = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from holdfast.telemetry.tracing import carry, current_traceparent, run_span, submit_span

assert current_traceparent() is None
with submit_span("mail") as traceparent:
    assert traceparent is None
with carry("{GIVEN}"), submit_span("mail") as traceparent:
    assert traceparent == "{GIVEN}", traceparent
with run_span("mail", traceparent, "j", 1), submit_span("next") as handed_on:
    assert handed_on == traceparent == current_traceparent()
with carry("{GIVEN}"), run_span("mail", None, "j", 1):
    assert current_traceparent() is None, "what the worker was started in is not the job's"
with carry("garbage") as nothing:
    assert nothing is None is current_traceparent()
assert current_traceparent() is None
assert not any(name.startswith("opentelemetry") for name in sys.modules)
"""


@pytest.mark.req("B23")
def test_a_trace_is_carried_where_opentelemetry_is_not_installed() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_OTEL], check=True, timeout=60)
