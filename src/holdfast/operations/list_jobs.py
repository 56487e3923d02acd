"""List jobs: bounded where no index covers the filter, without a trace of other tenants' jobs."""

from __future__ import annotations

from uuid import UUID

from msgspec.structs import replace

from holdfast.errors import about
from holdfast.lifecycle.payload import check_labels
from holdfast.lifecycle.record import JobId
from holdfast.operations.filters import check_texts, read_time
from holdfast.operations.requests import ListJobs
from holdfast.operations.scope import CallerScope
from holdfast.ports.models import Page, Query
from holdfast.stores.list_plan import choose_narrowing_filter

SCAN_LIMIT = 2000
"""How many jobs one list examines for a client, where no index covers the filter."""
AMONG_OTHERS = 10
"""How many times as many are examined where most of them may be other tenants'."""
_TEXTS = ("tenant", "queue", "task", "workflow_id", "correlation_id", "error_code")
_BELOW_MILLISECONDS = 80
"""The bits of an id that come after its time."""


async def list_jobs(scope: CallerScope, request: ListJobs) -> Page:
    """List jobs, newest first."""
    query = await _build_query(scope, request)
    among_others = query.look is not None and not await _examines_own(scope, query)
    if query.look is not None and among_others:
        query = replace(query, look=query.look * AMONG_OTHERS)
    page = await scope.store.find(query)
    if among_others:
        page = _round_cursor(page, query.before)
    if query.look and len(page.jobs) < query.limit and await _are_all(scope, query, page):
        return Page(page.jobs, None)
    return page


async def _build_query(scope: CallerScope, request: ListJobs) -> Query:
    parent = request.parent
    tenant = request.tenant if scope.tenant is None else scope.tenant_of(request.tenant)
    query = Query(
        tenant=tenant,
        states=request.state,
        queue=scope.queue_of(request.queue),
        task=request.task,
        parent_id=None if parent is None else await scope.id_of(parent),
        workflow_id=request.workflow_id,
        correlation_id=request.correlation_id,
        error_code=request.error_code,
        letter=request.letter,
        labels=tuple(_label(one) for one in request.label),
        created_from=read_time(request.created_from, "created_from"),
        created_until=read_time(request.created_until, "created_until"),
        before=request.before,
        limit=request.limit,
        look=SCAN_LIMIT if scope.served else None,
    )
    check_texts(query, _TEXTS)
    with about("labels"):
        check_labels(dict(query.labels), "labels")
    return query


def _label(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


async def _examines_own(scope: CallerScope, query: Query) -> bool:
    """Return whether a bounded scan meets only the caller's own jobs.

    If not, it examines more of them, and the place where it ends is rounded: a tenant learns no id
    of others, and as little as possible of how many they have.
    """
    if scope.tenant is None or choose_narrowing_filter(query) in ("tenant", "parent_id"):
        return True
    counts = [await scope.store.counts(tenant) for tenant in (scope.tenant, None)]
    own, everybodys = (sum(one.jobs for one in found) for found in counts)
    return own == everybodys


async def _are_all(scope: CallerScope, query: Query, page: Page) -> bool:
    """Return whether the summaries count no more: then there is no need to scan on for nothing."""
    counted = Query(tenant=query.tenant, states=query.states, queue=query.queue)
    if page.next is None or query != replace(counted, limit=query.limit, look=query.look):
        return False
    found = (
        one.jobs
        for one in await scope.store.counts(query.tenant)
        if query.queue in (None, one.queue) and (not query.states or one.state in query.states)
    )
    return sum(found) <= len(page.jobs)


def _round_cursor(page: Page, before: JobId | None) -> Page:
    """Continue a page whose scan ended at another tenant's job from a whole millisecond instead.

    An id starts with the milliseconds at which it was made. Jobs of the last one that was examined
    are left to the next page.
    """
    ended_at = page.next
    if ended_at is None or (page.jobs and page.jobs[-1].id == ended_at):
        return page
    last = ended_at.int >> _BELOW_MILLISECONDS
    following = JobId(UUID(int=last + 1 << _BELOW_MILLISECONDS))
    if before is not None and following >= before:
        # All that was examined is of one millisecond: there is no other way to continue.
        return page
    jobs = [job for job in page.jobs if job.id.int >> _BELOW_MILLISECONDS > last]
    return replace(page, jobs=jobs, next=following)
