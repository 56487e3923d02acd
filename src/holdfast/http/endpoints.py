"""All endpoints of the server, and the OpenAPI document of them."""

from __future__ import annotations

from functools import cache
from typing import Any

from holdfast.http import health
from holdfast.http.artifacts import answer_artifact
from holdfast.http.events import answer_events, answer_job_events
from holdfast.http.logs import answer_logs
from holdfast.http.openapi import make_document
from holdfast.http.routes import AnyEndpoint, Endpoint, OpenEndpoint, make_endpoints
from holdfast.http.submits import answer_submits
from holdfast.operations import requests as q
from holdfast.operations.local import OPERATIONS
from holdfast.worker_protocol.protocol import WORKER_OPERATIONS

ENDPOINTS: tuple[AnyEndpoint, ...] = (
    *make_endpoints(
        (*OPERATIONS, *WORKER_OPERATIONS, health.GetMetrics),
        {
            q.SubmitJobs: answer_submits,
            q.GetJobEvents: answer_job_events,
            q.GetEvents: answer_events,
            q.GetLogs: answer_logs,
            q.GetArtifact: answer_artifact,
            health.GetMetrics: health.answer_metrics,
        },
    ),
    Endpoint((q.GetArtifact,), {q.GetArtifact: answer_artifact}, method="HEAD"),
    OpenEndpoint("/healthz", health.answer_health, (health.GetHealth,)),
    OpenEndpoint("/readyz", health.answer_readiness, (health.GetReadiness,)),
)


@cache
def openapi() -> dict[str, Any]:
    """Return the OpenAPI document."""
    return make_document(ENDPOINTS)
