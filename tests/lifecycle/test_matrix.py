"""The whole matrix: every operation, from every state, by every role.

`LAW` is written by hand from the table in the design, not made from `transitions.TABLE`: the two
must agree. Each cell is asked with the most favourable record and command, so that a refusal can
only come from the table; conditions have their tests in `test_conditions`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.invariants import broken_rules
from holdfast.lifecycle.log_checks import log_problems
from holdfast.lifecycle.record import Actor, Change, Refusal, Unchanged
from holdfast.lifecycle.states import (
    HOLDABLE,
    OWNED,
    RANK,
    EventType,
    Operation,
    Retention,
    Role,
    State,
)
from tests.lifecycle.factories import FAR, TERMS, Life, asked_to_cancel, life_in
from tests.lifecycle.histories import BIRTH, COMMANDS

GROUPS = """
group  | states
due    | queued retrying stalled
owned  | claimed running
parked | pending queued waiting retrying stalled
ended  | succeeded failed cancelled timed_out denied dead_lettered
letter | failed dead_lettered
"""

LAW = """
operation      | from           | to            | by                   | event
admit          | pending        | queued        | scheduler            | job_admitted
deny           | pending queued | denied        | scheduler            | job_denied
deny           | pending        | denied        | control              | job_denied
approve        | pending        | same          | control              | job_approved
hold           | pending due    | same          | scheduler control    | job_held
unhold         | pending due    | same          | scheduler control    | job_unheld
reschedule     | pending due    | same          | scheduler control    | job_rescheduled
claim          | due            | claimed       | worker bus           | job_claimed
correct_terms  | claimed        | same          | owner                | job_terms_corrected
start          | claimed        | running       | owner                | job_started
heartbeat      | owned          | same          | owner                | job_lease_renewed
adopt          | owned          | running       | host bus             | job_adopted
step           | running        | same          | owner                | step_completed
progress       | running        | same          | owner                | job_progressed
wait           | running        | waiting       | owner                | job_waiting
resume         | waiting        | queued        | control reconciler   | wait_completed
complete       | running        | succeeded     | owner                | job_succeeded
fail           | running        | failed        | owner                | job_failed
lose           | owned stalled  | failed        | reconciler           | job_failed
lose           | owned          | failed        | host                 | job_failed
retry          | owned          | retrying      | owner                | job_retrying
release        | owned          | stalled       | owner                | job_released
stall          | owned          | stalled       | reconciler           | job_stalled
requeue        | stalled        | queued        | control reconciler   | job_requeued
request_cancel | owned          | same          | control scheduler    | job_cancel_requested
request_cancel | owned          | same          | reconciler           | job_cancel_requested
cancel         | parked         | cancelled     | control reconciler   | job_cancelled
cancel         | owned          | cancelled     | owner reconciler     | job_cancelled
time_out       | parked         | timed_out     | reconciler           | job_timed_out
time_out       | owned          | timed_out     | owner reconciler     | job_timed_out
dead_letter    | pending due    | dead_lettered | scheduler reconciler | job_dead_lettered
dead_letter    | owned          | dead_lettered | owner reconciler     | job_dead_lettered
signal         | parked owned   | same          | control              | signal_received
late_result    | ended          | same          | worker bus           | result_ignored
compensated    | ended          | same          | worker reconciler    | job_compensated
redriven       | letter         | same          | control              | dead_letter_redriven
discarded      | letter         | same          | control              | dead_letter_discarded
clean          | ended          | same          | janitor              | job_cleaning
cleaned        | ended          | same          | janitor              | job_cleaned
"""

REPEATS = """
operation   | from
admit       | queued
deny        | denied
start       | running
wait        | waiting
complete    | succeeded
fail        | failed
lose        | failed
retry       | retrying
release     | stalled
stall       | stalled
requeue     | queued
cancel      | cancelled
time_out    | timed_out
dead_letter | dead_lettered
"""
"""Where it already is what was wished for (A14): success, and nothing changes."""

STATES = [state for state in State if state is not State.UNKNOWN]


class Cell(NamedTuple):
    """What the hand-written table expects of one cell."""

    verdict: str
    """`change`, `unchanged`, or the code of a refusal."""
    target: str = ""
    event: str = ""


def read(table: str) -> list[dict[str, str]]:
    """Read a table of text."""
    lines = [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]


def states_of(words: str) -> set[str]:
    """Read a list of states and groups of states."""
    groups = {row["group"]: set(row["states"].split()) for row in read(GROUPS)}
    return set().union(*(groups.get(word, {word}) for word in words.split()))


ENDED = states_of("ended")


def expected(operation: str, state: str, role: str) -> Cell:
    """Look up a cell in the hand-written tables."""
    rows = [row for row in read(LAW) if row["operation"] == operation]
    if not any(role in row["by"].split() for row in rows):
        return Cell("role_not_allowed")
    for row in rows:
        if role in row["by"].split() and state in states_of(row["from"]):
            target = state if row["to"] == "same" else row["to"]
            return Cell("change", target, row["event"])
    if is_in(REPEATS, operation, state):
        return Cell("unchanged")
    if role == "owner" and state not in ("claimed", "running"):
        return Cell("lease_lost")
    return Cell("terminal" if state in ENDED else "illegal_transition")


def is_in(table: str, operation: str, state: str) -> bool:
    return any(
        row["operation"] == operation and state in states_of(row["from"]) for row in read(table)
    )


def favourable_life(operation: Operation, state: State) -> Life:
    """Lead a job into a state such that no condition of the operation is in the way."""
    life = life_in(state, policy=replace(TERMS, letter_on_fail=True), deadline_at=BIRTH + FAR)
    if operation is Operation.UNHOLD and state in HOLDABLE:
        life.do(c.Hold(actor=Actor(Role.CONTROL, "ann"), hold="upload"))
    if operation in (Operation.APPROVE, Operation.DENY) and state is State.PENDING:
        life.do(c.Hold(actor=Actor(Role.SCHEDULER, "scheduler"), hold="approval:prod/1/0"))
    if operation is Operation.CANCEL and state in OWNED:
        asked_to_cancel(life)
    if operation is Operation.CLEANED and state.value in ENDED:
        life.do(c.Clean(actor=Actor(Role.JANITOR, "janitor")))
    assert life.record.state is state
    assert broken_rules(life.record) == []
    return life


def favourable_command(operation: Operation, life: Life, role: Role) -> c.Command:
    """Make the command with the arguments that no condition refuses."""
    name = "w2" if role is Role.HOST else "w1"
    actor = Actor(role, name, life.record.attempt)
    arguments = _ARGUMENTS[operation](life) if operation in _ARGUMENTS else {}
    return COMMANDS[operation](actor=actor, **arguments)


_ARGUMENTS: dict[Operation, Callable[[Life], dict[str, Any]]] = {
    Operation.DENY: lambda life: {"rule": "no"},
    Operation.APPROVE: lambda life: {"hold": "approval:prod/1/0"},
    Operation.HOLD: lambda life: {"hold": "limit"},
    Operation.UNHOLD: lambda life: {"hold": "upload"},
    Operation.RESCHEDULE: lambda life: {"run_at": life.now},
    Operation.CORRECT_TERMS: lambda life: {"policy": replace(TERMS, timeout=1)},
    Operation.ADOPT: lambda life: {"as_of": life.lapsed},
    Operation.STEP: lambda life: {"name": "charge"},
    Operation.PROGRESS: lambda life: {"body": b"0.5"},
    Operation.WAIT: lambda life: {"signal": "go"},
    Operation.RESUME: lambda life: {"as_of": life.lapsed},
    Operation.COMPLETE: lambda life: {"body": b"1"},
    Operation.FAIL: lambda life: {"error_code": "boom"},
    Operation.LOSE: lambda life: {"error_code": "boom", "as_of": life.lapsed},
    Operation.RETRY: lambda life: {"error_code": "boom"},
    Operation.STALL: lambda life: {"as_of": life.lapsed},
    Operation.CANCEL: lambda life: {"as_of": life.lapsed, "parent_cancelled": True},
    Operation.TIME_OUT: lambda life: {"as_of": life.lapsed},
    Operation.DEAD_LETTER: lambda life: {
        "error_code": "exhausted_retries",
        "stage": "exec",
        "as_of": life.lapsed,
    },
    Operation.SIGNAL: lambda life: {"name": "go"},
    Operation.LATE_RESULT: lambda life: {"state": "SUCCEEDED"},
}


def answer(operation: Operation, state: State, role: Role) -> tuple[Cell, Life]:
    """Ask the law about one cell, and commit what it says."""
    life = favourable_life(operation, state)
    decision = life.ask(favourable_command(operation, life, role))
    match decision:
        case Change(event=event):
            return Cell("change", event.to_state.value, event.type.value), life
        case Unchanged():
            return Cell("unchanged"), life
        case Refusal(code=code):
            return Cell(code), life


ALL = [operation for operation in Operation if operation is not Operation.SUBMIT]


def test_every_operation_but_submit_is_a_command_and_stands_in_the_hand_written_law() -> None:
    assert set(COMMANDS) == set(ALL)
    assert {row["operation"] for row in read(LAW)} == {operation.value for operation in ALL}
    assert len(STATES) * len(Role) == 13 * 9


@pytest.mark.req("A11", "A12", "A14", "A18", "B1", "C2", "C5", "E3")
@pytest.mark.parametrize("operation", ALL)
def test_the_law_answers_each_cell_as_the_design_says(operation: Operation) -> None:
    wrong = {
        (state.value, role.value): (found, wanted)
        for state in STATES
        for role in Role
        if (found := answer(operation, state, role)[0])
        != (wanted := expected(operation.value, state.value, role.value))
    }

    assert wrong == {}


def changes(operation: Operation) -> list[tuple[Life, Life]]:
    """Every change that the operation can make, as the lives before and after."""
    pairs = []
    for state in STATES:
        for role in Role:
            found, after = answer(operation, state, role)
            if found.verdict == "change":
                pairs.append((favourable_life(operation, state), after))
    assert pairs
    return pairs


@pytest.mark.req("B3", "B4", "C1", "C7", "C8", "C9")
@pytest.mark.parametrize("operation", ALL)
def test_each_change_is_one_event_and_leaves_a_sound_record(operation: Operation) -> None:
    for before, after in changes(operation):
        was, now = before.record, after.record
        assert broken_rules(now) == []
        assert log_problems(after.events) == []
        assert now.rev == was.rev + 1 == after.events[-1].rev
        assert now.attempt == was.attempt + (operation is Operation.CLAIM)
        assert (now.attempt, RANK[now.state]) >= (was.attempt, RANK[was.state])
        assert len(after.events) == len(before.events) + 1


@pytest.mark.parametrize("operation", ALL)
def test_an_event_that_ends_an_ownership_names_the_last_owner_and_lease(
    operation: Operation,
) -> None:
    for before, after in changes(operation):
        if before.record.state in OWNED and after.record.state not in OWNED:
            event = after.events[-1]
            assert (event.facts.last_owner or event.actor) == "w1"
            assert event.lease_expires_at == before.record.lease_expires_at


OWNERS = sorted({row["operation"] for row in read(LAW) if "owner" in row["by"].split()})


@pytest.mark.req("C4", "B6")
@pytest.mark.parametrize("operation", OWNERS)
@pytest.mark.parametrize(
    ("name", "attempt"), [("w2", 1), ("w1", 0), ("w1", 2), ("w1", None), ("W1", 1)]
)
def test_an_owners_command_is_refused_to_all_but_the_owner_of_this_attempt(
    operation: str, name: str, attempt: int | None
) -> None:
    for state in OWNED:
        life = favourable_life(Operation(operation), state)
        honest = favourable_command(Operation(operation), life, Role.OWNER)
        stranger = Actor(Role.OWNER, name, attempt)
        arguments = {field: getattr(honest, field) for field in honest.__struct_fields__}
        decision = decide(life.record, type(honest)(**arguments | {"actor": stranger}))

        assert isinstance(decision, Refusal)
        assert decision.code == "lease_lost"


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("operation", ALL)
def test_a_state_of_a_newer_version_is_left_alone(operation: Operation, role: Role) -> None:
    life = favourable_life(operation, State.RUNNING)
    command = favourable_command(operation, life, role)
    life.record = replace(life.record, state=State.UNKNOWN)

    decision = decide(life.record, command)

    assert isinstance(decision, Refusal)
    assert decision.code == "unknown_state"


@pytest.mark.req("C13")
@pytest.mark.parametrize("state", [state for state in STATES if state.value in ENDED])
def test_nothing_is_written_after_cleaned(state: State) -> None:
    life = favourable_life(Operation.CLEANED, state)
    life.do(c.Cleaned(actor=Actor(Role.JANITOR, "janitor")))
    assert life.record.retention is Retention.CLEANED

    for operation in ALL:
        for role in Role:
            command = favourable_command(operation, life, role)
            assert not isinstance(decide(life.record, command), Change), (operation, role)


@pytest.mark.parametrize(
    ("command", "event"),
    [
        (lambda owner: c.Heartbeat(actor=owner, by_handler=True), EventType.HEARTBEAT),
        (lambda owner: c.Heartbeat(actor=owner), EventType.LEASE_RENEWED),
        (lambda owner: c.Step(actor=owner, name="s", started=True), EventType.STEP_STARTED),
        (lambda owner: c.Step(actor=owner, name="s"), EventType.STEP_COMPLETED),
        (lambda owner: c.Step(actor=owner, name="s", failed=True), EventType.STEP_FAILED),
    ],
)
@pytest.mark.req("B17")
def test_two_operations_have_more_than_one_event(
    command: Callable[[Actor], c.Command], event: EventType
) -> None:
    life = life_in(State.RUNNING)

    assert life.do(command(life.owner)).event.type is event
