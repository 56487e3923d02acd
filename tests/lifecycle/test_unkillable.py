"""A run that cannot be killed stays running and says so (resolution 11)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.rebase import has_landed, same_request
from holdfast.lifecycle.record import NO_FACTS
from holdfast.lifecycle.states import CancelMode, EventType, State
from tests.lifecycle.factories import CONTROL, Life, asked_to_cancel, life_in, refused


def said_so(**fields: Any) -> Life:
    """A running job that was to be cancelled and goes on."""
    life = asked_to_cancel(life_in(State.RUNNING))
    life.do(c.Progress(actor=life.owner, unkillable=True, **fields))
    return life


def test_a_run_that_cannot_be_killed_stays_running_and_says_so() -> None:
    before = asked_to_cancel(life_in(State.RUNNING)).record
    life = said_so()
    event = life.events[-1]

    assert (event.type, event.facts.kill) == (EventType.PROGRESSED, "unkillable")
    assert (event.body, event.digest) == (None, None)
    assert replace(life.record, rev=before.rev, updated_at=before.updated_at) == before
    assert life.record.cancel_requested is CancelMode.SOFT


def test_it_may_say_more_with_it() -> None:
    life = said_so(body=b'{"thread":"t-1"}', reason="kill took no effect")

    assert life.events[-1].body == b'{"thread":"t-1"}'
    assert life.events[-1].reason == "kill took no effect"


@pytest.mark.parametrize(
    ("ending", "state", "kill"),
    [
        (lambda life: c.Complete(actor=life.owner), State.SUCCEEDED, None),
        (lambda life: c.Cancel(actor=life.owner), State.CANCELLED, "confirmed"),
        (lambda life: c.Retry(actor=life.owner, error_code="x"), State.CANCELLED, "confirmed"),
    ],
    ids=["completed", "cancelled", "turned"],
)
def test_it_ends_as_any_other_run_does(ending: Any, state: State, kill: str | None) -> None:
    life = said_so()
    life.do(ending(life))

    assert (life.record.state, life.events[-1].facts.kill) == (state, kill)


def test_plain_progress_claims_nothing_of_the_kind() -> None:
    life = life_in(State.RUNNING)
    life.do(c.Progress(actor=life.owner, body=b"0.5"))

    assert life.events[-1].facts is NO_FACTS


def test_progress_that_says_nothing_is_refused() -> None:
    life = life_in(State.RUNNING)

    assert refused(life, c.Progress(actor=life.owner)) == "nothing_said"


def test_nobody_says_it_of_a_job_that_has_not_started() -> None:
    life = life_in(State.CLAIMED)

    assert refused(life, c.Progress(actor=life.owner, unkillable=True)) == "illegal_transition"


def test_nobody_but_the_owner_says_it() -> None:
    life = life_in(State.RUNNING)

    assert refused(life, c.Progress(actor=CONTROL, unkillable=True)) == "role_not_allowed"


@pytest.mark.req("C6")
@pytest.mark.parametrize("body", [None, b"1"])
def test_a_repeat_is_the_same_request_only_if_it_says_the_same(body: bytes | None) -> None:
    life = said_so(body=body, request_id="r")
    event = life.events[-1]

    def again(**fields: Any) -> bool:
        return same_request(event, c.Progress(actor=life.owner, request_id="r", **fields))

    assert again(unkillable=True, body=body)
    assert not again(unkillable=True, body=b"2")
    assert not again(body=body or b"1")


@pytest.mark.req("B5", "C6")
def test_a_change_has_landed_only_if_its_event_says_the_same() -> None:
    life = life_in(State.RUNNING)
    said = life.do(c.Progress(actor=life.owner, unkillable=True, body=b"1", request_id="r"))
    event = life.events[-1]

    assert has_landed(said, event)
    assert not has_landed(said, replace(event, facts=NO_FACTS))
    plain = replace(said, event=replace(said.event, facts=NO_FACTS))
    assert not has_landed(plain, event)
    assert has_landed(plain, replace(event, facts=NO_FACTS))
