"""What was decided on a job, by which rule and by whom, as its events have it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from holdfast.lifecycle.record import JobId, LoggedEvent
from holdfast.lifecycle.submission import HOLDS_LIMIT
from holdfast.lifecycle.transitions import APPROVALS, DECISIONS, DENIALS
from holdfast.ports.store import Jobs

DENY = "deny"
_TYPES = DECISIONS | APPROVALS


class RecordedDecision(Struct, frozen=True, kw_only=True):
    """One event that decided on a job."""

    rev: int
    at: int
    actor: str
    verdict: str
    """`undecided` where the clock or an external kernel had to be asked later."""
    rule: str | None
    """None: the default."""
    rules: str | None
    """The digest of the book."""
    reason: str | None
    decided_by: str | None
    """`kernel`, `failure`, or None where the rules alone decided."""
    error_code: str | None
    """Why it was denied: by a rule, by a person, or because its time had passed."""


class GivenApproval(Struct, frozen=True, kw_only=True):
    """An approval of a job."""

    by: str
    at: int
    reason: str | None


class Judgement(Struct, frozen=True, kw_only=True):
    """All that was decided on a job."""

    first: LoggedEvent
    decisions: list[RecordedDecision]
    """The oldest first; none if the job was never judged."""
    approvals: list[GivenApproval]
    """The oldest first."""

    @property
    def rules(self) -> str | None:
        """The digest of the book that judged it last."""
        found = (one.rules for one in reversed(self.decisions))
        return next((rules for rules in found if rules is not None), None)


async def read_judgement(store: Jobs, id: JobId) -> Judgement:
    """Read what was decided on a job."""
    [first] = await store.events(id, limit=1)
    later = await store.latest_events(id, _TYPES, limit=2 * HOLDS_LIMIT)
    later = sorted(later, key=lambda event: event.rev)
    return Judgement(
        first=first,
        decisions=list(_list_decisions([first, *later])),
        approvals=[
            GivenApproval(by=one.actor, at=one.at, reason=one.reason)
            for one in later
            if one.type in APPROVALS
        ],
    )


def _list_decisions(events: list[LoggedEvent]) -> Iterator[RecordedDecision]:
    for event in events:
        facts = event.facts
        verdict = DENY if event.type in DENIALS else facts.verdict
        if verdict is not None:
            yield RecordedDecision(
                rev=event.rev,
                at=event.at,
                actor=event.actor,
                verdict=verdict,
                rule=facts.rule,
                rules=facts.rules,
                reason=event.reason,
                decided_by=facts.decided_by,
                error_code=facts.error_code,
            )
