"""The newest jobs as they asked to be born, for rules that are tried out on them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from holdfast.admission.book import Book, Verdict
from holdfast.admission.simulate import RecordedBirth
from holdfast.admission.variables import recorded_variables
from holdfast.admission.verdicts import judge, verdict_name
from holdfast.errors import JobUnreadable
from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.reserved import is_reserved
from holdfast.ports.models import Query
from holdfast.ports.store import Store

PAGE = 200
AT_ONCE = 8
"""First events that are read at the same time."""


async def read_births(
    store: Store,
    book: Book | None,
    *,
    tenant: str | None = None,
    since: int | None = None,
    limit: int = 1000,
) -> AsyncIterator[RecordedBirth]:
    """Go through jobs, newest first, each with what `book` decides on it; None: it allows all.

    Jobs of Holdfast's own are not judged, and left out; damaged ones, too.
    """
    query = Query(tenant=tenant, created_from=since, limit=PAGE)
    left = limit
    while left > 0:
        page = await store.find(query)
        jobs = [job for job in page.jobs if not is_reserved(job.task)][:left]
        for job, first in zip(jobs, await _read_first(store, jobs), strict=True):
            if first is not None:
                yield _make_recorded(job, first, book)
        left -= len(jobs)
        if page.next is None:
            return
        query = Query(tenant=tenant, created_from=since, before=page.next, limit=PAGE)


async def _read_first(store: Store, jobs: list[Job]) -> list[LoggedEvent | None]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def read(job: Job) -> LoggedEvent | None:
        async with gate:
            try:
                return next(iter(await store.events(job.id, limit=1)), None)
            except JobUnreadable:
                return None

    return list(await asyncio.gather(*map(read, jobs)))


def _make_recorded(job: Job, first: LoggedEvent, book: Book | None) -> RecordedBirth:
    variables = recorded_variables(first)
    verdict, rule = Verdict.ALLOW.value, None
    if book is not None:
        found = judge(book, variables, now=first.at)
        verdict, rule = verdict_name(found), found.rule
    return RecordedBirth(
        job=job.public_id, variables=variables, verdict=verdict, rule=rule, at=first.at
    )
