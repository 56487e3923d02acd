"""A start and a success are decided in one step: exactly as question by question."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide, deliberate
from holdfast.lifecycle.decide.fast_path import FAST_PATH
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, Policy
from holdfast.lifecycle.payload import Body
from holdfast.lifecycle.record import Actor, Change, Draft, KeptOutput
from holdfast.lifecycle.states import CancelMode, Kind, Retention, Role, State
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.factories import TERMS, life_in
from tests.lifecycle.histories import History, histories

POLICIES = (
    DEFAULT_POLICY,
    TERMS,
    Policy(compensates=True, heartbeat=10 * SECOND),
    Policy(idempotent=False, letter_on_fail=True, timeout=SECOND),
)
TURNS: tuple[dict[str, Any], ...] = (
    *({"policy": policy} for policy in POLICIES),
    {"held_by": ("limit",)},
    {"cancel_requested": CancelMode.SOFT},
    {"retention": Retention.CLEANING},
    {"retention": Retention.CLEANED},
    {"beats": 7},
    {"failures": 2, "releases": 1},
    *({"kind": kind} for kind in Kind),
)
"""What a record may have on it, whether or not its state allows for it."""
STARTS: tuple[dict[str, Any], ...] = ({}, {"ago": 1}, {"ago": 90 * SECOND})
COMPLETES: tuple[dict[str, Any], ...] = (
    {},
    {"body": Body(b'{"sent":1}')},
    {"body": b'{"sent": 1}'},
    {"exit_code": 0},
    {"exit_code": 1},
    {"result_ptr": ""},
    {"result_ptr": "s3://bucket/key"},
    {"execution_ms": 0},
    {"worker": "peer-7"},
    {"log": KeptOutput(digest="ab", bytes=1)},
    {"artifacts": KeptOutput(digest="ab", bytes=1)},
)
WORDS: tuple[dict[str, Any], ...] = ({"reason": ""}, {"reason": "why"}, {"request_id": "r-1"})


def commands(actor: Actor) -> Iterator[c.Command]:
    """Say a start and a success in every way there is."""
    yield from (c.Start(actor=actor, **said) for said in (*STARTS, *WORDS))
    yield from (c.Complete(actor=actor, **said) for said in (*COMPLETES, *WORDS))


def actors(record: Draft) -> Iterator[Actor]:
    """Speak in every role as the owner, as a stranger, and of another attempt."""
    names = {record.owner or "w1", "stranger"}
    for role, name, attempt in product(Role, sorted(names), (record.attempt, record.attempt + 1)):
        yield Actor(role, name, attempt)


def same(record: Draft, command: c.Command) -> bool:
    """Whether both ways decide alike, to the type of every value."""
    quick, slow = decide(record, command), deliberate(record, command)
    return quick == slow and repr(quick) == repr(slow)


@pytest.mark.parametrize("state", State)
def test_every_start_and_success_is_decided_as_question_by_question(state: State) -> None:
    known = State.RUNNING if state is State.UNKNOWN else state
    for turn in TURNS:
        record = replace(life_in(known).record, state=state, **turn)
        differing = [
            command
            for actor in actors(record)
            for command in commands(actor)
            if not same(record, command)
        ]
        assert differing == []


@pytest.mark.parametrize("policy", POLICIES)
def test_a_success_upon_an_unwritten_start_is_decided_as_question_by_question(
    policy: Policy,
) -> None:
    life = life_in(State.CLAIMED, policy=policy)
    started = decide(life.record, c.Start(actor=life.owner, ago=5))
    assert isinstance(started, Change)
    differing = [one for one in commands(life.owner) if not same(started.next, one)]
    assert differing == []


@settings(
    max_examples=40,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(histories(), st.integers(0, 10**12))
def test_whatever_a_job_has_been_through_both_ways_decide_alike(history: History, ago: int) -> None:
    for record in history.records:
        actor = Actor(Role.OWNER, record.owner or "nobody", record.attempt)
        for command in (*commands(actor), c.Start(actor=actor, ago=ago)):
            assert same(record, command)


def test_the_usual_start_and_success_take_the_one_step() -> None:
    life = life_in(State.CLAIMED, policy=DEFAULT_POLICY)
    for command in (c.Start(actor=life.owner), c.Complete(actor=life.owner, body=b"1")):
        change = FAST_PATH[type(command)](life.record, command)
        assert change is not None
        life.commit(change)
    assert life.record.state is State.SUCCEEDED


@pytest.mark.parametrize("body", [b"{", b'{"a":1,"a":2}', "text", b"x" * (2**20 + 1)])
def test_a_bad_result_is_refused_in_the_same_words(body: Any) -> None:
    life = life_in(State.RUNNING, policy=DEFAULT_POLICY)
    command = c.Complete(actor=life.owner, body=body)
    with pytest.raises(BadData) as quick:
        decide(life.record, command)
    with pytest.raises(BadData) as slow:
        deliberate(life.record, command)
    assert str(quick.value) == str(slow.value)
