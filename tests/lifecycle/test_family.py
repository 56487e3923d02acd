"""Parents and children: whom a parent waits for, what a step brings into the world."""

from itertools import pairwise

import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.family import (
    CHILDREN,
    NAME_LIMIT,
    awaits,
    awaits_children,
    forsakes,
    groups,
    wait_name,
)
from holdfast.lifecycle.states import Link, State
from holdfast.testing.factories import new_job
from holdfast.testing.store_actions import change
from tests.lifecycle.factories import asked_to_cancel, life_in, owner


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ([0], "holdfast:children:0"),
        ([2, 0, 1, 2], "holdfast:children:0-2"),
        ([0, 2, 3, 9], "holdfast:children:0,2-3,9"),
        (range(1000), "holdfast:children:0-999"),
    ],
)
def test_a_wait_for_some_children_names_them_shortly(numbers: list[int], name: str) -> None:
    assert wait_name(numbers) == name
    assert awaits_children(name)


def test_a_wait_is_for_the_children_it_names_and_no_other() -> None:
    numbers = {0, 2, 3, 9, 11}
    name = wait_name(numbers)

    assert {n for n in range(20) if awaits(name, new_job(step_index=n).record)} == numbers
    assert not awaits(name, new_job(step_index=None).record)


def test_a_wait_for_all_is_for_those_without_a_number_too() -> None:
    assert awaits(CHILDREN, new_job(step_index=None).record)
    assert awaits(CHILDREN, new_job(step_index=7).record)


@pytest.mark.parametrize("numbers", [range(0, 10_000, 2), range(10_000), [7], range(0, 300, 3)])
def test_children_too_far_apart_for_one_wait_are_waited_for_in_groups(numbers: list[int]) -> None:
    parts = groups(reversed(numbers))

    assert [number for part in parts for number in part] == list(numbers)
    names = [wait_name(part) for part in parts]
    assert max(map(len, names)) <= NAME_LIMIT
    # As few as will do: two of them in one would be too long.
    both = [f"{one},{other}" for one, other in pairwise(names)]
    assert all(len(name) > NAME_LIMIT for name in both)


@pytest.mark.parametrize(
    "name",
    [
        None,
        "",
        "go",
        "holdfast:childrens",
        "holdfast:children:",
        "holdfast:children:x",
        "holdfast:children:1-",
        "holdfast:children:-1",
    ],
)
def test_what_only_looks_like_it_is_a_signal_like_any_other(name: str | None) -> None:
    assert not awaits_children(name)
    assert not awaits(name, new_job(step_index=1).record)


@pytest.mark.req("A18")
def test_children_end_with_a_parent_that_was_cancelled_or_did_not_succeed() -> None:
    ended = {
        state for state in State if state is not State.UNKNOWN and forsakes(life_in(state).record)
    }

    assert ended == {
        State.FAILED,
        State.CANCELLED,
        State.TIMED_OUT,
        State.DENIED,
        State.DEAD_LETTERED,
    }
    life = asked_to_cancel(life_in(State.RUNNING))
    assert forsakes(life.record)
    life.do(c.Complete(actor=owner()))
    assert not forsakes(life.record), "a completion that came first wins"


def test_a_remembered_step_brings_its_children_along() -> None:
    parent = life_in(State.RUNNING).record
    spawned = new_job(parent_id=parent.id, link_kind=Link.CHILD)
    step = c.Step(actor=owner(), name="spawn", body=b'"id"', submits=(spawned,))

    assert change(parent, step).submits == (spawned,)
    assert change(parent, c.Step(actor=owner(), name="plain")).submits == ()
