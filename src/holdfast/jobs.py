"""A job in the hands of whoever submitted it: its state, its result, and what can be done to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from holdfast.durable.verdicts import Happened, NotHappened
from holdfast.errors import BadData
from holdfast.flow.history import ReadEvent
from holdfast.flow.intervene import OPERATOR_HOLD
from holdfast.flow.outcomes import next_try
from holdfast.flow.redrive import Wish
from holdfast.lifecycle.job import Job
from holdfast.lifecycle.payload import encode_body
from holdfast.lifecycle.states import BEATS, TERMINAL, State
from holdfast.operations import Operations
from holdfast.spans import Span

WATCH_SECONDS = 10.0
"""How long one look for new events of a job waits for them."""
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Home(Protocol):
    """What a handle needs of the app or client it came from."""

    async def operations(self) -> Operations:
        """Give what can be done with jobs, on the running loop."""

    def run_sync(self, work: Coroutine[Any, Any, T], instead: str) -> T:
        """Do work for a thread without a loop."""


class JobHandle(Generic[R_co]):
    """A job that was submitted, or looked up. `state` is as of the last look; see `refresh`."""

    __slots__ = ("_home", "_read_result", "created", "record")

    def __init__(
        self,
        record: Job,
        home: Home,
        read_result: Callable[[bytes | None], R_co],
        *,
        created: bool = False,
    ) -> None:
        """Hold a record; `created` is False when a submit returned a job that was there before."""
        self.record = record
        self.created = created
        self._home = home
        self._read_result = read_result

    def __repr__(self) -> str:
        """Name it with its task and state."""
        return f"<JobHandle {self.id} {self.record.task} {self.state}>"

    @property
    def id(self) -> str:
        """The job's public id."""
        return self.record.public_id

    @property
    def state(self) -> State:
        """Where it stood when it was last looked at."""
        return self.record.state

    async def refresh(self) -> JobHandle[R_co]:
        """Look at it again."""
        self.record = await (await self._home.operations()).get(self.record.id)
        return self

    async def wait(self, timeout: Span | None = None) -> State:
        """Wait until it has ended, however; ResultTimeout if the wait ends first."""
        if not self.record.terminal:
            self.record = await (await self._home.operations()).ended(self.record.id, timeout)
        return self.record.state

    async def result(self, timeout: Span | None = None) -> R_co:
        """Wait for the result; a job that ended without one raises JobFailed, JobCancelled, ….

        Where a handler that is not idempotent is retried, by a new job for each try, the result is
        that of the last try: whoever submitted again because the first had failed would have it
        done twice. `state` and `wait` speak of this one job.
        """
        ending = await (await self._home.operations()).outcome(self.record.id, timeout)
        self.record = ending.job
        if (error := ending.outcome.error()) is not None:
            raise error
        return self._read_result(ending.outcome.body)

    async def retried_as(self) -> JobHandle[R_co] | None:
        """Give the new job that is the next try of this one; None if there is none.

        There is one where the handler is not idempotent, retries were asked for, and it failed.
        """
        operations = await self._home.operations()
        following = next_try(await operations.history(self.record.id))
        if following is None:
            return None
        return JobHandle(await operations.get(following), self._home, self._read_result)

    async def cancel(self, *, hard: bool = False, reason: str | None = None) -> State:
        """Cancel it: at once if nobody runs it, else by asking its worker (`hard`: to kill it).

        The state that comes back is `cancelled`, or what it is until the worker has ended it, or
        how it had ended before.
        """
        operations = await self._home.operations()
        self.record = await operations.cancel(self.record.id, hard=hard, reason=reason)
        return self.record.state

    async def signal(
        self, name: str, payload: Any = None, *, request_id: str | None = None
    ) -> None:
        """Send it a signal, which a wait consumes; one that comes before the wait is kept."""
        body = encode_body(payload, f"the payload of signal {name!r}")
        operations = await self._home.operations()
        self.record = await operations.signal(self.record.id, name, body, request_id=request_id)

    async def hold(self, name: str = OPERATOR_HOLD, *, reason: str | None = None) -> None:
        """Keep it from being claimed until the hold of this name is lifted."""
        operations = await self._home.operations()
        self.record = await operations.hold(self.record.id, name, reason=reason)

    async def unhold(self, name: str = OPERATOR_HOLD, *, reason: str | None = None) -> None:
        """Lift the hold of this name; its other holds stay."""
        operations = await self._home.operations()
        self.record = await operations.unhold(self.record.id, name, reason=reason)

    async def reschedule(
        self,
        *,
        delay: Span | None = None,
        run_at: datetime | None = None,
        reason: str | None = None,
    ) -> None:
        """Make it due after `delay`, or at `run_at`; refused while a worker has it."""
        operations = await self._home.operations()
        self.record = await operations.reschedule(
            self.record.id, delay=delay, run_at=run_at, reason=reason
        )

    async def redrive(
        self,
        *,
        from_start: bool = False,
        again: bool = False,
        reason: str | None = None,
        request_id: str | None = None,
    ) -> JobHandle[R_co]:
        """Submit it again after it failed, as a new job that resumes where this one ended.

        Recorded steps, waits and children are not done again; `from_start` does all of it again.
        Repeated, it returns the same job, unless `again` asks for another one.
        """
        operations = await self._home.operations()
        record = await operations.redrive(
            self.record.id,
            wish=Wish(from_start=from_start),
            again=again,
            reason=reason,
            request_id=request_id,
        )
        return JobHandle(record, self._home, self._read_result)

    async def resolve(
        self, step: str, verdict: Happened | NotHappened, *, force: bool = False
    ) -> None:
        """Say whether a step had its effect: `Happened(result)` or `NOT_HAPPENED`.

        For a job that waits to be told, because an attempt died in the step and its `verify` did
        not know. Refused (`not_waiting`) where it does not wait for that, unless forced.
        """
        happened = isinstance(verdict, Happened)
        if not happened and not isinstance(verdict, NotHappened):
            raise BadData(f"say Happened(result) or NOT_HAPPENED, not {verdict!r}")
        operations = await self._home.operations()
        self.record = await operations.resolve(
            self.record.id,
            step,
            happened=happened,
            result=verdict.result if isinstance(verdict, Happened) else None,
            force=force,
        )

    async def events(self) -> list[ReadEvent]:
        """Read its whole history, oldest first."""
        return await (await self._home.operations()).history(self.record.id)

    async def watch(self, *, after: int = 0) -> AsyncIterator[ReadEvent]:
        """Go through its events as they come, oldest first, until it has ended.

        `after` is the revision of the last event that is known already. Renewals of the lease are
        left out.
        """
        operations = await self._home.operations()
        ended, wait_seconds = False, 0.0
        while not ended:
            events = await operations.events_after(
                self.record.id, after=after, wait_seconds=wait_seconds
            )
            for event in events:
                after = event.rev
                ended = ended or event.to_status in TERMINAL
                if event.type not in BEATS:
                    yield event
            wait_seconds = 0.0 if events else WATCH_SECONDS
            if not events:
                # It may have ended before `after`: then no event will ever come.
                record = await operations.get(self.record.id)
                ended = record.terminal and record.rev <= after

    async def progress(self) -> Any:
        """Return what its handler last reported by `ctx.progress`; None if it made no report."""
        found = await (await self._home.operations()).progress(self.record.id)
        return None if found is None else found.value

    def progress_sync(self) -> Any:
        """Return what its handler last reported, in a thread without a loop."""
        return self._home.run_sync(self.progress(), "job.progress()")

    def refresh_sync(self) -> JobHandle[R_co]:
        """Look at it again, from a thread without a loop."""
        return self._home.run_sync(self.refresh(), "job.refresh()")

    def wait_sync(self, timeout: Span | None = None) -> State:
        """Wait until it has ended, in a thread without a loop."""
        return self._home.run_sync(self.wait(timeout), "job.wait()")

    def result_sync(self, timeout: Span | None = None) -> R_co:
        """Wait for the result, in a thread without a loop."""
        return self._home.run_sync(self.result(timeout), "job.result()")

    def cancel_sync(self, *, hard: bool = False, reason: str | None = None) -> State:
        """Cancel it, from a thread without a loop."""
        return self._home.run_sync(self.cancel(hard=hard, reason=reason), "job.cancel()")

    def signal_sync(self, name: str, payload: Any = None, *, request_id: str | None = None) -> None:
        """Send it a signal, from a thread without a loop."""
        sending = self.signal(name, payload, request_id=request_id)
        self._home.run_sync(sending, "job.signal(…)")

    def hold_sync(self, name: str = OPERATOR_HOLD, *, reason: str | None = None) -> None:
        """Keep it from being claimed, from a thread without a loop."""
        self._home.run_sync(self.hold(name, reason=reason), "job.hold(…)")

    def unhold_sync(self, name: str = OPERATOR_HOLD, *, reason: str | None = None) -> None:
        """Lift a hold, from a thread without a loop."""
        self._home.run_sync(self.unhold(name, reason=reason), "job.unhold(…)")

    def reschedule_sync(
        self,
        *,
        delay: Span | None = None,
        run_at: datetime | None = None,
        reason: str | None = None,
    ) -> None:
        """Make it due at another time, from a thread without a loop."""
        moving = self.reschedule(delay=delay, run_at=run_at, reason=reason)
        self._home.run_sync(moving, "job.reschedule(…)")

    def redrive_sync(
        self,
        *,
        from_start: bool = False,
        again: bool = False,
        reason: str | None = None,
        request_id: str | None = None,
    ) -> JobHandle[R_co]:
        """Submit it again after it failed, from a thread without a loop; see `redrive`."""
        work = self.redrive(
            from_start=from_start, again=again, reason=reason, request_id=request_id
        )
        return self._home.run_sync(work, "job.redrive()")

    def retried_as_sync(self) -> JobHandle[R_co] | None:
        """Give the new job that is the next try of this one, from a thread without a loop."""
        return self._home.run_sync(self.retried_as(), "job.retried_as()")

    def events_sync(self) -> list[ReadEvent]:
        """Read its whole history, from a thread without a loop."""
        return self._home.run_sync(self.events(), "job.events()")

    def resolve_sync(
        self, step: str, verdict: Happened | NotHappened, *, force: bool = False
    ) -> None:
        """Say whether a step had its effect, from a thread without a loop."""
        self._home.run_sync(self.resolve(step, verdict, force=force), "job.resolve(…)")
