"""Handles of submitted jobs: their state, their result, and the operations on them."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Generator,
)
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Raw

from holdfast.durations import Span, written_span
from holdfast.errors import (
    BadData,
    HoldfastError,
    NoSuchJob,
    NotCommitted,
    PartlySubmitted,
    Refused,
)
from holdfast.flow.hold import OPERATOR_HOLD
from holdfast.lifecycle.payload import encode_body
from holdfast.lifecycle.record import Job, JobId, NewJob, Record
from holdfast.lifecycle.states import BEATS, TERMINAL, State
from holdfast.operations.request import Operations, Request
from holdfast.operations.requests import (
    ApproveJob,
    AwaitEvents,
    CancelJob,
    DenyJob,
    GetArtifact,
    GetJob,
    GetProgress,
    HoldJob,
    ListArtifacts,
    RedriveLetter,
    RescheduleJob,
    ResolveStep,
    SendSignal,
    UnholdJob,
)
from holdfast.operations.save_artifacts import download_artifacts
from holdfast.operations.sequences import read_history, wait_for_end, wait_for_outcome
from holdfast.operations.views import ArtifactList
from holdfast.queries.history import ReadEvent
from holdfast.queries.outcomes import find_next_try
from holdfast.stores.outcomes import Enlisted
from holdfast.tasks.context import current_context
from holdfast.tasks.durable.verdicts import Happened, NotHappened

WATCH_SECONDS = 10.0
"""How long one look for new events of a job waits for them."""
SHOWN_REFUSALS = 5
"""How many refusals an error about many jobs lists."""
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class HandleOwner(Protocol):
    """What a handle needs from its app or client."""

    async def operations(self) -> Operations:
        """Return the operations on jobs, for the running loop."""

    def run_sync(self, work: Coroutine[Any, Any, T], instead: str) -> T:
        """Run a coroutine for a thread without an event loop."""


class JobHandle(Generic[R_co]):
    """A job that was submitted or looked up. `refresh` reads `state` and `record` again."""

    __slots__ = ("_home", "_read_result", "_record", "created")

    def __init__(
        self,
        record: Job | Callable[[], Job],
        home: HandleOwner,
        read_result: Callable[[bytes | None], R_co],
        *,
        created: bool = False,
    ) -> None:
        """Keep a record, or what makes it; `created` is False if the job already existed."""
        self._record = record
        self.created = created
        self._home = home
        self._read_result = read_result

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} {self.record.task} {self.state}>"

    @property
    def record(self) -> Job:
        """The job when it was last read, or as it was submitted."""
        if not isinstance(self._record, Record):
            self._record = self._record()
        return self._record

    @record.setter
    def record(self, record: Job) -> None:
        self._record = record

    @property
    def id(self) -> str:
        """The job's public id."""
        return self.record.public_id

    @property
    def state(self) -> State:
        """The state when the job was last read."""
        return self.record.state

    async def refresh(self) -> JobHandle[R_co]:
        """Read the job again."""
        self.record = await self._do(GetJob(job=self.record.id))
        return self

    async def wait(self, timeout: Span | None = None) -> State:
        """Wait until the job has ended in any state; raise ResultTimeout after the timeout."""
        if not self.record.terminal:
            operations = await self._home.operations()
            self.record = await wait_for_end(operations, self.record.id, timeout)
        return self.record.state

    async def result(self, timeout: Span | None = None) -> R_co:
        """Wait for the result; raise JobFailed, JobCancelled, … if the job ends without one.

        If a handler that is not idempotent is retried, by a new job for each try, the result is
        that of the last try. (A client that submitted again after the first failure would do the
        work twice.) `state` and `wait` refer to this one job.
        """
        operations = await self._home.operations()
        ended = await wait_for_outcome(operations, self.record.id, timeout)
        self.record = ended.job
        if (error := ended.outcome.error()) is not None:
            raise error
        return self._read_result(ended.outcome.body)

    async def retried_as(self) -> JobHandle[R_co] | None:
        """Return the new job that is the next try of this one; None if there is none.

        There is one if the handler is not idempotent, has retries, and failed.
        """
        following = find_next_try(await self.events())
        if following is None:
            return None
        record = await self._do(GetJob(job=following))
        return JobHandle(record, self._home, self._read_result)

    async def cancel(self, *, hard: bool = False, reason: str | None = None) -> State:
        """Cancel the job at once if no worker has it, else ask its worker (`hard`: to kill it).

        Return `cancelled`, or the present state until the worker has stopped it, or the state in
        which it had already ended.
        """
        self.record = await self._do(CancelJob(job=self.record.id, hard=hard, reason=reason))
        return self.record.state

    async def signal(
        self, name: str, payload: Any = None, *, request_id: str | None = None
    ) -> None:
        """Send a signal, which a wait consumes; a signal that arrives before the wait is kept."""
        body = Raw(encode_body(payload, f"the payload of signal {name!r}"))
        self.record = await self._do(
            SendSignal(job=self.record.id, name=name, payload=body, request_id=request_id)
        )

    async def hold(self, name: str = OPERATOR_HOLD, *, reason: str | None = None) -> None:
        """Keep the job from being claimed until the hold of this name is lifted."""
        self.record = await self._do(HoldJob(job=self.record.id, hold=name, reason=reason))

    async def unhold(self, name: str = OPERATOR_HOLD, *, reason: str | None = None) -> None:
        """Lift the hold of this name; other holds remain."""
        self.record = await self._do(UnholdJob(job=self.record.id, hold=name, reason=reason))

    async def approve(
        self,
        *,
        reason: str | None = None,
        expected_rev: int | None = None,
        request_id: str | None = None,
    ) -> State:
        """Approve the job, which awaits it, in the name of the app or of the client's token.

        The last approval that it awaits admits it. Refused for who submitted it, or a job that it
        descends from, and for who has approved it; and within a job's handler.
        """
        if current_context.get(None) is not None:
            # It would approve what it asked for itself, in the name of its worker.
            text = f"job {self.id} is not approved by a job; a person has to approve it"
            raise Refused(text, code="approver_is_a_job", job_id=self.id)
        self.record = await self._do(
            ApproveJob(
                job=self.record.id,
                reason=reason,
                expected_rev=expected_rev,
                request_id=request_id,
            )
        )
        return self.record.state

    async def deny(
        self,
        *,
        reason: str | None = None,
        expected_rev: int | None = None,
        request_id: str | None = None,
    ) -> State:
        """Deny the job, which awaits an approval: it ends, and does not run."""
        self.record = await self._do(
            DenyJob(
                job=self.record.id,
                reason=reason,
                expected_rev=expected_rev,
                request_id=request_id,
            )
        )
        return self.record.state

    async def reschedule(
        self,
        *,
        delay: Span | None = None,
        run_at: datetime | None = None,
        reason: str | None = None,
    ) -> None:
        """Make the job due after `delay`, or at `run_at`; refused while a worker has it."""
        self.record = await self._do(
            RescheduleJob(
                job=self.record.id,
                delay=None if delay is None else written_span(delay),
                run_at=run_at,
                reason=reason,
            )
        )

    async def redrive(
        self,
        *,
        from_start: bool = False,
        again: bool = False,
        reason: str | None = None,
        request_id: str | None = None,
    ) -> JobHandle[R_co]:
        """Submit the job again after it failed, as a new job that resumes where this one ended.

        Recorded steps, waits and children are not repeated; `from_start` repeats everything.
        A second call returns the same job, unless `again` requests another one.
        """
        record = await self._do(
            RedriveLetter(
                job=self.record.id,
                from_start=from_start,
                again=again,
                reason=reason,
                request_id=request_id,
            )
        )
        return JobHandle(record, self._home, self._read_result)

    async def resolve(
        self, step: str, verdict: Happened | NotHappened, *, force: bool = False
    ) -> None:
        """Record whether an interrupted step took effect: `Happened(result)` or `NOT_HAPPENED`.

        The job waits for this after an attempt died in the step and `verify` returned `UNKNOWN`.
        Refused (`not_waiting`) if the job does not wait for it, unless forced.
        """
        happened = isinstance(verdict, Happened)
        if not happened and not isinstance(verdict, NotHappened):
            raise BadData(f"expected Happened(result) or NOT_HAPPENED, got {verdict!r}")
        self.record = await self._do(
            ResolveStep(
                job=self.record.id,
                step=step,
                happened=happened,
                result=verdict.result if isinstance(verdict, Happened) else None,
                force=force,
            )
        )

    async def events(self) -> list[ReadEvent]:
        """Return the whole history of the job, oldest event first."""
        return await read_history(await self._home.operations(), self.record.id)

    async def watch(self, *, after: int = 0) -> AsyncIterator[ReadEvent]:
        """Yield the events of the job as they happen, oldest first, until it has ended.

        `after` is the revision of the last event that is already known. Renewals of the lease are
        left out.
        """
        ended, wait_seconds = False, 0.0
        while not ended:
            events = await self._do(
                AwaitEvents(job=self.record.id, after=after, wait_seconds=wait_seconds)
            )
            for event in events:
                after = event.rev
                ended = ended or event.to_status in TERMINAL
                if event.type not in BEATS:
                    yield event
            wait_seconds = 0.0 if events else WATCH_SECONDS
            if not events:
                # It may have ended before `after`: then no event will ever come.
                record = await self._do(GetJob(job=self.record.id))
                ended = record.terminal and record.rev <= after

    async def progress(self) -> Any:
        """Return the last report of `ctx.progress`; None if there is none."""
        return (await self._do(GetProgress(job=self.record.id))).value

    async def artifacts(self) -> ArtifactList:
        """List the files that the job's command left in /artifacts, once it has ended."""
        return await self._do(ListArtifacts(job=self.record.id))

    async def read_artifact(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield the content of one artifact in pieces; raise an error if it is not complete."""
        opened = await self._do(GetArtifact(job=self.record.id, name=path))
        async for piece in opened.read():
            yield piece

    async def download_artifacts(
        self, directory: str | Path, paths: Collection[str] = (), *, overwrite: bool = False
    ) -> list[Path]:
        """Save artifacts below a directory, by default all; return the files that were written.

        A path of a directory means all that is in it. A file that exists is replaced only
        with `overwrite`.
        """
        operations = await self._home.operations()
        return await download_artifacts(
            operations, self.record.id, directory, paths, overwrite=overwrite
        )

    async def _do(self, request: Request[R]) -> R:
        return await (await self._home.operations()).do(request)

    def progress_sync(self) -> Any:
        """Return the last progress report, in a thread without an event loop."""
        return self._home.run_sync(self.progress(), "job.progress()")

    def artifacts_sync(self) -> ArtifactList:
        """List the artifacts, in a thread without an event loop."""
        return self._home.run_sync(self.artifacts(), "job.artifacts()")

    def read_artifact_sync(self, path: str) -> Generator[bytes, None, None]:
        """Yield the content of one artifact in pieces, in a thread without an event loop."""
        pieces = self.read_artifact(path)

        async def take() -> bytes | None:
            return await anext(pieces, None)

        try:
            while (piece := self._home.run_sync(take(), "job.read_artifact(…)")) is not None:
                yield piece
        finally:
            self._home.run_sync(pieces.aclose(), "job.read_artifact(…)")

    def download_artifacts_sync(
        self, directory: str | Path, paths: Collection[str] = (), *, overwrite: bool = False
    ) -> list[Path]:
        """Save artifacts below a directory, in a thread without an event loop."""
        work = self.download_artifacts(directory, paths, overwrite=overwrite)
        return self._home.run_sync(work, "job.download_artifacts(…)")

    def refresh_sync(self) -> JobHandle[R_co]:
        """Read the job again, in a thread without an event loop."""
        return self._home.run_sync(self.refresh(), "job.refresh()")

    def wait_sync(self, timeout: Span | None = None) -> State:
        """Wait until the job has ended, in a thread without an event loop."""
        return self._home.run_sync(self.wait(timeout), "job.wait()")

    def result_sync(self, timeout: Span | None = None) -> R_co:
        """Wait for the result, in a thread without an event loop."""
        return self._home.run_sync(self.result(timeout), "job.result()")

    def cancel_sync(self, *, hard: bool = False, reason: str | None = None) -> State:
        """Cancel the job, in a thread without an event loop."""
        return self._home.run_sync(self.cancel(hard=hard, reason=reason), "job.cancel()")

    def signal_sync(self, name: str, payload: Any = None, *, request_id: str | None = None) -> None:
        """Send a signal, in a thread without an event loop."""
        sending = self.signal(name, payload, request_id=request_id)
        self._home.run_sync(sending, "job.signal(…)")

    def hold_sync(self, name: str = OPERATOR_HOLD, *, reason: str | None = None) -> None:
        """Keep the job from being claimed, in a thread without an event loop."""
        self._home.run_sync(self.hold(name, reason=reason), "job.hold(…)")

    def unhold_sync(self, name: str = OPERATOR_HOLD, *, reason: str | None = None) -> None:
        """Lift a hold, in a thread without an event loop."""
        self._home.run_sync(self.unhold(name, reason=reason), "job.unhold(…)")

    def approve_sync(self, *, reason: str | None = None) -> State:
        """Approve the job, in a thread without an event loop."""
        return self._home.run_sync(self.approve(reason=reason), "job.approve(…)")

    def deny_sync(self, *, reason: str | None = None) -> State:
        """Deny the job, in a thread without an event loop."""
        return self._home.run_sync(self.deny(reason=reason), "job.deny(…)")

    def reschedule_sync(
        self,
        *,
        delay: Span | None = None,
        run_at: datetime | None = None,
        reason: str | None = None,
    ) -> None:
        """Make the job due at another time, in a thread without an event loop."""
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
        """Submit the job again after it failed, in a thread without an event loop."""
        work = self.redrive(
            from_start=from_start, again=again, reason=reason, request_id=request_id
        )
        return self._home.run_sync(work, "job.redrive()")

    def retried_as_sync(self) -> JobHandle[R_co] | None:
        """Return the next try of this job, in a thread without an event loop."""
        return self._home.run_sync(self.retried_as(), "job.retried_as()")

    def events_sync(self) -> list[ReadEvent]:
        """Return the whole history of the job, in a thread without an event loop."""
        return self._home.run_sync(self.events(), "job.events()")

    def resolve_sync(
        self, step: str, verdict: Happened | NotHappened, *, force: bool = False
    ) -> None:
        """Record whether a step took effect, in a thread without an event loop."""
        self._home.run_sync(self.resolve(step, verdict, force=force), "job.resolve(…)")


class PendingHandle(Generic[R_co]):
    """A job that exists when its transaction is committed; `refresh` then returns its handle."""

    __slots__ = ("_enlisted", "_home", "_job", "_read_result", "committed")

    def __init__(
        self, job: NewJob, home: HandleOwner, read_result: Callable[[bytes | None], R_co]
    ) -> None:
        """Keep a decided submit; `settle` records its outcome."""
        self._job = job
        self._enlisted: Enlisted | None = None
        self._home = home
        self._read_result = read_result
        self.committed = False
        """Whether the job is known to exist; `refresh` finds out."""

    def __repr__(self) -> str:
        state = "committed" if self.committed else "not committed yet"
        return f"<PendingHandle {self._expected.job_id} {self._job.record.task} {state}>"

    def settle(self, enlisted: Enlisted) -> None:
        """Record what its keys resolved to: a new job, or one that already existed."""
        self._enlisted = enlisted

    @property
    def id(self) -> str:
        """The job's public id."""
        return self._known.job_id

    @property
    def internal_id(self) -> JobId:
        """The id by which other jobs refer to it as their parent."""
        return self._known.id

    @property
    def created(self) -> bool:
        """Whether the job is new; False if one of its keys belongs to an earlier job."""
        return self._known.created

    @property
    def is_new(self) -> bool:
        """Whether the job is new, as far as that is known before its keys are looked up."""
        return self._expected.created

    @property
    def task(self) -> str:
        """The name of its task."""
        return self._job.record.task

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._job.record.queue

    async def refresh(self) -> JobHandle[R_co]:
        """Return the handle of the job; raise NotCommitted before its transaction is committed."""
        expected = self._expected
        try:
            found = await (await self._home.operations()).do(GetJob(job=expected.id))
        except NoSuchJob as error:
            raise NotCommitted(
                f"job {expected.job_id} is not in the ledger: its transaction is not committed "
                "yet, or was rolled back; commit it, then retry",
                job_id=expected.job_id,
            ) from error
        self.committed = True
        return JobHandle(found, self._home, self._read_result, created=expected.created)

    async def wait(self, timeout: Span | None = None) -> State:
        """Wait until the job has ended; raise NotCommitted before the commit."""
        return await (await self.refresh()).wait(timeout)

    async def result(self, timeout: Span | None = None) -> R_co:
        """Wait for the result; raise NotCommitted before the commit."""
        return await (await self.refresh()).result(timeout)

    def refresh_sync(self) -> JobHandle[R_co]:
        """Return the handle of the job, in a thread without an event loop."""
        return self._home.run_sync(self.refresh(), "job.refresh()")

    def wait_sync(self, timeout: Span | None = None) -> State:
        """Wait until the job has ended, in a thread without an event loop."""
        return self._home.run_sync(self.wait(timeout), "job.wait()")

    def result_sync(self, timeout: Span | None = None) -> R_co:
        """Wait for the result, in a thread without an event loop."""
        return self._home.run_sync(self.result(timeout), "job.result()")

    @property
    def _expected(self) -> Enlisted:
        """What its keys resolved to, or, before that is known, a new job."""
        record: Any = self._job.record
        return self._enlisted or Enlisted(id=record.id, job_id=record.public_id, created=True)

    @property
    def _known(self) -> Enlisted:
        if self._enlisted is None and self._job.keys:
            raise NotCommitted(
                "the keys of this job are looked up when its transaction runs, at the end of its "
                "block: its id is known only then"
            )
        return self._expected


def check_all_accepted(answers: list[Any]) -> list[Any]:
    """Return the handles of jobs that were submitted together; a refusal is raised.

    Where others were accepted, PartlySubmitted carries all answers.
    """
    refused = {
        number: answer for number, answer in enumerate(answers) if isinstance(answer, HoldfastError)
    }
    if len(answers) == 1 and refused:
        raise refused[0]
    if refused:
        shown = [f"call {number}: {error}" for number, error in refused.items()][:SHOWN_REFUSALS]
        text = f"{len(refused)} of {len(answers)} were refused: {'; '.join(shown)}"
        raise PartlySubmitted(text, answers)
    return answers
