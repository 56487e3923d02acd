"""Whatever happens to a job, in whatever order: what must always hold, holds after each change."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.lifecycle.derive import apply, derive, derive_status
from holdfast.lifecycle.invariants import broken_rules
from holdfast.lifecycle.log_checks import log_problems
from holdfast.lifecycle.record import Change, Job, LoggedEvent
from holdfast.lifecycle.states import BEATS, OWNED, RANK, Link, State
from holdfast.lifecycle.transitions import legal_events
from tests.lifecycle.histories import History, histories, live, random_histories, step
from tests.lifecycle.promises import FINAL, differences

LIVES = settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
MANY = 6_000


def problems(history: History) -> list[str]:
    """Say all that is wrong with a life."""
    events, records = history.events, history.records
    found = log_problems(events)
    if derive(events) != history.job:
        found.append("the events derive another record")
    if derive_status(events) is not history.job.state:
        found.append("the events derive another state")
    if [event.rev for event in events] != list(range(1, len(events) + 1)):
        found.append("the revisions have gaps")
    for record in records:
        found += [f"rev {record.rev} breaks {rule}" for rule in broken_rules(record)]
    for before, after, event in zip(records, records[1:], events[1:], strict=False):
        found += change_problems(before, after, event)
    return found + beat_problems(events, history.job) + undo_problems(history)


def undo_problems(history: History) -> list[str]:
    """Say whether it is not undone exactly once where it must be, and never elsewhere."""
    job = history.job
    ended = ("failed", "cancelled", "timed_out", "dead_lettered")
    wanted = job.policy.compensates and job.attempt > 0 and job.state in ended
    undoing = [(one.record.link_kind, one.record.parent_id) for one in history.submits]
    if undoing != [(Link.COMPENSATION, job.id)] * wanted:
        return [f"{job.state} after {job.attempt} attempts brought {undoing}"]
    return []


def change_problems(before: Job, after: Job, event: LoggedEvent) -> list[str]:
    """Say what is wrong with one change."""
    found = []
    if differences(apply(before, event), after):
        found.append("applying its event gives another record")
    if (after.attempt, RANK[after.state]) < (before.attempt, RANK[before.state]):
        found.append("it falls back")
    if (event.from_state, event.to_state) != (before.state, after.state):
        found.append("its event tells of other states")
    claimed = after.state is State.CLAIMED and before.state is not State.CLAIMED
    if after.attempt != before.attempt + claimed:
        found.append("the attempt does not count its claims")
    if before.terminal and any(getattr(before, n) != getattr(after, n) for n in FINAL):
        found.append("its outcome changed")
    if before.cancel_requested and after.state not in OWNED and not after.terminal:
        found.append("it got away from a requested cancel")
    if after.updated_at < before.updated_at:
        found.append("time goes back")
    return [f"rev {after.rev}: {text}" for text in found]


def beat_problems(events: list[LoggedEvent], job: Job) -> list[str]:
    """Count the heartbeats before each event by hand."""
    found, beats = [], 0
    for event in events:
        if event.type in BEATS:
            beats += 1
            continue
        if event.beats != beats:
            found.append(f"rev {event.rev}: counts {event.beats} heartbeats instead of {beats}")
        beats = 0
    return found if job.beats == beats else [*found, "the record counts other heartbeats"]


@pytest.mark.req("B1", "B3", "B4", "C1", "C7", "C8", "C9", "C13", "E1", "E2", "E6")
@LIVES
@given(history=histories())
def test_every_random_life_is_sound(history: History) -> None:
    assert problems(history) == []


@pytest.mark.req("B3", "B4", "B28", "C1", "E1")
def test_a_great_many_random_lives_are_sound_and_together_take_every_legal_edge() -> None:
    taken = set()
    for history in random_histories(MANY, seed=7, max_commands=40):
        assert problems(history) == [], history.events
        taken |= {(event.type, event.from_state, event.to_state) for event in history.events}

    assert legal_events() - taken == set()


@pytest.mark.req("A14", "B5", "C6")
@LIVES
@given(data=st.data())
def test_what_is_refused_or_repeated_writes_nothing(data: st.DataObject) -> None:
    history = live(lambda choices: data.draw(st.sampled_from(choices)), 10)
    for _ in range(5):
        rev, length = history.job.rev, len(history.events)
        decision = step(lambda choices: data.draw(st.sampled_from(choices)), history)
        accepted = isinstance(decision, Change)

        assert history.job.rev == rev + accepted
        assert len(history.events) == length + accepted


def test_the_search_for_problems_can_fail() -> None:
    history = next(life for life in random_histories(50, seed=3) if len(life.events) > 8)
    missing = History(
        events=[*history.events[:3], *history.events[4:]],
        records=[*history.records[:3], *history.records[4:]],
    )

    assert problems(history) == []
    assert problems(missing) != []
