"""Handlers for policies and approvals: apply and explain rules; list, approve, deny."""

from __future__ import annotations

from holdfast.admission.variables import recorded_variables
from holdfast.admission.verdicts import Look, explain
from holdfast.errors import NoSuchPolicy
from holdfast.flow.approve import Approver, approve, deny_approval
from holdfast.flow.command import check_reason
from holdfast.flow.policy_book import current_book, find_book, find_reason
from holdfast.lifecycle.record import Job
from holdfast.operations import requests as q
from holdfast.operations.policy_view import (
    JobPolicy,
    PolicyBookView,
    PolicyHistory,
    RequestedApproval,
    RequestedApprovals,
)
from holdfast.operations.scope import CallerScope
from holdfast.ports.models import AppliedPolicy
from holdfast.queries.approvals import AwaitedApproval, describe_approval
from holdfast.queries.approvals import list_approvals as list_awaited
from holdfast.queries.decisions import read_judgement


async def list_approvals(scope: CallerScope, request: q.ListApprovals) -> RequestedApprovals:
    """List the jobs that the caller may see and that await an approval."""
    page = await list_awaited(
        scope.store, may_see=scope.may_see, after=request.after, limit=request.limit
    )
    return RequestedApprovals(
        now=(await scope.store.clock()).now,
        approvals=[await _show_awaited(scope, one) for one in page.approvals],
        next=page.next,
    )


async def _show_awaited(scope: CallerScope, awaited: AwaitedApproval) -> RequestedApproval:
    job, judged = awaited.job, await read_judgement(scope.store, awaited.job.id)
    asking = next((one for one in reversed(judged.decisions) if one.rule == awaited.rule), None)
    reason = None if asking is None else asking.reason
    if reason is None:
        reason = find_reason(await find_book(scope.store, judged.rules), awaited.rule)
    return RequestedApproval(
        job_id=job.public_id,
        internal_id=job.id,
        tenant=job.tenant,
        task=job.task,
        queue=job.queue,
        rev=job.rev,
        rule=awaited.rule,
        reason=reason,
        submitter=judged.first.actor,
        requested_at=judged.first.at if asking is None else asking.at,
        needs=awaited.missing + len(judged.approvals),
        missing=awaited.missing,
        approvals=judged.approvals,
        expires_at=awaited.expires_at,
    )


async def decide_approval(scope: CallerScope, request: q.ApproveJob | q.DenyJob) -> Job:
    """Approve or deny a job in the caller's name."""
    id_ = await scope.id_of(request.job)
    person = Approver(name=scope.control.name, token_id=scope.token, role=scope.role.value)
    act = approve if isinstance(request, q.ApproveJob) else deny_approval
    return await act(
        scope.store,
        id_,
        person,
        reason=request.reason,
        expected_rev=request.expected_rev,
        request_id=request.request_id,
    )


async def get_policy(scope: CallerScope, request: q.GetPolicy) -> PolicyBookView:
    """Read the policy that is applied, or the one with a digest."""
    current = await scope.store.policy()
    if request.digest is None:
        return _show_book(current, current)
    found = await scope.store.policy_book(request.digest)
    if found is None:
        raise NoSuchPolicy(f"no policy {request.digest!r} was ever applied")
    return _show_book(found, current)


async def list_policies(scope: CallerScope, request: q.ListPolicies) -> PolicyHistory:
    """List when which policy was applied or removed."""
    return PolicyHistory(events=await scope.store.policy_events(limit=request.limit))


async def apply_policy(scope: CallerScope, request: q.ApplyPolicy) -> PolicyBookView:
    """Apply rules, or remove those that are applied."""
    applied = await scope.store.apply_policy(
        request.policy.text,
        actor=scope.control.label,
        reason=check_reason(request.policy.reason),
    )
    return _show_book(applied, applied)


def _show_book(book: AppliedPolicy | None, current: AppliedPolicy | None) -> PolicyBookView:
    if book is None:
        return PolicyBookView()
    return PolicyBookView(
        digest=book.digest,
        text=book.body,
        applied_at=book.applied_at,
        applied_by=book.applied_by,
        reason=book.reason,
        is_current=current is not None and current.digest == book.digest,
    )


async def explain_policy(scope: CallerScope, request: q.ExplainPolicy) -> JobPolicy:
    """Read what was decided on a job, and explain it rule by rule."""
    job = await scope.get(request.job)
    judged = await read_judgement(scope.store, job.id)
    variables = recorded_variables(judged.first)
    book = await find_book(scope.store, judged.rules) or await current_book(scope.store)
    # At the time of the decision: a rule may read the clock.
    at = judged.decisions[-1].at if judged.decisions else judged.first.at
    looks = [] if book is None else explain(book, variables, now=at)
    awaited = describe_approval(job)
    return JobPolicy(
        job_id=job.public_id,
        internal_id=job.id,
        decisions=judged.decisions,
        asked=judged.first.facts.asked or {},
        approvals=judged.approvals,
        missing=0 if awaited is None else awaited.missing,
        expires_at=None if awaited is None else awaited.expires_at,
        rules=None if book is None else book.digest,
        looks=_visible(scope, looks),
        variables=variables,
    )


def _visible(scope: CallerScope, looks: list[Look]) -> list[Look]:
    """Return what a caller may see of the rules: some are about other tenants."""
    return looks if scope.tenant is None else [one for one in looks if one.matched]
