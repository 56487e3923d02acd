"""`holdfast approvals`, `approve` and `deny`: jobs that a rule does not admit without people."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from holdfast.cli.options import JobCommand, JobName, Limit, Reason, check_texts
from holdfast.cli.output import align_table, plain, short
from holdfast.lifecycle.holds import next_approval
from holdfast.lifecycle.record import Job
from holdfast.operations import requests as q
from holdfast.operations.policy_view import RequestedApproval
from holdfast.queries.why.phrases import describe_span

TITLES = ("JOB", "TASK", "TENANT", "RULE", "SUBMITTER", "APPROVED", "EXPIRES IN", "REASON")
ExpectedRev = Annotated[
    int | None, Option("--rev", min=1, help="Only if the job is still at this revision.")
]
RequestId = Annotated[
    str | None, Option("--request-id", help="For scripts: a repeated request is carried out once.")
]


def list_approvals(
    command: JobCommand,
    after: Annotated[str | None, Option(help="The next page: the `next` of the last page.")] = None,
    limit: Limit = 100,
) -> None:
    """List jobs that await the approval of people, by rule, the oldest first."""
    check_texts(after=after)
    page = command.do(q.ListApprovals(after=after, limit=limit))
    rows = [_row(one, page.now) for one in page.approvals]
    lines = align_table(TITLES, rows) if rows else ["no job awaits an approval"]
    notes = [] if page.next is None else [f"more: --after '{plain(page.next)}'"]
    command.show(page, *lines, notes=notes)


def _row(one: RequestedApproval, now: int) -> tuple[str, ...]:
    left = None if one.expires_at is None else max(0, one.expires_at - now)
    return (
        plain(one.job_id),
        short(one.task, 30),
        short(one.tenant, 20),
        short(one.rule, 30),
        short(one.submitter, 40),
        f"{one.needs - one.missing} of {one.needs}",
        "–" if left is None else describe_span(left),
        short(one.reason, 60),
    )


def approve_job(
    command: JobCommand,
    job: JobName,
    *,
    reason: Reason = None,
    rev: ExpectedRev = None,
    request_id: RequestId = None,
) -> None:
    """Approve a job that awaits it; the last approval admits it.

    On a store it is the user's name that counts, on a server the token.
    """
    check_texts(reason=reason)
    request = q.ApproveJob(job=job, reason=reason, expected_rev=rev, request_id=request_id)
    record = command.do(request)
    command.show_job(record, f"job {plain(record.public_id)} is approved; {_left(record)}")


def _left(job: Job) -> str:
    awaited = next_approval(job)
    if awaited is None:
        return f"it is {job.state}"
    return f"{awaited[1].slot} more must approve it"


def deny_job(
    command: JobCommand,
    job: JobName,
    *,
    reason: Reason = None,
    rev: ExpectedRev = None,
    request_id: RequestId = None,
) -> None:
    """Deny a job that awaits an approval: it ends, and does not run."""
    check_texts(reason=reason)
    request = q.DenyJob(job=job, reason=reason, expected_rev=rev, request_id=request_id)
    record = command.do(request)
    command.show_job(record, f"job {plain(record.public_id)} is {record.state}")
