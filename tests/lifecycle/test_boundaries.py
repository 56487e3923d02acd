"""What the law leaves to others is written down, and it keeps to it (docs/boundaries.md)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import KeyKind, Role
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.histories import GATEWAY, History, submission
from tests.lifecycle.lives import WORKER

PAGE = (Path(__file__).parents[2] / "docs/boundaries.md").read_text("utf-8")
ANY_KEY = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=1000)


@pytest.mark.req("C15")
@pytest.mark.parametrize("heading", ["## Key format", "## Lease policy"])
def test_both_boundaries_are_documented(heading: str) -> None:
    assert heading in PAGE


@pytest.mark.req("C15")
def test_the_page_names_every_term_that_a_lease_policy_sets() -> None:
    # These concern an outcome, not a lease.
    outcomes = {"idempotent", "on_exhausted", "letter_on_fail"}
    for field in set(Policy.__struct_fields__) - outcomes:
        assert f"`{field}`" in PAGE


@pytest.mark.req("C15")
@given(ANY_KEY)
def test_a_dedupe_key_is_opaque(key: str) -> None:
    new = submit(submission(dedupe_key=key), GATEWAY)
    assert [(given.kind, given.key) for given in new.keys] == [(KeyKind.DEDUPE.code, key)]
    assert new.record.key_kinds == KeyKind.DEDUPE.code


@pytest.mark.req("C15")
def test_the_law_grants_whatever_lease_the_policy_says() -> None:
    policy = Policy(lease=7 * SECOND, heartbeat=2 * SECOND)
    history = History()
    history.submit(submission(policy=policy))

    history.commit(c.Claim(actor=WORKER))
    assert history.job.lease_expires_at == history.now + policy.lease

    history.now += SECOND
    history.commit(c.Start(actor=Actor(Role.OWNER, WORKER.name, 1)))
    assert history.job.lease_expires_at == history.now + 2 * policy.heartbeat
