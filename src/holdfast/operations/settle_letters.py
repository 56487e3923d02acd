"""Handlers for dead letters: list, count, redrive and discard them, one or many."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ValidationError, about
from holdfast.flow.redrive import RedriveTerms, Settled, discard, discard_all, redrive, redrive_all
from holdfast.lifecycle.execution_policy import SPAN_LIMIT
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.reserved import check_not_reserved
from holdfast.lifecycle.states import Letter
from holdfast.lifecycle.times import SECOND
from holdfast.operations import requests as q
from holdfast.operations.filters import check_texts, read_time
from holdfast.operations.scope import CallerScope
from holdfast.operations.views import Counted
from holdfast.queries import dead_letters
from holdfast.queries.dead_letters import LetterFilter, LetterPage

DELAY_LIMIT_SECONDS = SPAN_LIMIT // SECOND


async def list_letters(scope: CallerScope, request: q.ListLetters) -> LetterPage:
    return await dead_letters.list_letters(
        scope.store, _build_filter(scope, request), before=request.before, limit=request.limit
    )


async def count_letters(scope: CallerScope, request: q.CountLetters) -> Counted:
    found = await dead_letters.count_letters(scope.store, _build_filter(scope, request))
    return Counted(letters=found)


async def redrive_letter(scope: CallerScope, request: q.RedriveLetter) -> Job:
    return await redrive(
        scope.store,
        await scope.id_of(request.job),
        scope.control,
        terms=_build_terms(scope, request, request.queue),
        again=request.again,
        reason=request.reason,
        request_id=request.request_id,
        expected_rev=request.expected_rev,
    )


async def discard_letter(scope: CallerScope, request: q.DiscardLetter) -> Job:
    return await discard(
        scope.store,
        await scope.id_of(request.job),
        scope.control,
        reason=request.reason,
        request_id=request.request_id,
        expected_rev=request.expected_rev,
    )


async def redrive_letters(scope: CallerScope, request: q.RedriveLetters) -> Settled:
    return await redrive_all(
        scope.store,
        _build_filter(scope, request),
        scope.control,
        terms=_build_terms(scope, request, request.to_queue),
        reason=request.reason,
        before=request.before,
        limit=_limit(request),
    )


async def discard_letters(scope: CallerScope, request: q.DiscardLetters) -> Settled:
    return await discard_all(
        scope.store,
        _build_filter(scope, request),
        scope.control,
        reason=request.reason,
        before=request.before,
        limit=_limit(request),
    )


def _build_filter(
    scope: CallerScope, request: q.FilterLetters[Any] | q.SettleLetters
) -> LetterFilter:
    asked = LetterFilter(
        letter=request.letter if isinstance(request, q.FilterLetters) else Letter.OPEN,
        tenant=request.tenant if scope.tenant is None else scope.tenant_of(request.tenant),
        queue=scope.queue_of(request.queue),
        task=request.task,
        error_code=request.error_code,
        created_from=read_time(request.created_from, "created_from"),
        created_until=read_time(request.created_until, "created_until"),
    )
    check_texts(asked, ("tenant", "queue", "task", "error_code"))
    return asked


def _build_terms(
    scope: CallerScope, request: q.RedriveLetter | q.RedriveLetters, queue: str | None
) -> RedriveTerms:
    """Return what shall be different in the new job; Forbidden for a queue not the caller's."""
    seconds = request.delay_seconds
    if not 0 <= seconds <= DELAY_LIMIT_SECONDS:
        raise ValidationError(
            f"delay_seconds must be between 0 and {DELAY_LIMIT_SECONDS:,}", field="delay_seconds"
        )
    if queue is not None:
        with about("queue"):
            check_not_reserved(queue, "queue")
        scope.check_queue(queue)
    return RedriveTerms(
        queue=queue,
        retries=request.retries,
        delay=round(seconds * SECOND),
        from_start=request.from_start,
    )


def _limit(request: q.SettleLetters) -> int:
    if not 1 <= request.limit <= q.BULK:
        raise ValidationError(f"limit must be between 1 and {q.BULK:,}", field="limit")
    return request.limit
