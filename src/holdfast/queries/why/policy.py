"""Why a policy keeps a job from its queue: people have to approve it, or nobody has decided yet."""

from __future__ import annotations

from holdfast.admission.book import Approval, read_book
from holdfast.lifecycle.holds import POLICY_HOLD, expires_at, next_approval
from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.transitions import APPROVALS, HOLDS
from holdfast.ports.kernel import STATE_NOTE, read_trouble
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
    trouble = read_trouble(await store.note(STATE_NOTE))
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


async def _find_roles(store: Store, rule: str, events: list[LoggedEvent]) -> tuple[str, ...]:
    decision = next((one for one in events if one.facts.rules is not None), None)
    if decision is not None and decision.facts.approvers:
        return decision.facts.approvers
    digest = None if decision is None else decision.facts.rules
    applied = None if digest is None else await store.policy_book(digest)
    rules = () if applied is None else read_book(applied.body).rules
    found = next((one.approve for one in rules if one.id == rule), None)
    return (found or Approval()).roles
