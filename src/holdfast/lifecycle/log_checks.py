"""Checks of a whole log: gapless revisions, legal edges, time and rank that never fall."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.lifecycle.record import VERSION, LoggedEvent
from holdfast.lifecycle.states import BEATS, RANK, EventType, State
from holdfast.lifecycle.transitions import legal_events

_LEGAL = legal_events()


def log_problems(events: Sequence[LoggedEvent]) -> list[str]:
    """Return what is wrong with one job's events, given in order of revision.

    Any heartbeats may have been dropped: every other event holds how many came before it.
    """
    problems: list[str] = []
    before: LoggedEvent | None = None
    anchor, beats = 0, 0
    for event in events:
        problems += _revision_problems(before, anchor, beats, event)
        if not is_newer(event):
            problems += _edge_problems(before, event)
        if event.type in BEATS:
            beats += 1
        else:
            anchor, beats = event.rev, 0
        before = event
    return problems


def _revision_problems(
    before: LoggedEvent | None, anchor: int, beats: int, event: LoggedEvent
) -> list[str]:
    """Check revision and time, also of an event with words of a newer version.

    `anchor` is the revision of the last event that was not a heartbeat, `beats` those kept since.
    """
    problems: list[str] = []
    if before is None:
        return problems if event.rev == 1 else [f"rev {event.rev}: is the first event"]
    if event.type in BEATS:
        if event.rev <= before.rev:
            problems.append(f"rev {event.rev}: follows rev {before.rev}")
    elif event.rev != anchor + 1 + event.beats or beats > event.beats:
        problems.append(f"rev {event.rev}: follows rev {anchor} with {event.beats} heartbeats")
    if event.at < before.at:
        problems.append(f"rev {event.rev}: is earlier than rev {before.rev}")
    return problems


def _edge_problems(before: LoggedEvent | None, event: LoggedEvent) -> list[str]:
    problems: list[str] = []
    edge = (event.type, event.from_state, event.to_state)
    if edge not in _LEGAL:
        source = event.from_state or "nothing"
        problems.append(f"rev {event.rev}: {event.type} from {source} to {event.to_state}")
    if before is None:
        return problems + _first_problems(event)
    if event.from_state is not before.to_state:
        problems.append(f"rev {event.rev}: leaves {event.from_state}, not {before.to_state}")
    return problems + _rank_problems(before, event)


def _first_problems(event: LoggedEvent) -> list[str]:
    problems = []
    if event.type is not EventType.CREATED:
        problems.append(f"rev {event.rev}: {event.type} is the first event")
    if event.attempt or event.beats:
        problems.append(f"rev {event.rev}: has attempts or heartbeats before the first event")
    return problems


def _rank_problems(before: LoggedEvent, event: LoggedEvent) -> list[str]:
    claimed = event.to_state is State.CLAIMED and event.from_state is not State.CLAIMED
    expected = before.attempt + 1 if claimed else before.attempt
    problems = []
    if event.attempt != expected:
        problems.append(f"rev {event.rev}: attempt {event.attempt} instead of {expected}")
    rank, rank_before = RANK.get(event.to_state, 0), RANK.get(before.to_state, 0)
    if (event.attempt, rank) < (before.attempt, rank_before):
        problems.append(f"rev {event.rev}: falls back to {event.to_state}")
    return problems


def is_newer(event: LoggedEvent) -> bool:
    """Return whether a newer version wrote it with words that this one cannot judge (B27).

    An unknown word in an event of this version is damage.
    """
    unknown = EventType.UNKNOWN, State.UNKNOWN
    words = event.type, event.from_state, event.to_state
    return event.version > VERSION and any(word in unknown for word in words)
