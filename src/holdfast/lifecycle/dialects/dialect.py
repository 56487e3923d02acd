"""How a vocabulary renders a job: its state, its fields and its history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from holdfast.lifecycle.dialects.progress import Standing, standing_of
from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.states import (
    LIVE,
    UNOWNED,
    EventType,
    Operation,
    Retention,
    State,
)

Edge: TypeAlias = tuple[str | None, str]
"""From and to, in a dialect's words; from None is a birth."""


class Shown(Struct, frozen=True, kw_only=True):
    """One line of a history in a seed's words."""

    event: str
    from_state: str | None
    state: str
    at: int
    attempt: int
    rev: int
    actor: str
    request_id: str | None = None
    reason: str | None = None
    error: str | None = None
    exit_code: int | None = None
    implied: bool = False
    """A step that the seed demands between two and that the job took in one."""


class Ending(Struct, frozen=True, kw_only=True):
    """An outcome that has another word in a dialect if a condition holds of the job's past."""

    state: State
    when: Callable[[Standing], bool]
    what: str
    """The condition in words, for the docs."""
    word: str
    error: str | None = None


class Dialect(Struct, frozen=True, kw_only=True):
    """One seed's words, as data."""

    key: str
    seed: str
    states: Mapping[State, str]
    endings: tuple[Ending, ...] = ()
    """Exceptions to `states`; the first that applies wins."""
    retention: Mapping[Retention, str] = {}
    errors: Mapping[State, str] = {}
    """The error (or the reason) of an outcome, where it is not the job's own error code."""
    edges: frozenset[Edge]
    """What the seed allows."""
    extra: frozenset[Edge] = frozenset()
    """What it shows beyond that: the exceptions listed in the requirements."""
    names: Mapping[EventType, str] = {}
    """Events with a name of their own; they are shown even where the state stays."""
    arrivals: Mapping[str, str] = {}
    """The event that leads to a state; without one, the state's own word is the event's."""
    operations: Mapping[Operation, str] = {}
    fields: Mapping[str, Callable[[Dialect, Job, Standing], Any]]
    forward: bool = False
    """It never goes back: without an owner it shows the furthest state reached so far."""
    implied: Mapping[Edge, tuple[str, ...]] = {}
    """The steps shown between two states that the seed does not join and a job may."""
    counts_next: bool = False
    """Without an owner it shows the attempt that comes next."""

    def state(self, job: Job, events: Iterable[LoggedEvent] = ()) -> str:
        """Return a job's state; without its events, as well as the record alone allows."""
        return self.word(_derive_standing(job, events))

    def render(self, job: Job, events: Iterable[LoggedEvent] = ()) -> dict[str, Any]:
        """Return a job's fields that the seed shows."""
        standing = _derive_standing(job, events)
        return {name: read(self, job, standing) for name, read in self.fields.items()}

    def history(self, events: Iterable[LoggedEvent]) -> list[Shown]:
        """Return a job's events in order, without those that change nothing that the seed shows."""
        standing, lines, before = Standing(), list[Shown](), None
        for event in events:
            standing = standing.after(event)
            if standing.state is not State.UNKNOWN:
                lines += self._show_lines(before, event, standing)
                before = self.word(standing)
        return lines

    def word(self, standing: Standing) -> str:
        """Return the seed's word for a job."""
        return self.retention.get(standing.retention) or self._show_outcome(standing)

    def error(self, standing: Standing) -> str | None:
        """Return why a job ended without success."""
        ending = self._find_ending(standing)
        if ending is not None and ending.error is not None:
            return ending.error
        return self.errors.get(standing.state, standing.error_code)

    def attempt(self, standing: Standing) -> int:
        """Return the number of the attempt."""
        return standing.attempt + (self.counts_next and standing.state in UNOWNED)

    def exit_code(self, standing: Standing) -> int | None:
        """Return the exit code, unless the seed lacks such an ending: then nothing has exited."""
        edge = (self.states.get(standing.furthest), self._show_outcome(standing))
        return None if edge in self.extra else standing.exit_code

    def _show_outcome(self, standing: Standing) -> str:
        ending = self._find_ending(standing)
        if ending is not None:
            return ending.word
        forward = self.forward and standing.state in LIVE
        state = standing.furthest if forward else standing.state
        return self.states.get(state, State.UNKNOWN)

    def _find_ending(self, standing: Standing) -> Ending | None:
        for ending in self.endings:
            if ending.state is standing.state and ending.when(standing):
                return ending
        return None

    def _show_lines(
        self, before: str | None, event: LoggedEvent, standing: Standing
    ) -> list[Shown]:
        after = self.word(standing)
        if before == after and event.type not in self.names:
            return []
        words = (*self.implied.get((before, after), ()), after)
        return [
            self._show_line(source, word, event, standing)
            for source, word in zip((before, *words), words, strict=False)
        ]

    def _show_line(
        self, source: str | None, word: str, event: LoggedEvent, standing: Standing
    ) -> Shown:
        implied = word != self.word(standing)
        name = None if implied else self.names.get(event.type)
        return Shown(
            event=name or self.arrivals.get(word, word),
            from_state=source,
            state=word,
            at=event.at,
            attempt=self.attempt(standing),
            rev=event.rev,
            actor=event.actor,
            request_id=event.request_id,
            reason=event.reason,
            error=None if implied else self.error(standing),
            exit_code=None if implied else self.exit_code(standing),
            implied=implied,
        )


def _derive_standing(job: Job, events: Iterable[LoggedEvent]) -> Standing:
    standing = Standing()
    for event in events:
        standing = standing.after(event)
    return standing_of(job) if standing.state is State.UNKNOWN else standing
