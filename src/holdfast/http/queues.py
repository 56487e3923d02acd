"""Routes about queues and who serves them: depth, pause, resume, workers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from holdfast.http.asking import Ask, asking
from holdfast.http.bodies import answer, read_instant
from holdfast.http.documents import KEY, TENANT, documented
from holdfast.http.names import Name
from holdfast.http.scopes import Scope
from holdfast.messages import ClockView, Pausing, Queues
from holdfast.operations import Roll
from holdfast.ports import QueueStatus

router = APIRouter(prefix="/v1", tags=["queues"])


@router.get("/queues", **documented(_200=Queues))
async def list_queues(ask: Annotated[Ask, asking(Scope.READ)]) -> Response:
    """List queues: how many jobs are in which state, and whether they are paused."""
    return answer(Queues(queues=await ask.jobs.queues()))


@router.post(
    "/queues/{queue}/pause",
    **documented(takes=Pausing, reads=(TENANT, KEY), _200=QueueStatus),
)
async def pause_queue(ask: Annotated[Ask, asking(Scope.QUEUES)], queue: Name) -> Response:
    """Let no job of a queue be claimed; what runs goes on."""
    said = await ask.body(Pausing)
    ask.caller.demand_queue(queue)
    return answer(await ask.jobs.pause(queue, reason=said.reason, request_id=ask.key))


@router.post(
    "/queues/{queue}/resume",
    **documented(takes=Pausing, reads=(TENANT, KEY), _200=QueueStatus),
)
async def resume_queue(ask: Annotated[Ask, asking(Scope.QUEUES)], queue: Name) -> Response:
    """Let a queue's jobs be claimed again."""
    said = await ask.body(Pausing)
    ask.caller.demand_queue(queue)
    return answer(await ask.jobs.resume(queue, reason=said.reason, request_id=ask.key))


@router.get("/workers", **documented(_200=Roll))
async def list_workers(
    ask: Annotated[Ask, asking(Scope.READ)],
    seen_since: datetime | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> Response:
    """List workers, live, silent and ended ones, the most recently seen first."""
    since = read_instant(seen_since, "seen_since")
    return answer(await ask.jobs.workers(seen_since=since, limit=limit))


@router.get("/clock", **documented(_200=ClockView))
async def tell_clock(ask: Annotated[Ask, asking(Scope.READ)]) -> Response:
    """Tell the time by the store's clock, the only one that judges."""
    return answer(ClockView(now=await ask.jobs.now()))
