"""Approve, or deny: what people do with a job that a rule does not admit without them.

Each approval is an event of the job; the last one is followed by the admission in the same commit.
A person who submitted the job, or a job that it descends from, may not approve it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from holdfast.errors import Forbidden, JobDenied, NoSuchJob, Refused, StaleRevision
from holdfast.flow.command import check_reason, check_revision, perform
from holdfast.flow.finish import error_body
from holdfast.flow.people import find_submitters, identities
from holdfast.flow.policy_book import find_approval, find_decision
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.holds import ApprovalHold, next_approval
from holdfast.lifecycle.record import Actor, Job, JobId, LoggedEvent
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.submission import HOLDS_LIMIT
from holdfast.lifecycle.transitions import APPROVALS
from holdfast.ports.store import Store

TRIES = 20
"""How often a person is checked again because another one has approved meanwhile."""


class Approver(Struct, frozen=True, kw_only=True):
    """A person who approves or denies, and in what role."""

    name: str
    """How the ledger names the person."""
    token_id: str | None = None
    """None: a program on this machine, without a token."""
    role: str

    @property
    def actor(self) -> Actor:
        """The actor of the events."""
        token = self.token_id
        plain = token is None or self.name.endswith(f"/{token}") or self.name == token
        return Actor(Role.CONTROL, self.name if plain else f"{self.name}/{token}")


class _Case(Struct, frozen=True, kw_only=True):
    """A job that awaits an approval, and what was decided on it."""

    job: Job
    first: LoggedEvent
    decision: LoggedEvent | None
    hold: str
    approval: ApprovalHold

    @property
    def rules(self) -> str | None:
        return None if self.decision is None else self.decision.facts.rules


async def approve(
    store: Store,
    id: JobId,
    person: Approver,
    *,
    reason: str | None = None,
    expected_rev: int | None = None,
    request_id: str | None = None,
) -> Job:
    """Approve a job; the last approval that it awaits admits it.

    Refused for a person who approved it before, who submitted it or a job that it descends from, or
    whose role the rule does not name; and once its time has passed.
    """
    reason = check_reason(reason)
    if (repeated := await _find_repeated(store, id, person, c.Approve, request_id)) is not None:
        return repeated
    for tries in range(TRIES):
        case = await _read_case(store, id, expected_rev)
        await _check_role(store, case, person)
        await _check_is_another(store, case, person)
        try:
            return await perform(
                store,
                id,
                c.Approve(
                    actor=person.actor,
                    hold=case.hold,
                    approved=None if case.first.digest is None else case.first.digest.hex(),
                    as_of=(await store.clock()).now,
                    reason=reason,
                    request_id=request_id,
                ),
                # The people were checked as of this revision.
                expected_rev=case.job.rev,
                follow=c.Admit(
                    actor=Actor(Role.SCHEDULER, person.actor.name),
                    rule=case.approval.rule,
                    rules=case.rules,
                    verdict="approve",
                    policy=None if case.decision is None else case.decision.facts.terms,
                ),
            )
        except StaleRevision:
            if expected_rev is not None or tries + 1 == TRIES:
                raise
    raise AssertionError("unreachable")


async def deny_approval(
    store: Store,
    id: JobId,
    person: Approver,
    *,
    reason: str | None = None,
    expected_rev: int | None = None,
    request_id: str | None = None,
) -> Job:
    """Deny a job that awaits an approval; its error code is not that of a rule's denial."""
    reason = check_reason(reason)
    if (repeated := await _find_repeated(store, id, person, c.Deny, request_id)) is not None:
        return repeated
    case = await _read_case(store, id, expected_rev)
    await _check_role(store, case, person)
    text = f"{person.actor.name} denied it" + (f": {reason}" if reason else "")
    return await perform(
        store,
        id,
        c.Deny(
            actor=person.actor,
            rule=case.approval.rule,
            rules=case.rules,
            error_code=c.DENIED_BY_PERSON,
            reason=reason,
            request_id=request_id,
            body=error_body(JobDenied(text, code=c.DENIED_BY_PERSON)),
        ),
        expected_rev=expected_rev,
    )


async def _find_repeated(
    store: Store, id: JobId, person: Approver, act: type[c.Command], request_id: str | None
) -> Job | None:
    """Return the job if this request was carried out before: its person would be refused now."""
    if request_id is None:
        return None
    newest = await store.latest_events(id, act.events(), limit=HOLDS_LIMIT)
    same = [event for event in newest if event.request_id == request_id]
    if not same or same[0].actor != person.actor.label:
        return None
    await store.await_durable()
    return (await store.get([id]))[0]


async def _read_case(store: Store, id: JobId, expected_rev: int | None) -> _Case:
    job = (await store.get([id]))[0]
    if job is None:
        raise NoSuchJob(f"no job {id}", job_id=str(id))
    check_revision(job, expected_rev)
    awaited = next_approval(job)
    if awaited is None:
        raise Refused(
            f"job {job.public_id} is {job.state} and awaits no approval",
            code="no_approval_awaited",
            job_id=job.public_id,
        )
    [first] = await store.events(id, limit=1)
    decision = await find_decision(store, job.id)
    return _Case(job=job, first=first, decision=decision, hold=awaited[0], approval=awaited[1])


async def _check_role(store: Store, case: _Case, person: Approver) -> None:
    roles = (await find_approval(store, case.decision, case.approval.rule)).roles
    # A caller without a token has the store itself: a role is what a token may do.
    if person.token_id is not None and person.role not in roles:
        raise Forbidden(
            f"rule {case.approval.rule!r} asks for role {' or '.join(roles)}, not {person.role}",
            code="approver_role",
            job_id=case.job.public_id,
        )


async def _check_is_another(store: Store, case: _Case, person: Approver) -> None:
    """Refuse a person who submitted the job or one that it descends from, or approved it."""
    job, mine = case.job, identities(person.actor.label)
    submitters = await find_submitters(store, job)
    if submitters is None or _is_among(mine, submitters):
        whose = "too long a line of jobs" if submitters is None else "it, or a job it descends from"
        raise Refused(
            f"{person.actor.name} submitted {whose}: another person has to approve job "
            f"{job.public_id}",
            code="approver_is_submitter",
            job_id=job.public_id,
        )
    before = await store.latest_events(job.id, APPROVALS, limit=HOLDS_LIMIT)
    if _is_among(mine, [event.actor for event in before]):
        raise Refused(
            f"{person.actor.name} has approved job {job.public_id}; {case.approval.slot} more "
            "people have to",
            code="already_approved",
            job_id=job.public_id,
        )


def _is_among(mine: frozenset[str], labels: Sequence[str]) -> bool:
    return any(mine & identities(label) for label in labels)
