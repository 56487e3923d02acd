"""Where a claim enters its ranges: behind the latest job that the claims before it brought."""

from __future__ import annotations

from holdfast.ids import mint_id
from holdfast.lifecycle.claim_order import AGEING
from holdfast.lifecycle.record import Created, Record
from holdfast.lifecycle.routes import route
from holdfast.lifecycle.states import Priority, State
from holdfast.ports.models import Claimed, claimed_as
from holdfast.stores.claim_ranges import Range
from holdfast.stores.postgres.claim_start import (
    ARMS,
    CHEAP_SECONDS,
    CURSOR_AFTER,
    CURSOR_FOR,
    NOWHERE,
    REST,
    SLACK,
    ClaimStarts,
    Entries,
    list_searches,
)

AGE = AGEING[Priority.INTERACTIVE]
BEGINNING = Entries(list_searches(("mail",), None))
MAIL, NEWS = Created(queue="mail"), Created(queue="news")


def claimed(created: Created, run_at: int) -> Claimed:
    """Bring a job that was due at a time."""
    job = Record(
        id=mint_id(),
        queue=created.queue,
        task=created.task,
        created_at=1,
        updated_at=1,
        state=State.CLAIMED,
        rev=2,
        run_at=run_at,
    )
    return claimed_as(job, created, None)


def arm(queue: str, task: str = "", priority: Priority = Priority.INTERACTIVE) -> Range:
    """Name the range of a queue's ordinary jobs."""
    return Range(queue, route(task, None), priority.code)


def starts(cursors: ClaimStarts, *arms: Range) -> list[int]:
    """Where ranges are entered: those that are not known by being looked for, at the beginning."""
    search = list_searches(tuple(one.queue for one in arms), ("",))
    known = dict(cursors.choose_entries(search).known)
    return [known.get(one, NOWHERE) for one in arms]


def test_each_range_is_entered_behind_its_latest_job() -> None:
    cursors = ClaimStarts()
    jobs = [
        claimed(MAIL, 5),
        claimed(MAIL, 9),
        claimed(MAIL, 7),
        claimed(NEWS, 3),
        claimed(MAIL, 6),
        claimed(Created(queue="news"), 2),
    ]
    for _ in range(CURSOR_AFTER):
        cursors.learn(jobs, len(jobs))
    assert starts(cursors, arm("mail"), arm("news"), arm("else")) == [AGE + 9, AGE + 3, NOWHERE]


def test_a_claim_that_comes_back_short_begins_at_the_beginning_again() -> None:
    cursors = ClaimStarts()
    for _ in range(CURSOR_AFTER):
        cursors.learn([claimed(MAIL, 5), claimed(MAIL, 6)], 2)
    cursors.learn([claimed(MAIL, 7)], 2)
    assert starts(cursors, arm("mail")) == [NOWHERE]


class Costly:
    """Starts after a claim from the beginning that took long, and a clock that a test moves."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.now = 1000.0
        self.seconds = seconds
        self.cursors = ClaimStarts(lambda: self.now)
        self.cursors.learn([claimed(MAIL, LATE)], 2)
        self.cursors.note_claim_time(BEGINNING, seconds, 1)


LATE = 10 * SLACK


def test_after_a_costly_claim_ranges_are_entered_a_little_before_their_latest_job() -> None:
    costly = Costly()
    expected = [LATE + AGE - SLACK, NOWHERE]
    assert starts(costly.cursors, arm("mail"), arm("else")) == expected
    # However the claims after it come back.
    costly.cursors.learn([], 2)
    assert starts(costly.cursors, arm("mail"), arm("else")) == expected


def test_all_is_looked_at_again_after_a_time_that_grows_with_the_cost() -> None:
    costly = Costly(0.5)
    costly.now += REST * 0.5 - 0.001
    assert starts(costly.cursors, arm("mail")) != [NOWHERE]
    costly.now += 0.002
    assert starts(costly.cursors, arm("mail")) == [NOWHERE]


def test_a_cheap_claim_from_the_beginning_leaves_the_next_there() -> None:
    costly = Costly(CHEAP_SECONDS)
    assert starts(costly.cursors, arm("mail")) == [NOWHERE]


def test_a_claim_that_entered_late_says_nothing_about_the_beginning() -> None:
    cursors = ClaimStarts(lambda: 1000.0)
    cursors.learn([claimed(MAIL, LATE)], 2)
    cursors.note_claim_time(Entries((), ((arm("mail"), LATE),)), 60.0, 1)
    assert starts(cursors, arm("mail")) == [NOWHERE]


def test_a_large_claim_may_take_longer() -> None:
    cursors = ClaimStarts(lambda: 1000.0)
    cursors.learn([claimed(MAIL, LATE)], 2)
    cursors.note_claim_time(BEGINNING, 0.1, 500)
    assert starts(cursors, arm("mail")) == [NOWHERE]


def test_a_backlog_is_not_begun_again_while_that_is_costly() -> None:
    costly = Costly()
    full = [claimed(MAIL, LATE + 1), claimed(MAIL, LATE + 2)]
    for _ in range(CURSOR_AFTER + CURSOR_FOR + 1):
        costly.cursors.learn(full, 2)
    assert starts(costly.cursors, arm("mail")) == [AGE + LATE + 2]
    costly.now += REST * costly.seconds
    costly.cursors.learn(full, 2)
    assert starts(costly.cursors, arm("mail")) == [NOWHERE]


def test_an_old_backlog_is_not_passed_over_because_of_what_was_taken_before() -> None:
    cursors = ClaimStarts()
    cursors.learn([claimed(MAIL, LATE)], 2)
    for _ in range(CURSOR_AFTER):
        cursors.learn([claimed(MAIL, 5), claimed(MAIL, 6)], 2)
    assert starts(cursors, arm("mail")) == [AGE + 6]


def test_an_urgent_job_of_a_task_that_is_taken_by_cursor_is_not_passed_over() -> None:
    cursors = ClaimStarts()
    for _ in range(CURSOR_AFTER):
        cursors.learn([claimed(MAIL, 5), claimed(MAIL, 6)], 2)
    urgent = arm("mail", priority=Priority.CRITICAL)
    search = cursors.choose_entries(list_searches(("mail",), ("",))).search
    assert any(
        (one.route, one.lane) < urgent[1:] < (one.last_route, one.last_lane) for one in search
    )


def test_other_tasks_are_looked_for_while_one_is_taken_by_cursor() -> None:
    cursors = ClaimStarts()
    for _ in range(CURSOR_AFTER):
        cursors.learn([claimed(MAIL, 5), claimed(MAIL, 6)], 2)
    wanted = cursors.choose_entries(list_searches(("mail",), ("", "other")))
    assert wanted.search[-1] == list_searches(("mail",), ("other",))[0]


def test_no_search_passes_through_a_range_that_is_entered_at_a_cursor() -> None:
    cursors = ClaimStarts()
    other = Created(queue="mail", task="b")
    for _ in range(CURSOR_AFTER):
        cursors.learn([claimed(MAIL, 5), claimed(other, 6)], 2)
    for tasks in (None, ("", "a", "b", "c")):
        wanted = cursors.choose_entries(list_searches(("mail",), tasks))
        assert len(wanted.known) == 2
        for taken, _ in wanted.known:
            for one in wanted.search:
                assert not (one.route, one.lane) < taken[1:] < (one.last_route, one.last_lane)


def test_queues_that_come_and_go_are_forgotten() -> None:
    cursors = ClaimStarts(lambda: 1000.0)
    for number in range(ARMS + 2):
        cursors.learn([claimed(Created(queue=f"q{number}"), LATE)], 2)
    cursors.note_claim_time(BEGINNING, 60.0, 0)
    assert starts(cursors, arm("q0")) == [NOWHERE]
