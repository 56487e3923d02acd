"""The route of jobs' logs: what handlers said by `ctx.log`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from holdfast.http.asking import Ask, asking
from holdfast.http.bodies import answer
from holdfast.http.documents import documented
from holdfast.http.names import Name
from holdfast.http.scopes import Scope
from holdfast.messages import Log
from holdfast.ports import LOG_LINES
from holdfast.views import LogView

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.get("/{job}/logs", **documented(_200=Log))
async def get_logs(
    ask: Annotated[Ask, asking(Scope.READ)],
    job: Name,
    after: Annotated[int, Query(ge=0, le=2**62)] = 0,
    limit: Annotated[int, Query(ge=1, le=LOG_LINES)] = LOG_LINES,
) -> Response:
    """Read what a job's handler said by `ctx.log`; the newest thousand lines are kept."""
    record = await ask.jobs.get(job)
    lines = await ask.jobs.logs(record.id, after=after, limit=limit)
    shown = [LogView.of(line) for line in lines]
    return answer(Log(job_id=record.public_id, internal_id=record.id, lines=shown))
