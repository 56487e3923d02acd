"""What becomes of a job whose worker is dead, by what its box shows: the table of D14."""

from __future__ import annotations

import pytest

from holdfast.flow.recover_boxes import recover_box
from holdfast.flow.submit_command import COMMAND_TERMS
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import CONFIRMED, Actor
from holdfast.lifecycle.states import Kind, Role, State
from holdfast.ports.box import BoxExit, BoxState, Sight
from tests.lifecycle.factories import CONTROL, HOST, Life

ADOPTED = (State.RUNNING, None)
NOT_FOUND = (State.FAILED, "container_not_found_on_recovery")
LOST = (State.FAILED, "container_lost_on_recovery")
CANCELLED = (State.CANCELLED, "cancelled")
CLAIMED, STARTED = State.CLAIMED, State.RUNNING


def left_behind(state: State, *, cancel: bool = False) -> Life:
    """Make a command whose worker w1 is dead; its lease still runs."""
    life = Life(kind=Kind.COMMAND, policy=COMMAND_TERMS, task="worker").claim()
    if state is STARTED:
        life.start()
    if cancel:
        life.do(c.RequestCancel(actor=CONTROL))
    return life


def look(state: BoxState) -> Sight:
    return Sight(state, BoxExit(code=0) if state is BoxState.EXITED else None)


@pytest.mark.req("D14", "D16")
@pytest.mark.parametrize("cancel", [False, True], ids=["", "cancel requested"])
@pytest.mark.parametrize(
    ("box", "claimed", "running"),
    [
        (BoxState.ABSENT, NOT_FOUND, LOST),
        (BoxState.CREATED, ADOPTED, ADOPTED),
        (BoxState.RUNNING, ADOPTED, ADOPTED),
        (BoxState.EXITED, ADOPTED, ADOPTED),
        (BoxState.LOST, NOT_FOUND, LOST),
    ],
)
@pytest.mark.parametrize("state", [CLAIMED, STARTED])
def test_the_box_of_a_dead_worker_decides_what_becomes_of_its_job(
    state: State,
    box: BoxState,
    claimed: tuple[State, str | None],
    running: tuple[State, str | None],
    cancel: bool,
) -> None:
    life = left_behind(state, cancel=cancel)
    change = life.do(recover_box(life.record, look(box), HOST, now=life.now, epoch=1))
    expected = claimed if state is CLAIMED else running
    if cancel and expected is not ADOPTED:
        # The request is sticky: what is lost with it is cancelled (resolution 11).
        expected = CANCELLED
    assert (life.record.state, life.record.error_code) == expected
    assert (life.record.attempt, life.record.exit_code) == (1, None)
    if expected is ADOPTED:
        assert life.record.owner == HOST.name
        assert (life.record.cancel_requested is not None) is cancel
    else:
        # Whoever decides has seen that nothing of it is left.
        assert change.event.facts.kill == CONFIRMED


def test_the_table_has_a_row_for_every_state_of_a_box() -> None:
    life = left_behind(STARTED)
    for box in BoxState:
        command = recover_box(life.record, look(box), HOST, now=life.now, epoch=1)
        assert isinstance(command, c.Adopt | c.Lose)


@pytest.mark.req("D14")
def test_a_job_is_adopted_again_by_the_next_worker_within_the_same_attempt() -> None:
    life = left_behind(STARTED)
    started_at, timeout_at = life.record.started_at, life.record.timeout_at
    for name in ("w2", "w3", "w4"):
        actor = Actor(Role.HOST, name)
        life.do(recover_box(life.record, look(BoxState.RUNNING), actor, now=life.now, epoch=1))
        assert (life.record.owner, life.record.attempt) == (name, 1)
        assert (life.record.started_at, life.record.timeout_at) == (started_at, timeout_at)
