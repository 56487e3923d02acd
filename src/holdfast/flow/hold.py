"""Hold, unhold and reschedule: keep a job from being claimed, or move its due time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from typing_extensions import TypedDict, Unpack

from holdfast.errors import about
from holdfast.flow.command import check_reason, perform
from holdfast.flow.policy_book import find_decision
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.holds import PERSON_HOLD
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.record import NO_FACTS, Actor, Job, JobId
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.times import Time
from holdfast.ports.store import Jobs

OPERATOR_HOLD = "operator"
"""The hold that a person puts on a job without naming one."""
HOLD_LIMIT = 200
"""Characters of a name: those that rules place have a prefix before the id of the rule."""


class Given(TypedDict, total=False):
    """What a caller may give with each of these."""

    reason: str | None
    request_id: str | None
    expected_rev: int | None


async def hold(
    store: Jobs, id: JobId, actor: Actor, name: str = OPERATOR_HOLD, **given: Unpack[Given]
) -> Job:
    """Keep a job from being claimed until the hold of this name is lifted."""
    return await _perform_control(
        store, id, partial(c.Hold, actor=actor, hold=_hold(name)), **given
    )


async def unhold(
    store: Jobs, id: JobId, actor: Actor, name: str = OPERATOR_HOLD, **given: Unpack[Given]
) -> Job:
    """Lift the hold of this name; other holds of the job stay.

    A job that only a rule's hold has kept from its queue is admitted in the same commit.
    """
    follow = None
    if name.startswith(PERSON_HOLD):
        decision = await find_decision(store, id)
        facts = NO_FACTS if decision is None else decision.facts
        scheduler = Actor(Role.SCHEDULER, actor.name)
        follow = c.Admit(actor=scheduler, rules=facts.rules, policy=facts.terms)
    return await _perform_control(
        store, id, partial(c.Unhold, actor=actor, hold=_hold(name)), follow=follow, **given
    )


async def reschedule(
    store: Jobs, id: JobId, actor: Actor, run_at: Time, **given: Unpack[Given]
) -> Job:
    """Make a job that has no owner due at another time."""
    return await _perform_control(
        store, id, partial(c.Reschedule, actor=actor, run_at=run_at), **given
    )


async def _perform_control(
    store: Jobs,
    id: JobId,
    make: Callable[..., c.Command],
    *,
    follow: c.Command | None = None,
    reason: str | None = None,
    request_id: str | None = None,
    expected_rev: int | None = None,
) -> Job:
    command = make(reason=check_reason(reason), request_id=request_id)
    return await perform(store, id, command, expected_rev=expected_rev, follow=follow)


def _hold(name: str) -> str:
    with about("hold"):
        return check_text(name, "a hold's name", limit=HOLD_LIMIT)
