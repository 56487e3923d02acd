"""A log is checked against itself: tampering is noticed, dropped heartbeats are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.log_checks import log_problems
from holdfast.lifecycle.record import VERSION, LoggedEvent
from holdfast.lifecycle.states import BEATS, EventType, State
from tests.lifecycle.factories import RECONCILER, Life

Log = list[LoggedEvent]


def log() -> Log:
    """A life with two attempts and heartbeats in three places.

    1 created, 2 claimed, 3 beat, 4 started, 5–7 beats, 8 stalled, 9 claimed, 10 started,
    11–12 beats, 13 succeeded.
    """
    life = Life().claim()
    life.do(c.Heartbeat(actor=life.owner))
    life.start()
    for by_handler in (False, True, False):
        life.do(c.Heartbeat(actor=life.owner, by_handler=by_handler))
    life.do(c.Stall(actor=RECONCILER, as_of=life.lapsed))
    life.claim("w2").start()
    for _ in range(2):
        life.do(c.Heartbeat(actor=life.owner))
    life.do(c.Complete(actor=life.owner))
    assert len(life.events) == 13
    return life.events


def changed(revision: int, **columns: Any) -> Log:
    return [replace(event, **columns) if event.rev == revision else event for event in log()]


def without(*revs: int) -> Log:
    return [event for event in log() if event.rev not in revs]


@pytest.mark.req("B3", "B4", "E1")
def test_the_log_of_an_honest_life_has_no_problems() -> None:
    assert log_problems(log()) == []
    assert [event.beats for event in log() if event.type not in BEATS] == [0, 0, 1, 3, 0, 0, 2]


@pytest.mark.parametrize(
    "dropped",
    [
        (3, 5, 6, 7, 11, 12),
        (3,),
        (3, 5),
        (3, 5, 6),
        (3, 5, 6, 7, 11),
        (7,),
        (6,),
        (12,),
    ],
    ids=["all", "first", "some", "more", "all but the last", "newest", "middle", "last"],
)
def test_heartbeats_may_have_been_dropped_by_age_or_otherwise(dropped: tuple[int, ...]) -> None:
    assert log_problems(without(*dropped)) == []


@pytest.mark.parametrize(
    ("tampered", "problem"),
    [
        (lambda: without(4), "rev 5: leaves running, not claimed"),
        (lambda: without(8), "rev 9"),
        (lambda: without(1), "rev 2: job_claimed is the first event"),
        (lambda: without(4, 3, 5, 6, 7), "rev 8"),
        (lambda: [*log()[:-1], *log()[-1:], log()[-1]], "rev 13"),
        (lambda: [*log()[:12], log()[11]], "rev 12: follows rev 12"),
        (lambda: [*log()[:3], log()[4], log()[3], *log()[5:]], "rev 4"),
    ],
    ids=[
        "event",
        "event between attempts",
        "first",
        "event and beats",
        "double",
        "double beat",
        "order",
    ],
)
def test_a_missing_doubled_or_moved_event_is_noticed(
    tampered: Callable[[], Log], problem: str
) -> None:
    problems = log_problems(tampered())

    assert problems
    assert any(problem in text for text in problems), problems


CHANGED: list[Any] = [
    pytest.param(4, {"beats": 0}, "follows rev 2", id="a beat less"),
    pytest.param(4, {"beats": 2}, "follows rev 2", id="a beat more"),
    pytest.param(8, {"beats": 2}, "follows rev 4", id="fewer beats than there are"),
    pytest.param(8, {"rev": 14}, "follows rev 4", id="rev"),
    pytest.param(6, {"rev": 4}, "follows rev 5", id="rev of a beat"),
    pytest.param(1, {"rev": 2}, "is the first event", id="rev of the first"),
    pytest.param(4, {"type": EventType.ADMITTED}, "job_admitted from claimed", id="type"),
    pytest.param(4, {"type": EventType.HEARTBEAT}, "job_heartbeat from claimed", id="type to beat"),
    pytest.param(4, {"from_state": State.QUEUED}, "leaves queued, not claimed", id="from"),
    pytest.param(4, {"from_state": None}, "from nothing", id="from nothing"),
    pytest.param(8, {"to_state": State.QUEUED}, "job_stalled from running to queued", id="to"),
    pytest.param(8, {"to_state": State.RETRYING}, "to retrying", id="to a sibling"),
    pytest.param(9, {"attempt": 1}, "attempt 1 instead of 2", id="a claim without an attempt"),
    pytest.param(9, {"attempt": 3}, "attempt 3 instead of 2", id="an attempt too many"),
    pytest.param(10, {"attempt": 1}, "attempt 1 instead of 2", id="attempt"),
    pytest.param(6, {"attempt": 2}, "attempt 2 instead of 1", id="attempt of a beat"),
    pytest.param(8, {"at": 5}, "is earlier than rev 7", id="time"),
    pytest.param(6, {"at": 5}, "is earlier than rev 5", id="time of a beat"),
]


@pytest.mark.parametrize(("rev", "columns", "problem"), CHANGED)
def test_a_changed_column_is_noticed(rev: int, columns: dict[str, Any], problem: str) -> None:
    problems = log_problems(changed(rev, **columns))

    assert any(problem in text for text in problems), problems


@pytest.mark.req("B3")
def test_a_log_that_falls_back_is_noticed_though_each_edge_looks_legal() -> None:
    """Stalled, queued, and again stalled within one attempt: `job_released` from nowhere."""
    events = log()[:8]
    last = events[-1]
    queued = replace(
        last,
        rev=9,
        type=EventType.REQUEUED,
        from_state=State.STALLED,
        to_state=State.QUEUED,
        beats=0,
    )
    back = replace(
        queued, rev=10, type=EventType.STALLED, from_state=State.RUNNING, to_state=State.STALLED
    )

    problems = log_problems([*events, queued, back])

    assert "rev 10: leaves running, not queued" in problems
    assert "rev 10: falls back to stalled" in problems


def test_nothing_but_annotations_may_follow_an_end() -> None:
    last = log()[-1]
    again = replace(last, rev=14, beats=0, from_state=State.SUCCEEDED)
    late = replace(again, type=EventType.RESULT_IGNORED)

    assert log_problems([*log(), again]) != []
    assert log_problems([*log(), late]) == []


@pytest.mark.req("B27")
def test_what_a_newer_version_wrote_is_no_problem() -> None:
    newer_type = changed(10, type=EventType.UNKNOWN, version=VERSION + 1)
    newer_state = [
        replace(event, version=VERSION + 1, **columns)
        if (columns := NEWER.get(event.rev))
        else event
        for event in log()
    ]

    assert log_problems(newer_type) == []
    assert log_problems(newer_state) == []


def test_a_word_of_nobodys_law_in_an_event_of_this_version_is_a_problem() -> None:
    for rev, columns in NEWER.items():
        assert log_problems(changed(rev, **columns)) != []
    assert log_problems(changed(10, type=EventType.UNKNOWN)) != []


def test_a_first_event_with_a_past_is_a_problem() -> None:
    assert log_problems(changed(1, attempt=1)) != []
    assert log_problems(changed(1, beats=1)) != []


NEWER: dict[int, dict[str, Any]] = {
    8: {"type": EventType.UNKNOWN, "to_state": State.UNKNOWN},
    9: {"from_state": State.UNKNOWN},
}
"""The stall of a newer version leads to a state that this one does not know."""


def test_a_gap_beside_an_event_of_a_newer_version_is_still_noticed() -> None:
    newer = [
        replace(event, type=EventType.UNKNOWN, version=VERSION + 1)
        for event in log()
        if event.rev in (8, 10)
    ]
    events = sorted([*without(8, 9, 10), *newer], key=lambda event: event.rev)

    assert log_problems(events) != []


def test_an_empty_log_has_no_problems_of_its_own() -> None:
    assert log_problems([]) == []
