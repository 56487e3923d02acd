"""Routes about dead letters: list, read, redrive, discard."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from holdfast.flow.letters import DeadLetter, LetterFilter, LetterPage
from holdfast.flow.redrive import Settled, Wish
from holdfast.http.asking import Ask, asking
from holdfast.http.bodies import answer, answer_job, read_instant, unfit
from holdfast.http.documents import KEY, REVISION, TENANT, documented
from holdfast.http.names import Name
from holdfast.http.scopes import Scope
from holdfast.lifecycle.job import JobId
from holdfast.lifecycle.policy import SPAN_LIMIT
from holdfast.lifecycle.states import Letter
from holdfast.lifecycle.times import SECOND
from holdfast.messages import (
    Counted,
    Discarding,
    DiscardingAll,
    LettersWanted,
    Redriving,
    RedrivingAll,
)
from holdfast.operations import BULK
from holdfast.views import JobView

router = APIRouter(prefix="/v1/dead-letters", tags=["dead letters"])
counting = APIRouter(tags=["dead letters"])
DELAY_LIMIT_SECONDS = SPAN_LIMIT // SECOND
Text = Annotated[str | None, Query(min_length=1, max_length=200)]


def _asked(  # noqa: PLR0917  what a query string may say
    letter: Letter = Letter.OPEN,
    queue: Text = None,
    task: Text = None,
    tenant: Text = None,
    error_code: Text = None,
    created_from: datetime | None = None,
    created_until: datetime | None = None,
) -> LetterFilter:
    return LetterFilter(
        letter=letter,
        tenant=tenant,
        queue=queue,
        task=task,
        error_code=error_code,
        created_from=read_instant(created_from, "created_from"),
        created_until=read_instant(created_until, "created_until"),
    )


Asked = Annotated[LetterFilter, Depends(_asked)]


@router.get("", **documented(_200=LetterPage))
async def list_letters(
    ask: Annotated[Ask, asking(Scope.READ)],
    asked: Asked,
    before: UUID | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
) -> Response:
    """List dead letters, newest job first."""
    return answer(await ask.jobs.letters(asked, before=_cursor(before), limit=limit))


@counting.get("/v1/dead-letter-count", **documented(_200=Counted))
async def count_letters(ask: Annotated[Ask, asking(Scope.READ)], asked: Asked) -> Response:
    """Count dead letters."""
    return answer(Counted(letters=await ask.jobs.count_letters(asked)))


@router.post("/redrive", **documented(takes=RedrivingAll, _200=Settled))
async def redrive_letters(ask: Annotated[Ask, asking(Scope.CONTROL)]) -> Response:
    """Redrive all open letters that a filter finds, up to a limit; `next` goes on."""
    how = await ask.body(RedrivingAll)
    settled = await ask.jobs.redrive_all(
        _filter(how),
        wish=Wish(
            queue=how.to_queue,
            retries=how.retries,
            delay=_delay(how.delay_seconds),
            from_start=how.from_start,
        ),
        reason=how.reason,
        before=_cursor(how.before),
        limit=_limit(how),
    )
    return answer(settled)


@router.post("/discard", **documented(takes=DiscardingAll, _200=Settled))
async def discard_letters(ask: Annotated[Ask, asking(Scope.CONTROL)]) -> Response:
    """Put all open letters away that a filter finds, up to a limit; `next` goes on."""
    how = await ask.body(DiscardingAll)
    settled = await ask.jobs.discard_all(
        _filter(how), reason=how.reason, before=_cursor(how.before), limit=_limit(how)
    )
    return answer(settled)


@router.get("/{job}", **documented(_200=DeadLetter))
async def get_letter(ask: Annotated[Ask, asking(Scope.READ)], job: Name) -> Response:
    """Read a dead letter: why, where and after what, and what became of it."""
    return answer(await ask.jobs.letter(job))


@router.post(
    "/{job}/redrive", **documented(takes=Redriving, reads=(TENANT, KEY, REVISION), _200=JobView)
)
async def redrive_letter(ask: Annotated[Ask, asking(Scope.CONTROL)], job: Name) -> Response:
    """Submit a failed or dead-lettered job again, as a new job that resumes from its records.

    Repeated, it returns the same job.
    """
    how = await ask.body(Redriving)
    wish = Wish(
        queue=how.queue,
        retries=how.retries,
        delay=_delay(how.delay_seconds),
        from_start=how.from_start,
    )
    new = await ask.jobs.redrive(
        job,
        wish=wish,
        again=how.again,
        reason=how.reason,
        request_id=ask.key,
        expected_rev=ask.expected_rev,
    )
    return answer_job(new)


@router.post(
    "/{job}/discard", **documented(takes=Discarding, reads=(TENANT, KEY, REVISION), _200=JobView)
)
async def discard_letter(ask: Annotated[Ask, asking(Scope.CONTROL)], job: Name) -> Response:
    """Put an open letter away; the job stays as it is."""
    said = await ask.body(Discarding)
    record = await ask.jobs.discard(
        job, reason=said.reason, request_id=ask.key, expected_rev=ask.expected_rev
    )
    return answer_job(record)


def _filter(wanted: LettersWanted) -> LetterFilter:
    return LetterFilter(
        tenant=wanted.tenant,
        queue=wanted.queue,
        task=wanted.task,
        error_code=wanted.error_code,
        created_from=read_instant(wanted.created_from, "created_from"),
        created_until=read_instant(wanted.created_until, "created_until"),
    )


def _limit(wanted: LettersWanted) -> int:
    if not 1 <= wanted.limit <= BULK:
        raise unfit(f"limit must be between 1 and {BULK:,}", "limit")
    return wanted.limit


def _delay(seconds: float) -> int:
    if not 0 <= seconds <= DELAY_LIMIT_SECONDS:
        raise unfit(f"delay_seconds must be between 0 and {DELAY_LIMIT_SECONDS:,}", "delay_seconds")
    return round(seconds * SECOND)


def _cursor(before: UUID | None) -> JobId | None:
    return None if before is None else JobId(before)
