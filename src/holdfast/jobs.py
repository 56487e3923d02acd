"""A job in the hands of whoever submitted it: its state, its result, and what can be done to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from holdfast.durable.verdicts import Happened, NotHappened
from holdfast.errors import BadData, NoSuchJob
from holdfast.flow import intervene
from holdfast.flow.history import ReadEvent, history
from holdfast.flow.outcomes import last_event, linked_retry, outcome_of
from holdfast.flow.redrive import redrive
from holdfast.lifecycle.job import Actor, Job, JobId, LoggedEvent
from holdfast.lifecycle.payload import encode_body
from holdfast.lifecycle.states import State
from holdfast.ports import Store
from holdfast.spans import Span, span_seconds

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Home(Protocol):
    """What a handle needs of the app it came from."""

    control: Actor

    async def store(self) -> Store:
        """Give the open store of the running loop."""

    async def ended(self, id: JobId, timeout: Span | None) -> Job:
        """Wait until a job has ended, or raise ResultTimeout."""

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
        store = await self._home.store()
        found = (await store.get([self.record.id]))[0]
        if found is None:
            raise NoSuchJob(f"no job {self.id}", job_id=self.id)
        self.record = found
        return self

    async def wait(self, timeout: Span | None = None) -> State:
        """Wait until it has ended, however; ResultTimeout if the wait ends first."""
        if not self.record.terminal:
            self.record = await self._home.ended(self.record.id, timeout)
        return self.record.state

    async def result(self, timeout: Span | None = None) -> R_co:
        """Wait for the result; a job that ended without one raises JobFailed, JobCancelled, ….

        Where a handler that is not idempotent is retried, by a new job for each try, the result is
        that of the last try: whoever submitted again because the first had failed would have it
        done twice. `state` and `wait` speak of this one job.
        """
        limit = None if timeout is None else time.monotonic() + span_seconds(timeout, "timeout")
        job, left = self, timeout
        while True:
            await job.wait(left)
            last = await job._last_event()
            again = await job._linked_retry(last)
            if again is None:
                return job._outcome(last, self.id)
            job = again
            left = None if limit is None else round(max(0.0, limit - time.monotonic()), 3)

    async def retried_as(self) -> JobHandle[R_co] | None:
        """Give the new job that is the next try of this one; None if there is none.

        There is one where the handler is not idempotent, retries were asked for, and it failed.
        """
        return await self._linked_retry(await self._last_event())

    async def _linked_retry(self, last: LoggedEvent | None) -> JobHandle[R_co] | None:
        found = await linked_retry(await self._home.store(), last)
        return None if found is None else JobHandle(found, self._home, self._read_result)

    def _outcome(self, last: LoggedEvent | None, first_id: str) -> R_co:
        outcome = outcome_of(self.record, last, first_id)
        if (error := outcome.error()) is not None:
            raise error
        return self._read_result(outcome.body)

    async def cancel(self, *, hard: bool = False, reason: str | None = None) -> State:
        """Cancel it: at once if nobody runs it, else by asking its worker (`hard`: to kill it).

        The state that comes back is `cancelled`, or what it is until the worker has ended it, or
        how it had ended before.
        """
        self.record = await intervene.cancel(
            await self._home.store(), self.record.id, self._home.control, hard=hard, reason=reason
        )
        return self.record.state

    async def signal(
        self, name: str, payload: Any = None, *, request_id: str | None = None
    ) -> None:
        """Send it a signal, which a wait consumes; one that comes before the wait is kept."""
        body = encode_body(payload, f"the payload of signal {name!r}")
        self.record = await intervene.signal(
            await self._home.store(),
            self.record.id,
            self._home.control,
            name,
            body,
            request_id=request_id,
        )

    async def redrive(
        self, *, reason: str | None = None, request_id: str | None = None
    ) -> JobHandle[R_co]:
        """Submit its dead letter again, as a new job linked to it; repeated, it is the same one."""
        record = await redrive(
            await self._home.store(),
            self.record.id,
            self._home.control,
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
        self.record = await intervene.resolve(
            await self._home.store(),
            self.record.id,
            self._home.control,
            step,
            happened=happened,
            result=verdict.result if isinstance(verdict, Happened) else None,
            force=force,
        )

    async def events(self) -> list[ReadEvent]:
        """Read its whole history, oldest first."""
        return await history(await self._home.store(), self.record.id)

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

    def resolve_sync(
        self, step: str, verdict: Happened | NotHappened, *, force: bool = False
    ) -> None:
        """Say whether a step had its effect, from a thread without a loop."""
        self._home.run_sync(self.resolve(step, verdict, force=force), "job.resolve(…)")

    async def _last_event(self) -> LoggedEvent | None:
        return await last_event(await self._home.store(), self.record.id)
