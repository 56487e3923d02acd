"""Deny: end the jobs that a rule denied at their birth, or whose approval nobody gave in time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from holdfast.admission.book import Book, Verdict
from holdfast.admission.variables import recorded_variables
from holdfast.admission.verdicts import Decision, judge
from holdfast.errors import HoldfastError, JobDenied
from holdfast.flow.batch import Choose, CountedSweep, carry_out
from holdfast.flow.finish import error_body
from holdfast.flow.policy_book import find_book, find_reason
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.holds import DENIED_HOLD
from holdfast.lifecycle.record import Actor, Change, Job, LoggedEvent
from holdfast.lifecycle.states import Role
from holdfast.ports.models import SubmitOutcome, Submitted
from holdfast.ports.store import Store


class DenySweep(CountedSweep, kw_only=True):
    """What became of jobs that were to be denied."""

    denied: int = 0

    def on_written(self, change: Change) -> None:
        """Count a job that was denied."""
        self.denied += 1


def is_denied(job: Job) -> bool:
    """Return whether a rule denied a job that has not ended yet."""
    return any(hold.startswith(DENIED_HOLD) for hold in job.held_by)


def choose_denial(store: Store, name: str) -> Choose:
    """Return what ends a job that a rule denied."""
    actor = Actor(Role.SCHEDULER, name)

    async def choose(job: Job) -> Sequence[c.Command]:
        [first] = await store.events(job.id, limit=1)
        held = next(hold for hold in job.held_by if hold.startswith(DENIED_HOLD))
        rule = first.facts.rule or held.removeprefix(DENIED_HOLD)
        reason = _recall_reason(await find_book(store, first.facts.rules), first)
        return (make_denial(actor, rule, first.facts.rules, reason),)

    return choose


def _recall_reason(book: Book | None, first: LoggedEvent) -> str | None:
    """Return why a book denied a job at its birth: the same birth and book decide the same."""
    if book is None:
        return None
    found = judge(book, recorded_variables(first))
    if isinstance(found, Decision) and found.verdict is Verdict.DENY:
        return found.reason
    return find_reason(book, first.facts.rule)


def make_denial(
    actor: Actor,
    rule: str,
    rules: str | None,
    reason: str | None,
    *,
    decided_by: str | None = None,
) -> c.Deny:
    """Return the denial of a job by a rule."""
    text = f"rule {rule!r} denied it" + (f": {reason}" if reason else "")
    return c.Deny(
        actor=actor,
        rule=rule,
        rules=rules,
        reason=reason,
        decided_by=decided_by,
        body=error_body(JobDenied(text, code=c.DENIED)),
    )


async def settle_denied(
    store: Store, outcomes: list[SubmitOutcome], name: str
) -> list[SubmitOutcome]:
    """Return the outcomes of submits, those of denied jobs with the record that is denied.

    What fails here is left to the scheduler: the job cannot run in any case.
    """
    denied = {
        one.job.id: one.job
        for one in outcomes
        if isinstance(one, Submitted) and one.job.held_by and is_denied(one.job)
    }
    if not denied:
        return outcomes
    ended: list[Job] = []
    with suppress(HoldfastError):
        ended = await carry_out(
            store, list(denied.values()), choose_denial(store, name), DenySweep()
        )
    records = {job.id: job for job in ended}
    return [
        Submitted(records[one.job.id], created=one.created)
        if isinstance(one, Submitted) and one.job.id in records
        else one
        for one in outcomes
    ]
