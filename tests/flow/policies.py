"""Rules and people that the tests of policies share."""

from __future__ import annotations

from holdfast.flow.approve import Approver
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.submit import submit as decide_submit
from holdfast.ports.models import Submitted
from holdfast.ports.store import Store
from holdfast.testing.factories import submission

OPEN = 'version = 1\ndefault = "allow"\n'
TWO = OPEN + (
    '[[rule]]\nid = "two"\nmatch = { task = "deploy" }\nthen = "approve"\n'
    'approve = { count = 2, roles = ["operator"] }\n'
)
ONE = OPEN + (
    '[[rule]]\nid = "one"\nmatch = { task = "deploy" }\nthen = "approve"\n'
    'approve = { count = 1, expires = "1h" }\n'
)
CANCELS = ONE.replace('expires = "1h"', 'expires = "1h", on_expiry = "cancel"')
HOLDS = OPEN + '[[rule]]\nid = "wait"\nmatch = { task = "deploy" }\nthen = "hold"\n'
DENIES = OPEN + (
    '[[rule]]\nid = "no"\nmatch = { task = "deploy" }\nthen = "deny"\nreason = "not today"\n'
)
TOKENS = {name: f"{number:020x}" for number, name in enumerate(("ann", "bob", "cem", "eve"), 1)}


def person(name: str, role: str = "operator") -> Approver:
    """Return a person with a token."""
    return Approver(name=name, token_id=TOKENS[name], role=role)


async def submitted(
    store: Store, *, by: str = "eve", task: str = "deploy", **fields: object
) -> Job:
    """Submit a job as a person with a token."""
    actor = Actor(Role.GATEWAY, f"{by}/{TOKENS[by]}")
    [outcome] = await store.submit([decide_submit(submission(task=task, **fields), actor)])
    assert isinstance(outcome, Submitted), outcome
    return outcome.job
