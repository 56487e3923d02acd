"""Whether the server is alive, whether it can serve, and its metrics."""

from __future__ import annotations

import asyncio

from msgspec import Struct
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from holdfast import __version__
from holdfast.auth.authorization import Scope
from holdfast.errors import ServerEnding, StoreUnavailable
from holdfast.http.json_body import answer
from holdfast.http.request import HttpCall, ServerState
from holdfast.http.routes import RequestReader
from holdfast.operations.request import Request
from holdfast.telemetry.liveness import silent
from holdfast.telemetry.prometheus import make_registry

READY_SECONDS = 3.0
"""How long the database may take to answer; a probe does not wait for longer."""
METRICS_MEDIA = ("text/plain", "application/openmetrics-text")


class HealthReport(Struct, frozen=True, kw_only=True):
    """Whether the process is healthy."""

    status: str
    version: str
    silent: dict[str, float] = {}
    """Parts that have shown no sign of life in time, and for how many seconds."""


class GetHealth(Request[HealthReport], frozen=True, kw_only=True):
    """Return 200 while the process is alive; 503 if a part of it has been silent for too long."""

    path, group, operation_name = "/healthz", "health", "is_alive"
    reply, also, for_tenant = HealthReport, ((503, HealthReport),), False


class GetReadiness(Request[HealthReport], frozen=True, kw_only=True):
    """Return 200 while the server accepts requests and its database answers; 503 if not."""

    path, group, operation_name = "/readyz", "health", "is_ready"
    reply, for_tenant = HealthReport, False


class GetMetrics(Request[str], frozen=True, kw_only=True):
    """Read the metrics of this process and its store, in the format of Prometheus."""

    path, scope, group = "/metrics", Scope.METRICS, "health"
    reply, media, for_tenant = str, METRICS_MEDIA, False


async def answer_health(request: HttpRequest) -> Response:
    """Answer whether the process is alive."""
    server: ServerState = request.scope["app"].state
    dead = silent(list(server.meters.pulses.values()))
    parts = {name: round(seconds, 1) for name, seconds in dead.items()}
    report = HealthReport(status="silent" if dead else "alive", version=__version__, silent=parts)
    return answer(report, 503 if dead else 200)


async def answer_readiness(request: HttpRequest) -> Response:
    """Answer whether the server can serve."""
    server: ServerState = request.scope["app"].state
    server.check_open()
    if server.shutdown.started:
        raise ServerEnding("the server is stopping")
    try:
        async with asyncio.timeout(READY_SECONDS):
            await server.session.store.clock()
    except TimeoutError as error:
        raise StoreUnavailable(
            f"the database has not answered within {READY_SECONDS:g} s"
        ) from error
    return answer(HealthReport(status="ready", version=__version__))


async def answer_metrics(call: HttpCall, reader: RequestReader) -> Response:
    """Answer with the metrics, in the format that the client accepts."""
    del reader
    encode, media = choose_encoder(call.request.headers.get("accept", ""))
    server = call.server
    return Response(encode(make_registry(server.meters, server.depths)), media_type=media)
