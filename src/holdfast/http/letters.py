"""Routes about dead letters: list, read, redrive, discard."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from holdfast.flow.letters import DeadLetter, LetterFilter, LetterPage
from holdfast.flow.redrive import Wish
from holdfast.http.asking import Ask, asking
from holdfast.http.bodies import answer
from holdfast.http.documents import documented
from holdfast.http.scopes import Scope
from holdfast.lifecycle.job import JobId
from holdfast.lifecycle.states import Letter
from holdfast.messages import Discarding, Redriving
from holdfast.views import JobView

router = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"])
Text = Annotated[str | None, Query(min_length=1, max_length=200)]


@router.get("", **documented(_200=LetterPage))
async def list_letters(  # noqa: PLR0917  what a query string may say
    ask: Annotated[Ask, asking(Scope.READ)],
    letter: Letter = Letter.OPEN,
    queue: Text = None,
    task: Text = None,
    tenant: Text = None,
    error_code: Text = None,
    before: UUID | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """List dead letters, newest job first."""
    wanted = LetterFilter(
        letter=letter, tenant=tenant, queue=queue, task=task, error_code=error_code
    )
    cursor = None if before is None else JobId(before)
    return answer(await ask.jobs.letters(wanted, before=cursor, limit=limit))


@router.get("/{job}", **documented(_200=DeadLetter))
async def get_letter(ask: Annotated[Ask, asking(Scope.READ)], job: str) -> Response:
    """Read a dead letter: why, where and after what, and what became of it."""
    return answer(await ask.jobs.letter(job))


@router.post("/{job}/redrive", **documented(takes=Redriving, _200=JobView))
async def redrive_letter(ask: Annotated[Ask, asking(Scope.CONTROL)], job: str) -> Response:
    """Submit a dead letter again, as a new job linked to it; repeated, it is the same one."""
    how = await ask.body(Redriving)
    wish = Wish(queue=how.queue, retries=how.retries, delay=round(how.delay_seconds * 1_000_000))
    new = await ask.jobs.redrive(
        job, wish=wish, again=how.again, reason=how.reason, request_id=ask.key
    )
    return answer(JobView.of(new))


@router.post("/{job}/discard", **documented(takes=Discarding, _200=JobView))
async def discard_letter(ask: Annotated[Ask, asking(Scope.CONTROL)], job: str) -> Response:
    """Put an open letter away; the job stays as it is."""
    said = await ask.body(Discarding)
    return answer(JobView.of(await ask.jobs.discard(job, reason=said.reason, request_id=ask.key)))
