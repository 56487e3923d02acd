"""What the rules make of a job that is pending: by the clock, or by an external kernel.

A decision is written in the same commit as what follows from it, so a kernel is asked again only if
its answer was never recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from holdfast.admission.book import Approval, Book, Verdict
from holdfast.admission.door import decided_birth, unjudged_birth
from holdfast.admission.variables import variables_of
from holdfast.admission.verdicts import Decision, judge
from holdfast.errors import KernelUnavailable
from holdfast.flow.deny import make_denial
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.derive import born
from holdfast.lifecycle.holds import (
    DENIED_HOLD,
    POLICY_HOLD,
    approval_holds,
    is_policy_hold,
)
from holdfast.lifecycle.record import Actor, Job, LoggedEvent, NewJob
from holdfast.lifecycle.times import SECOND
from holdfast.ports.kernel import STATE_NOTE, ExternalKernel, KernelTrouble, read_trouble_of
from holdfast.ports.store import Store

KERNEL, FAILURE = "kernel", "failure"
"""Who decided, in `Facts.decided_by`: an external kernel, or that it could not be asked."""
SOON = 60
"""Seconds after its birth within which a job's approval expires as if it was asked for at once."""


class FoundDecision(Struct, frozen=True):
    """A decision, and who made it if it was not the rules alone."""

    decision: Decision
    decided_by: str | None = None


class KernelState:
    """Notes for `why` since when the kernel does not answer; at most once a pass."""

    def __init__(self, store: Store, now: int) -> None:
        self._store, self._now = store, now
        self.failed = 0
        self._last: KernelUnavailable | None = None
        self._answered = False

    @property
    def was_asked(self) -> bool:
        """Whether the kernel was really asked: not if it is left alone for a while."""
        return self._answered or self.failed > 0

    def fail(self, error: KernelUnavailable) -> None:
        """Take note that the kernel did not decide."""
        self.failed, self._last = self.failed + error.tries, error

    def answer(self) -> None:
        """Take note that it did."""
        self._answered = True

    async def write(self, url: str) -> None:
        """Write what has changed; where another process has just done so, leave it."""
        if self._last is None and not self._answered:
            return
        before = await self._store.note(STATE_NOTE)
        known = read_trouble_of(url, before)
        after = ""
        if self._last is not None:
            trouble = KernelTrouble(
                url=url,
                since=self._now if known is None else known.since,
                tries=self.failed + (0 if known is None else known.tries),
                message=str(self._last),
            )
            after = msgspec.json.encode(trouble).decode()
        if after != (before or ""):
            await self._store.move_note(STATE_NOTE, before=before, to=after)


async def find_answer(
    book: Book, first: LoggedEvent, now: int, kernel: ExternalKernel | None, state: KernelState
) -> FoundDecision | None:
    """Return what is decided on a pending job by its first event; None: it has to wait."""
    asked = _birth(first)
    variables = variables_of(asked)
    found = judge(book, variables, now=now)
    if isinstance(found, Decision):
        return FoundDecision(found)
    if book.kernel is None or kernel is None:
        return None
    try:
        decision = await kernel.ask(book, variables, first.id)
    except KernelUnavailable as error:
        state.fail(error)
        if book.kernel.on_failure != "open":
            return None
        open_ = Decision(verdict=Verdict.ALLOW, rule=found.rule, rules=book.digest)
        return FoundDecision(open_, FAILURE)
    state.answer()
    return FoundDecision(decision, KERNEL)


def _birth(first: LoggedEvent) -> NewJob:
    return unjudged_birth(NewJob(record=born(first), event=first))


def follow_decision(
    job: Job, first: LoggedEvent, answer: FoundDecision, actor: Actor, now: int
) -> Sequence[c.Command]:
    """Return what follows from a decision on a pending job, all in one commit."""
    asked = _birth(first)
    decided = decided_birth(asked, answer.decision)
    facts, rules = decided.event.facts, answer.decision.rules
    rule = facts.rule or "default"
    holds = [hold for hold in facts.holds if is_policy_hold(hold)]
    reason = answer.decision.reason
    exceeded = _list_exceeded(asked, decided)
    if exceeded:
        reason = f"a limit of its {', '.join(exceeded)} cannot be applied after the submit"
    if exceeded or any(hold.startswith(DENIED_HOLD) for hold in holds):
        return (make_denial(actor, rule, rules, reason, decided_by=answer.decided_by),)
    lifts = POLICY_HOLD if POLICY_HOLD in job.held_by else None
    policy = None if decided.record.policy == job.policy else decided.record.policy
    if holds:
        approval = Approval(roles=())
        if answer.decision.verdict is Verdict.APPROVE:
            approval = answer.decision.approval or Approval()
            seconds = _expiry(job, approval.expires_seconds, now)
            holds = list(approval_holds(rule, approval.count, seconds))
        return (
            c.Hold(
                actor=actor,
                hold=holds[0],
                holds=tuple(holds[1:]),
                lifts=lifts,
                rule=facts.rule,
                rules=rules,
                verdict=facts.verdict,
                decided_by=answer.decided_by,
                approvers=approval.roles,
                on_expiry=approval.on_expiry if approval.roles else None,
                # Its terms change with its admission, and not before.
                terms=policy,
                reason=answer.decision.reason,
            ),
        )
    return (
        c.Admit(
            actor=actor,
            lifts=lifts,
            rule=facts.rule,
            rules=rules,
            verdict=facts.verdict,
            decided_by=answer.decided_by,
            policy=policy,
            reason=answer.decision.reason,
        ),
    )


def _list_exceeded(asked: NewJob, decided: NewJob) -> list[str]:
    """Return what a submit has fixed and the decision would limit: its terms alone can change."""
    names = [
        name
        for name in ("cpus", "memory_mb", "priority")
        if getattr(asked.record, name) != getattr(decided.record, name)
    ]
    return [*names, "network"] if asked.event.digest != decided.event.digest else names


def _expiry(job: Job, seconds: int, now: int) -> int:
    """Return when an approval expires, in seconds from the job's birth.

    In whole multiples of the rule's time, at least that long from now: the names of holds stay
    few, however late a kernel answers.
    """
    elapsed = (now - job.created_at) // SECOND
    if not seconds or elapsed <= SOON:
        return seconds
    return int(seconds * (elapsed // seconds + 2))
