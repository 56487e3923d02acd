"""The five vocabularies, row by row of the table in the requirements."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.lifecycle.derive import derive_status
from holdfast.lifecycle.dialects import DIALECTS, Dialect
from holdfast.lifecycle.record import LoggedEvent
from holdfast.lifecycle.states import TERMINAL, EventType, Operation, State
from holdfast.lifecycle.times import After
from tests.lifecycle.histories import History
from tests.lifecycle.lives import lived
from tests.lifecycle.seed_rules import legal_in_seed

KEYS = tuple(DIALECTS)
A, B, C, D, E = DIALECTS.values()
REQUIREMENTS = Path(__file__).parents[2] / "docs/requirements.md"


def words(history: History) -> list[str]:
    return [DIALECTS[key].state(history.job, history.events) for key in KEYS]


def told(dialect: Dialect, history: History) -> list[str]:
    return [line.state for line in dialect.history(history.events)]


ROWS: dict[str, tuple[History, tuple[str, str, str, str, str]]] = {
    "pending": (
        lived(admitted=False),
        ("PENDING", "queued", "queued", "pending", "Queued"),
    ),
    "queued": (
        lived(),
        ("SCHEDULED", "queued", "queued", "pending", "Queued"),
    ),
    "claimed": (
        lived("claim"),
        ("DISPATCHED", "assigned", "claimed", "starting", "Leased"),
    ),
    "running": (
        lived("claim", "start"),
        ("RUNNING", "running", "running", "running", "Running"),
    ),
    "waiting": (
        lived("claim", "start", "wait"),
        ("RUNNING", "queued", "stalled", "running", "Waiting"),
    ),
    "retrying": (
        lived("claim", "start", "retry"),
        ("RUNNING", "queued", "stalled", "running", "Retrying"),
    ),
    "retrying, never started": (
        lived("claim", "retry"),
        ("DISPATCHED", "queued", "stalled", "starting", "Retrying"),
    ),
    "stalled": (
        lived("claim", "start", "stall"),
        ("RUNNING", "queued", "stalled", "running", "Queued"),
    ),
    "stalled, never started": (
        lived("claim", "stall"),
        ("DISPATCHED", "queued", "stalled", "starting", "Queued"),
    ),
    "queued again": (
        lived("claim", "start", "stall", "requeue"),
        ("RUNNING", "queued", "queued", "running", "Queued"),
    ),
    "claimed again": (
        lived("claim", "start", "stall", "claim"),
        ("RUNNING", "assigned", "claimed", "running", "Leased"),
    ),
    "succeeded": (
        lived("claim", "start", "complete"),
        ("SUCCEEDED", "succeeded", "succeeded", "completed", "Completed"),
    ),
    "failed": (
        lived("claim", "start", "fail"),
        ("FAILED", "failed", "failed", "failed", "Failed"),
    ),
    "failed by lose from claimed": (
        lived("claim", "lose"),
        ("FAILED", "dead_lettered", "failed", "failed", "Failed"),
    ),
    "failed by lose from stalled": (
        lived("claim", "start", "stall", "lose"),
        ("FAILED", "dead_lettered", "failed", "failed", "Failed"),
    ),
    "failed by lose from running": (
        lived("claim", "start", "lose"),
        ("FAILED", "failed", "failed", "failed", "Failed"),
    ),
    "cancelled": (
        lived("cancel"),
        ("CANCELLED", "cancelled", "failed", "cancelled", "Cancelled"),
    ),
    "timed_out": (
        lived("claim", "start", "time out"),
        ("TIMEOUT", "dead_lettered", "failed", "timed_out", "Failed"),
    ),
    "timed_out, claimed, never started": (
        lived("claim", "time out"),
        ("TIMEOUT", "dead_lettered", "failed", "failed", "Failed"),
    ),
    "timed_out, never claimed": (
        lived("time out", deadline_at=After(1)),
        ("CANCELLED", "dead_lettered", "failed", "failed", "Failed"),
    ),
    "denied": (
        lived("deny", admitted=False),
        ("DENIED", "dead_lettered", "failed", "failed", "Failed"),
    ),
    "dead_lettered by its owner": (
        lived("claim", "start", "dead-letter"),
        ("FAILED", "dead_lettered", "failed", "failed", "Failed"),
    ),
    "dead_lettered by the reconciler": (
        lived("claim", "start", "dead-letter by reconciler"),
        ("TIMEOUT", "dead_lettered", "failed", "failed", "Failed"),
    ),
    "dead_lettered, never claimed": (
        lived("dead-letter by scheduler"),
        ("CANCELLED", "dead_lettered", "failed", "failed", "Failed"),
    ),
    "dead_lettered by the reconciler, never claimed": (
        lived("dead-letter by reconciler"),
        ("CANCELLED", "dead_lettered", "failed", "failed", "Failed"),
    ),
    "cleaning": (
        lived("claim", "start", "complete", "clean"),
        ("SUCCEEDED", "succeeded", "succeeded", "cleaning", "Completed"),
    ),
    "cleaned": (
        lived("claim", "start", "complete", "clean", "cleaned"),
        ("SUCCEEDED", "succeeded", "succeeded", "cleaned", "Completed"),
    ),
}


@pytest.mark.req("A11", "B1", "E3")
@pytest.mark.parametrize("row", ROWS)
def test_each_row_of_the_table_reads_as_required(row: str) -> None:
    history, expected = ROWS[row]
    assert words(history) == list(expected)
    for dialect in DIALECTS.values():
        assert legal_in_seed(dialect.key, dialect.history(history.events)) == []


def test_the_rows_cover_every_state() -> None:
    assert {history.job.state for history, _ in ROWS.values()} == set(State) - {State.UNKNOWN}


def test_the_words_are_those_of_the_table_in_the_requirements() -> None:
    table = re.findall(r"^\| `(\w+)`[^|]*\|(.+)\|$", REQUIREMENTS.read_text("utf-8"), re.MULTILINE)
    assert {name for name, _ in table} == {state.value for state in State} - {"unknown"}
    by_name = {key: {str(s): word for s, word in DIALECTS[key].states.items()} for key in KEYS}
    for name, cells in table:
        for key, cell in zip(KEYS, cells.split("|"), strict=True):
            first = re.split(r"[,; ]", cell.strip())[0]
            assert by_name[key].get(name, "†") == first, (name, key)


REASONS: dict[str, tuple[History, str | None, str | None, str | None]] = {
    "succeeded": (lived("claim", "start", "complete"), None, None, None),
    "failed": (lived("claim", "start", "fail"), None, "boom", "boom"),
    "lost": (
        lived("claim", "lose"),
        "infrastructure_failure",
        "container_lost_on_recovery",
        "container_lost_on_recovery",
    ),
    "cancelled": (lived("cancel"), None, "cancelled", "cancelled"),
    "timed_out": (
        lived("claim", "start", "time out"),
        "timeout",
        "timeout",
        "Job exceeded timeout limit",
    ),
    "timed_out, never started": (
        lived("claim", "time out"),
        "timeout",
        "timeout",
        "start_timeout",
    ),
    "denied": (lived("deny"), "policy_violation", "denied", "denied"),
    "dead_lettered": (
        lived("claim", "start", "dead-letter"),
        "parse_error",
        "parse_error",
        "parse_error",
    ),
}


@pytest.mark.parametrize("row", REASONS)
def test_an_outcome_says_why_in_each_seeds_words(row: str) -> None:
    history, reason_code, error_in_c, error_in_d = REASONS[row]
    assert B.render(history.job, history.events)["reason_code"] == reason_code
    assert C.render(history.job, history.events)["error"] == error_in_c
    assert D.render(history.job, history.events)["error"] == error_in_d


def test_b_shows_the_attempt_that_comes_next_while_nobody_holds_the_job() -> None:
    history = lived("claim", "start", "stall", "requeue", "claim", "start", "complete")
    assert [(line.state, line.attempt) for line in B.history(history.events)] == [
        ("queued", 1),
        ("assigned", 1),
        ("running", 1),
        ("queued", 2),
        ("assigned", 2),
        ("running", 2),
        ("succeeded", 2),
    ]
    assert B.render(lived("claim", "start", "wait").job)["attempt"] == 2


@pytest.mark.req("A11")
@pytest.mark.parametrize(
    ("history", "expected"),
    [
        (lived(), ["PENDING", "SCHEDULED"]),
        (lived("deny", admitted=False), ["PENDING", "SCHEDULED", "DENIED"]),
        (lived("claim", "lose"), ["PENDING", "SCHEDULED", "DISPATCHED", "RUNNING", "FAILED"]),
        (
            lived("claim", "retry", "claim", "dead-letter"),
            ["PENDING", "SCHEDULED", "DISPATCHED", "RUNNING", "FAILED"],
        ),
        (lived("cancel", admitted=False), ["PENDING", "CANCELLED"]),
        (
            lived("claim", "start", "wait", "signal", "resume", "claim", "start", "complete"),
            ["PENDING", "SCHEDULED", "DISPATCHED", "RUNNING", "SUCCEEDED"],
        ),
    ],
)
def test_a_never_goes_back_and_shows_the_steps_that_are_implied(
    history: History, expected: list[str]
) -> None:
    assert told(A, history) == expected


@pytest.mark.req("A18")
@pytest.mark.parametrize(
    "acts",
    [
        ("cancel",),
        ("claim", "request cancel", "cancel by owner"),
        ("claim", "start", "request cancel", "cancel by owner"),
        ("claim", "start", "request cancel", "stall"),
        ("claim", "start", "wait", "cancel"),
        ("claim", "start", "retry", "cancel"),
        ("claim", "start", "stall", "cancel"),
    ],
)
@pytest.mark.parametrize("admitted", [True, False])
def test_a_job_can_be_cancelled_from_wherever_it_is(acts: tuple[str, ...], admitted: bool) -> None:
    before = () if admitted or acts == ("cancel",) else ("admit",)
    history = lived(*before, *acts, admitted=admitted)
    assert told(A, history)[-1] == "CANCELLED"
    assert legal_in_seed("A", A.history(history.events)) == []


@pytest.mark.parametrize(
    ("acts", "exit_code"),
    [
        (("dead-letter by scheduler",), None),
        (("claim", "request cancel", "cancel by owner"), None),
        (("claim", "start", "request cancel", "cancel by owner"), 137),
        (("claim", "start", "fail"), 1),
        (("claim", "start", "complete", "clean", "cleaned"), 0),
    ],
)
def test_d_knows_no_exit_code_where_nothing_can_have_exited(
    acts: tuple[str, ...], exit_code: int | None
) -> None:
    history = lived(*acts)
    assert D.render(history.job, history.events)["exit_code"] == exit_code


def test_d_says_how_long_a_timed_out_job_ran() -> None:
    history = lived("claim", "start", "time out")
    shown = D.render(history.job)
    assert shown["status"] == "timed_out"
    assert shown["exit_code"] == 137
    assert shown["timeout_minutes"] == 0
    # The owner was silent, so the reconciler came when the lease of two heartbeats was over.
    assert shown["actual_runtime_seconds"] == 30


def test_d_shows_cleaning_as_two_more_states() -> None:
    history = lived("claim", "start", "fail", "clean", "cleaned")
    assert told(D, history)[-3:] == ["failed", "cleaning", "cleaned"]
    assert told(C, history)[-1] == "failed"


@pytest.mark.req("C10")
def test_c_tells_a_life_in_its_eight_event_names() -> None:
    history = lived(
        *("claim", "renew", "start", "beat", "stall", "requeue", "claim", "start", "wait"),
        *("signal", "resume", "claim", "start", "complete", "compensate"),
    )
    assert [line.event for line in C.history(history.events)] == [
        *("enqueued", "claimed", "heartbeat", "started", "heartbeat", "stalled", "requeued"),
        *("claimed", "started", "stalled", "requeued", "claimed", "started", "succeeded"),
    ]


@pytest.mark.req("C2")
def test_c_names_each_operation_as_its_contract_does() -> None:
    assert set(C.operations.values()) == {
        *("enqueue", "claim_next", "start", "heartbeat"),
        *("complete", "fail", "stall", "requeue_stalled"),
    }
    assert C.operations[Operation.REQUEUE] == "requeue_stalled"


@pytest.mark.req("B17")
def test_b_knows_who_renewed_a_lease() -> None:
    history = lived("claim", "renew", "start", "beat", "complete", "compensate")
    assert [line.event for line in B.history(history.events)] == [
        *("queued", "job_claimed", "job_lease_renewed", "job_started"),
        *("job_heartbeat", "job_succeeded", "job_compensated"),
    ]


@pytest.mark.req("E3")
def test_e_tells_a_life_by_the_events_that_drive_it() -> None:
    history = lived(
        *("admit", "claim", "start", "step", "adopt", "wait", "signal", "resume", "claim"),
        *("start", "retry", "claim", "release", "requeue", "claim", "stall", "claim"),
        *("start", "complete"),
        admitted=False,
    )
    assert [(line.event, line.state) for line in E.history(history.events)] == [
        ("job_created", "Queued"),
        ("JobQueued", "Queued"),
        ("job_leased", "Leased"),
        ("job_running", "Running"),
        ("job_running", "Running"),
        ("job_waiting", "Waiting"),
        ("wait_completed", "Queued"),
        ("job_leased", "Leased"),
        ("job_running", "Running"),
        ("job_requeued", "Retrying"),
        ("job_leased", "Leased"),
        ("job_requeued", "Queued"),
        ("job_requeued", "Queued"),
        ("job_leased", "Leased"),
        ("job_requeued", "Queued"),
        ("job_leased", "Leased"),
        ("job_running", "Running"),
        ("job_completed", "Completed"),
    ]


def from_a_newer_version(event: LoggedEvent, **changes: Any) -> LoggedEvent:
    return replace(event, type=EventType.UNKNOWN, **changes)


@pytest.mark.req("E4", "E8", "B27")
@pytest.mark.parametrize("key", KEYS)
def test_unknown_events_are_passed_over_or_read_by_their_state(key: str) -> None:
    created, claimed, started, done = lived("claim", "start", "complete").events
    unknown = from_a_newer_version(claimed, to_state=State.UNKNOWN)
    retyped = from_a_newer_version(started)
    events = [created, claimed, unknown, retyped, done]

    expected = [line.state for line in DIALECTS[key].history([created, claimed, started, done])]
    assert [line.state for line in DIALECTS[key].history(events)] == expected
    assert derive_status(events[:-1]) is State.RUNNING


@pytest.mark.req("B27")
def test_a_state_of_a_newer_version_is_shown_as_unknown() -> None:
    job = replace(lived("claim").job, state=State.UNKNOWN)
    for dialect in DIALECTS.values():
        assert dialect.state(job) == "unknown"


def test_a_worker_named_like_the_reconciler_is_still_the_owner() -> None:
    history = lived("claim", "start", "dead-letter", worker="reconciler:one")
    assert told(A, history)[-1] == "FAILED"


def test_annotations_after_the_end_change_no_state() -> None:
    history = lived("claim", "start", "complete", "late result", "compensate")
    assert history.job.state in TERMINAL
    assert [told(dialect, history)[-1] for dialect in (A, C, D, E)] == [
        *("SUCCEEDED", "succeeded", "completed", "Completed")
    ]
