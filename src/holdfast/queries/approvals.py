"""Which jobs await the approval of people, page by page over the names of their holds."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from msgspec import Struct

from holdfast.errors import BadData
from holdfast.lifecycle.holds import APPROVAL_HOLD, expires_at, next_approval
from holdfast.lifecycle.record import Job, JobId
from holdfast.ports.store import Store

LOOK_LIMIT = 1000
"""Jobs that are looked at for one page: most may be of other tenants."""


class AwaitedApproval(Struct, frozen=True, kw_only=True):
    """A job that awaits approvals."""

    job: Job
    rule: str
    missing: int
    """How many people still have to approve it."""
    expires_at: int | None
    """When its time ends, by the store's clock."""


class ApprovalPage(Struct, frozen=True, kw_only=True):
    """Jobs by rule and age; `next` is the cursor of the page after, None at the end."""

    approvals: list[AwaitedApproval]
    next: str | None


async def list_approvals(
    store: Store,
    *,
    may_see: Callable[[Job], bool] = lambda job: True,
    after: str | None = None,
    limit: int = 100,
) -> ApprovalPage:
    """List jobs that await an approval, by the name of their hold, then the oldest first."""
    name, last = _read_cursor(after)
    found: list[AwaitedApproval] = []
    looked = 0
    while True:
        if name is None:
            return ApprovalPage(approvals=found, next=None)
        jobs = await store.held(name, after=last, limit=min(limit, LOOK_LIMIT))
        for job in jobs:
            last, looked = job.id, looked + 1
            if (one := _describe(job, name)) is not None and may_see(job):
                found.append(one)
            if len(found) == limit or looked == LOOK_LIMIT:
                return ApprovalPage(approvals=found, next=f"{name}|{last}")
        if not jobs:
            name, last = await _next_name(store, name), None


def _describe(job: Job, name: str) -> AwaitedApproval | None:
    """Return a job's approval, under the name of the hold that is lifted next, and no other."""
    awaited = next_approval(job)
    if awaited is None or name not in ("", awaited[0]):
        return None
    hold = awaited[1]
    return AwaitedApproval(
        job=job, rule=hold.rule, missing=hold.slot, expires_at=expires_at(job, hold)
    )


def describe_approval(job: Job) -> AwaitedApproval | None:
    """Return what approval a job awaits; None if it awaits none."""
    return _describe(job, "")


async def _next_name(store: Store, name: str) -> str | None:
    return next(iter(await store.hold_names(APPROVAL_HOLD, after=name, limit=1)), None)


def _read_cursor(text: str | None) -> tuple[str | None, JobId | None]:
    if text is None:
        return APPROVAL_HOLD, None
    name, _, last = text.rpartition("|")
    try:
        return name, JobId(UUID(last))
    except ValueError as error:
        raise BadData(f"{text!r} is not a cursor of this list", field="after") from error
