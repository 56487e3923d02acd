"""Why a policy keeps a job from its queue: people have to approve it, or nobody has decided yet."""

from __future__ import annotations

from holdfast.admission.book import Approval, read_book
from holdfast.admission.door import unjudged_birth
from holdfast.admission.variables import variables_of
from holdfast.admission.verdicts import Unknown, judge
from holdfast.errors import BadPolicy
from holdfast.lifecycle.derive import born
from holdfast.lifecycle.holds import POLICY_HOLD, expires_at, next_approval
from holdfast.lifecycle.record import Job, LoggedEvent, NewJob
from holdfast.lifecycle.transitions import APPROVALS, HOLDS
from holdfast.ports.kernel import STATE_NOTE, KernelTrouble, read_trouble_of
from holdfast.ports.store import Store
from holdfast.queries.why import reasons as r
from holdfast.queries.why.facts import Act


async def explain_policy(store: Store, job: Job) -> list[r.Reason]:
    """Return what of its policy keeps a pending job."""
    if (awaited := next_approval(job)) is not None:
        approval = awaited[1]
        events = await store.latest_events(job.id, APPROVALS | HOLDS)
        [first] = await store.events(job.id, limit=1)
        given = [event for event in events if event.type in APPROVALS]
        return [
            r.AwaitsApproval(
                rule=approval.rule,
                missing=approval.slot,
                roles=await _find_roles(store, approval.rule, [*events, first]),
                approved=tuple(
                    Act(by=one.actor, at=one.at, cause=one.reason) for one in reversed(given)
                ),
                since=job.created_at,
                until=expires_at(job, approval),
            )
        ]
    if POLICY_HOLD not in job.held_by:
        return []
    [first] = await store.events(job.id, limit=1)
    trouble = await _find_trouble(store, first)
    return [
        r.AwaitsDecision(
            rule=first.facts.rule,
            since=job.created_at,
            kernel=None if trouble is None else trouble.url,
            first_failed_at=None if trouble is None else trouble.since,
            tries=0 if trouble is None else trouble.tries,
            error=None if trouble is None else trouble.message,
        )
    ]


async def _find_trouble(store: Store, first: LoggedEvent) -> KernelTrouble | None:
    """Return why the kernel does not decide on a job, if it is the kernel that has to."""
    note = await store.note(STATE_NOTE)
    applied = await store.policy() if note else None
    if applied is None:
        return None
    try:
        book = read_book(applied.body)
    except BadPolicy:
        return None
    trouble = read_trouble_of(None if book.kernel is None else book.kernel.url, note)
    if trouble is None:
        return None
    # As the scheduler does: the rules may be others than at its birth, and ask for other jobs.
    asked = unjudged_birth(NewJob(record=born(first), event=first))
    found = judge(book, variables_of(asked), now=(await store.clock()).now)
    return trouble if isinstance(found, Unknown) else None


async def _find_roles(store: Store, rule: str, events: list[LoggedEvent]) -> tuple[str, ...]:
    decision = next((one for one in events if one.facts.rules is not None), None)
    if decision is not None and decision.facts.approvers:
        return decision.facts.approvers
    digest = None if decision is None else decision.facts.rules
    applied = None if digest is None else await store.policy_book(digest)
    rules = () if applied is None else read_book(applied.body).rules
    found = next((one.approve for one in rules if one.id == rule), None)
    return (found or Approval()).roles
