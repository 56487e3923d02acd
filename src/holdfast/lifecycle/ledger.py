"""Checks of a whole log: gapless revisions, legal edges, time and rank that never fall."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.lifecycle.job import LoggedEvent
from holdfast.lifecycle.states import BEATS, RANK, EventType, State
from holdfast.lifecycle.transitions import legal_events

_LEGAL = legal_events()


def log_problems(events: Sequence[LoggedEvent]) -> list[str]:
    """Say what is wrong with one job's events, given in order of revision.

    Heartbeats may have been dropped: every other event says how many came before it.
    """
    problems: list[str] = []
    before: LoggedEvent | None = None
    beats = 0
    for event in events:
        problems += _pair_problems(before, beats, event)
        beats = beats + 1 if event.type in BEATS else 0
        before = event
    return problems


def _pair_problems(before: LoggedEvent | None, beats: int, event: LoggedEvent) -> list[str]:
    problems: list[str] = []
    if not _is_known(event):
        return problems
    edge = (event.type, event.from_state, event.to_state)
    if edge not in _LEGAL:
        source = event.from_state or "nothing"
        problems.append(f"rev {event.rev}: {event.type} from {source} to {event.to_state}")
    if before is None:
        return problems + _first_problems(event)
    if event.from_state is not before.to_state:
        problems.append(f"rev {event.rev}: leaves {event.from_state}, not {before.to_state}")
    # With all beats kept, event.beats equals those seen; with dropped ones it says how many.
    missing = 0 if event.type in BEATS else event.beats - beats
    if missing < 0 or (event.type not in BEATS and event.rev != before.rev + 1 + missing):
        problems.append(f"rev {event.rev}: follows rev {before.rev} with {event.beats} heartbeats")
    if event.type in BEATS and event.rev <= before.rev:
        problems.append(f"rev {event.rev}: follows rev {before.rev}")
    if event.at < before.at:
        problems.append(f"rev {event.rev}: is earlier than rev {before.rev}")
    return problems + _rank_problems(before, event)


def _first_problems(event: LoggedEvent) -> list[str]:
    problems = []
    if event.rev != 1 or event.type is not EventType.CREATED:
        problems.append(f"rev {event.rev}: {event.type} is the first event")
    return problems


def _rank_problems(before: LoggedEvent, event: LoggedEvent) -> list[str]:
    claimed = event.to_state is State.CLAIMED and event.from_state is not State.CLAIMED
    expected = before.attempt + 1 if claimed else before.attempt
    problems = []
    if event.attempt != expected:
        problems.append(f"rev {event.rev}: attempt {event.attempt} instead of {expected}")
    if (event.attempt, RANK[event.to_state]) < (before.attempt, RANK.get(before.to_state, 0)):
        problems.append(f"rev {event.rev}: falls back to {event.to_state}")
    return problems


def _is_known(event: LoggedEvent) -> bool:
    return (
        event.type is not EventType.UNKNOWN
        and event.to_state is not State.UNKNOWN
        and event.from_state is not State.UNKNOWN
    )
