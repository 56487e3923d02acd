"""How far a job came: its state, and what a dialect needs to know of its past."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.states import OWNED, TERMINAL, EventType, Retention, Role, State

_RECONCILER = f"{Role.RECONCILER}:"


class Standing(Struct, frozen=True, kw_only=True):
    """A job as far as dialects need it: complete from its events, mostly from the record alone."""

    state: State = State.UNKNOWN
    attempt: int = 0
    claimed: bool = False
    """Whether it ever had an owner."""
    started: bool = False
    """Whether any attempt ever ran."""
    owner: str | None = None
    ended_from: State | None = None
    ended_by_reconciler: bool = False
    error_code: str | None = None
    exit_code: int | None = None
    retention: Retention = Retention.LIVE

    @property
    def furthest(self) -> State:
        """The furthest of the states on the path that it reached before its end."""
        if self.started:
            return State.RUNNING
        if self.claimed:
            return State.CLAIMED
        return State.QUEUED if self.state in TERMINAL else self.state

    def after(self, event: LoggedEvent) -> Standing:
        """Return what follows from one more event; one of a newer version moves what it can."""
        target = event.to_state
        if target is State.UNKNOWN:
            return self
        standing = replace(
            self,
            state=target,
            attempt=event.attempt,
            claimed=self.claimed or target in OWNED,
            started=self.started or target is State.RUNNING,
            owner=self._owner_after(event),
            retention=event.facts.retention or self.retention,
        )
        ends = target in TERMINAL and self.state not in TERMINAL
        return standing._apply_end(event, self.owner) if ends else standing

    def _owner_after(self, event: LoggedEvent) -> str | None:
        if event.to_state not in OWNED:
            return None
        taken = event.from_state not in OWNED or event.type is EventType.ADOPTED
        return event.actor if taken else self.owner

    def _apply_end(self, event: LoggedEvent, owner: str | None) -> Standing:
        # A worker may have any name: the one that held the job acted as its owner.
        by_reconciler = event.actor.startswith(_RECONCILER) and event.actor != owner
        return replace(
            self,
            ended_from=event.from_state,
            ended_by_reconciler=by_reconciler,
            error_code=event.facts.error_code,
            exit_code=event.facts.exit_code,
        )


def standing_of(job: Job) -> Standing:
    """Return what the record alone shows.

    It does not keep whether an earlier attempt ran, who ended the job, and from which state; a job
    that failed without having started in its last attempt can only have been lost.
    """
    lost = job.state is State.FAILED and job.started_at is None
    return Standing(
        state=job.state,
        attempt=job.attempt,
        claimed=job.attempt > 0,
        started=job.started_at is not None,
        owner=job.owner,
        ended_from=State.CLAIMED if lost else None,
        error_code=job.error_code,
        exit_code=job.exit_code,
        retention=job.retention,
    )
