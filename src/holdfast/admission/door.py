"""The one way in: a new job as the rules let it be born.

Stores call it for every birth, so that no caller can forget to. Pure: the same birth and the same
book give the same job.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec.structs import replace

from holdfast.admission.book import Book, Verdict
from holdfast.admission.constraints import Asked, limit, state_retries
from holdfast.admission.variables import variables_of
from holdfast.admission.verdicts import UNDECIDED, Decision, Unknown, judge, why_outside
from holdfast.lifecycle.holds import (
    DENIED_HOLD,
    PERSON_HOLD,
    POLICY_HOLD,
    approval_holds,
    is_policy_hold,
)
from holdfast.lifecycle.record import NO_FACTS, Facts, NewJob
from holdfast.lifecycle.reserved import is_reserved
from holdfast.lifecycle.submit import born_with

DEFAULT_RULE = "default"
"""How a hold names the default, which is not a rule."""


def judge_birth(job: NewJob, book: Book) -> NewJob:
    """Return a new job as a book lets it be born; one that this book has judged as it is.

    The clock is not read here: where a rule reads it, the job waits for the scheduler. Jobs of
    Holdfast's own are not judged.
    """
    if job.event.facts.rules == book.digest or is_reserved(job.record.task):
        return job
    asked = unjudged_birth(job)
    return decided_birth(asked, judge(book, variables_of(asked)))


def unjudged_birth(job: NewJob) -> NewJob:
    """Return a birth that another book has judged without its verdict; its limits stay."""
    facts = job.event.facts
    if facts.rules is None:
        return job
    holds = tuple(hold for hold in facts.holds if not is_policy_hold(hold))
    # Only a verdict makes a job wait that is under no other hold.
    freed = holds == () != facts.holds
    left = Facts(holds=holds, asked=facts.asked) if holds or facts.asked else NO_FACTS
    return born_with(job, left, admitted=True if freed else None)


def decided_birth(job: NewJob, decision: Decision | Unknown) -> NewJob:
    """Return a new job as a decision lets it be born: limited, held, and with the verdict."""
    if isinstance(decision, Unknown):
        facts = Facts(verdict=UNDECIDED, rule=decision.rule, rules=decision.rules)
        return _hold(state_retries(job), facts, (POLICY_HOLD,))
    asked: Asked = {}
    constraints = decision.constraints
    if constraints is not None and decision.verdict is not Verdict.DENY:
        # An external kernel may limit what no rule of the book has compared with the job.
        refused = why_outside(constraints, variables_of(job))
        if refused is not None:
            decision = replace(
                decision, verdict=Verdict.DENY, reason=refused[:500], constraints=None
            )
        else:
            job, asked = limit(job, constraints)
    before = job.event.facts
    facts = _facts(decision.verdict, decision.rule, decision.rules)
    holds = _list_holds(decision)
    # What an earlier book limited was asked for all the same.
    asked = asked | (before.asked or {})
    if asked:
        facts = replace(facts, asked=asked)
    if holds:
        return _hold(job, facts, holds)
    if before.holds:
        facts = replace(facts, holds=before.holds)
    return replace(job, event=replace(job.event, facts=facts))


def _list_holds(decision: Decision) -> tuple[str, ...]:
    rule = decision.rule or DEFAULT_RULE
    match decision.verdict:
        case Verdict.ALLOW:
            return ()
        case Verdict.DENY:
            return (DENIED_HOLD + rule,)
        case Verdict.HOLD:
            return (PERSON_HOLD + rule,)
        case Verdict.APPROVE:
            terms = decision.approval
            count, seconds = (terms.count, terms.expires_seconds) if terms else (1, 0)
            return approval_holds(rule, count, seconds)
        case Verdict.ASK:
            return (POLICY_HOLD,)


def _hold(job: NewJob, facts: Facts, holds: tuple[str, ...]) -> NewJob:
    """Return a job that is not admitted until these holds, and those it has, are lifted."""
    all_holds = tuple(sorted({*job.event.facts.holds, *holds}))
    return born_with(job, replace(facts, holds=all_holds), admitted=False)


# Jobs that are allowed alike share one text in the store, which is recognised by its facts.
@lru_cache(maxsize=1024)
def _facts(verdict: Verdict, rule: str | None, rules: str) -> Facts:
    return Facts(verdict=verdict.value, rule=rule, rules=rules)
