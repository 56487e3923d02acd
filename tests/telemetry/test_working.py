"""A real worker, as an operator sees it: scraped, traced and logged from submit to the last job."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from opentelemetry import trace

from holdfast import Context, Holdfast, TransientError
from holdfast.app.log_format import JsonFormatter
from holdfast.errors import JobError
from holdfast.telemetry.metrics_server import serve_metrics
from holdfast.telemetry.tracing import carry, current_traceparent, trace_id_of
from tests.telemetry.test_prometheus import get, scraped, value
from tests.telemetry.test_tracing import GIVEN, TRACE, Spans, id_of, parent_of, spans

__all__ = ["spans"]
LIMIT = 20


@pytest.fixture
async def app(sqlite_path: Path) -> AsyncIterator[Holdfast]:
    """An open app."""
    async with Holdfast(str(sqlite_path)) as opened:
        yield opened


@pytest.mark.req("B22")
async def test_what_a_worker_did_is_what_is_scraped(app: Holdfast) -> None:
    @app.task(name="good")
    async def good() -> None: ...

    @app.task(name="flaky", retries=1)
    async def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise TransientError("not yet", retry_in=0)

    @app.task(name="bad", retries=0)
    async def bad() -> None:
        raise ValueError("never")

    async with app.worker():
        jobs = [await good.submit(), await good.submit(), await flaky.submit()]
        for job in jobs:
            await job.result(LIMIT)
        with pytest.raises(JobError):
            await (await bad.submit()).result(LIMIT)
        with serve_metrics(app.meters, port=0) as server:
            samples = await asyncio.to_thread(scraped, server)
            healthy, _ = await asyncio.to_thread(get, f"{server.url}/healthz")
    assert healthy == 200
    assert value(samples, "holdfast_claims_total") == 5
    lanes = {name: {"task": name, "queue": "default"} for name in ("good", "flaky", "bad")}
    assert value(samples, "holdfast_submitted_total", **lanes["good"]) == 2
    assert value(samples, "holdfast_completed_total", **lanes["good"]) == 2
    assert value(samples, "holdfast_completed_total", **lanes["flaky"]) == 1
    assert value(samples, "holdfast_retries_total", **lanes["flaky"]) == 1
    assert value(samples, "holdfast_started_total", **lanes["flaky"]) == 2
    ended = ("holdfast_failures_total", "holdfast_dlq_total")
    assert sum(value(samples, name, **lanes["bad"]) for name in ended) == 1
    for name, runs in (("good", 2), ("flaky", 2), ("bad", 1)):
        assert value(samples, "holdfast_run_seconds_count", **lanes[name]) == runs
        assert value(samples, "holdfast_queue_wait_seconds_count", **lanes[name]) == runs
    assert value(samples, "holdfast_alive", part="loop") == 1
    assert value(samples, "holdfast_alive", part="keeper") == 1
    assert value(samples, "holdfast_alive", part="reconciler") == 1


@pytest.mark.req("B23")
async def test_a_trace_goes_through_every_kind_of_handler(app: Holdfast, spans: Spans) -> None:
    tracer = trace.get_tracer("application")

    @app.task(name="first")
    async def first() -> str:
        with tracer.start_as_current_span("query"):
            return (await second.submit()).id

    @app.task(name="second")
    def second() -> str | None:
        with tracer.start_as_current_span("in a thread"):
            assert threading.current_thread() is not threading.main_thread()
            return trace_id_of(current_traceparent())

    async with app.worker():
        with tracer.start_as_current_span("request"):
            job = await first.submit()
        next_job = await app.get(await job.result(LIMIT))
        traced = await next_job.result(LIMIT)
    for child, parent in (
        ("submit first", "request"),
        ("run first", "submit first"),
        ("query", "run first"),
        ("submit second", "query"),
        ("run second", "submit second"),
        ("in a thread", "run second"),
    ):
        assert parent_of(spans[child]) == id_of(spans[parent]), child
    context = spans["request"].context
    assert context is not None
    assert traced == f"{context.trace_id:032x}"


@pytest.mark.req("B23")
async def test_a_trace_goes_on_without_any_provider_and_into_the_log(app: Holdfast) -> None:
    lines = io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonFormatter("w"))

    @app.task(name="first")
    async def first() -> str:
        return (await second.submit()).id

    @app.task(name="second")
    def second() -> str | None:
        logging.getLogger("library").warning("called")
        return current_traceparent()

    logging.getLogger().addHandler(handler)
    try:
        async with app.worker():
            with carry(GIVEN):
                job = await first.options(correlation_id="order-7").submit()
            next_job = await app.get(await job.result(LIMIT))
            assert await next_job.result(LIMIT) == GIVEN
    finally:
        logging.getLogger().removeHandler(handler)
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    (line,) = [one for one in told if one["logger"] == "library"]
    assert (line["job_id"], line["task"]) == (next_job.id, "second")
    assert (line["trace_id"], line["correlation_id"]) == (TRACE, "order-7")
