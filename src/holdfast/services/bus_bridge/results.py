"""Results and progress in: what workers report of the jobs that the bus owns (A8–A10, A19).

What is late, repeated, out of order, about another attempt or not a worker's to report is refused
and counted. Any bridge may write for any job: the bus is the owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, assert_never, cast

from msgspec.structs import replace

from holdfast.errors import BadData, HoldfastError, JobBusy, StoreError
from holdfast.flow.command import perform
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.payload import encode_body
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.states import Role
from holdfast.ports.bus import (
    BusChannel,
    WorkerProgress,
    WorkerResult,
    WorkerStatusWord,
)
from holdfast.queries.error_reports import MESSAGE_LIMIT, writable
from holdfast.services.bus_bridge.intake import Arrival
from holdfast.services.bus_bridge.known_jobs import KnownJobs
from holdfast.services.bus_bridge.leases import Leases
from holdfast.services.bus_bridge.progress import ProgressPace, check_pointers, keep_progress
from holdfast.services.bus_bridge.refusals import Refusals
from holdfast.services.bus_bridge.settings import BridgeParts
from holdfast.worker_protocol.apply_reports import ReportOutcome, apply_reports
from holdfast.worker_protocol.bus_reports import (
    BusCancelled,
    BusComplete,
    BusFail,
    BusProgress,
    BusStart,
    BusTimeOut,
    RunEnd,
)
from holdfast.worker_protocol.reports import OwnReport, Trouble

NAME_LIMIT = 200
LEASE_LOST = "lease_lost"

Word = WorkerResult | WorkerProgress


class Results:
    """Applies what workers report."""

    def __init__(
        self,
        parts: BridgeParts,
        refusals: Refusals,
        known: KnownJobs,
        leases: Leases,
        on_end: Callable[[], None],
    ) -> None:
        self._on_end = on_end
        self._parts = parts
        self._settings = parts.settings
        self._refusals = refusals
        self._known = known
        self._leases = leases
        self._pace = ProgressPace()

    async def handle(self, arrivals: Sequence[Arrival]) -> None:
        """Apply a batch: of each job one word at a time, in the order in which they came.

        A word on a job whose row is locked is left for the next batch.
        """
        left: list[Arrival] = []
        for one in arrivals:
            if _word(one) in [_word(other) for other in left[-20:]]:
                self._refuse(one, "duplicate")
            else:
                left.append(one)
        while left:
            first: dict[str, Arrival] = {}
            later: list[Arrival] = []
            for one in left:
                if _word(one).job_id in first:
                    later.append(one)
                else:
                    first[_word(one).job_id] = one
            await self._apply(list(first.values()))
            busy = {name for name, one in first.items() if not one.done}
            left = [one for one in later if _word(one).job_id not in busy]

    async def _apply(self, arrivals: Sequence[Arrival]) -> None:
        """Apply words on different jobs, in one batch."""
        accepted: list[tuple[Arrival, Job]] = []
        found = await self._known.find([_word(one).job_id for one in arrivals])
        for one, job in zip(arrivals, found, strict=True):
            fault = self._find_fault(_word(one), job)
            if fault is not None:
                self._refuse(one, fault)
            elif job is not None and job.terminal:
                await self._note_end(one, job)
            elif job is not None and self._is_too_often(one, job):
                self._refuse(one, "too_often")
            elif job is not None:
                # Handled again after an error of the store, it must not count for the next attempt.
                one.word = replace(_word(one), attempt=job.attempt)
                accepted.append((one, job))
        await self._write(accepted)

    def _is_too_often(self, arrival: Arrival, job: Job) -> bool:
        progress = isinstance(arrival.word, WorkerProgress)
        return progress and self._pace.is_too_often(job.id, arrival)

    def _find_fault(self, word: Word, job: Job | None) -> str | None:
        """Return why a word may not be applied to a job as it is (A8, A10, A19)."""
        if word.status is WorkerStatusWord.FORBIDDEN:
            return "forbidden_status"
        if isinstance(word, WorkerProgress) and word.status not in _PROGRESSING:
            return "forbidden_status"
        if job is None:
            return "unknown_job"
        if not self._settings.is_own(job):
            return "not_on_bus"
        if word.attempt is not None and word.attempt != job.attempt:
            return "old_attempt"
        if job.terminal:
            return None
        if not job.owned:
            return "not_dispatched"
        return None if job.owner == self._settings.owner else "not_on_bus"

    async def _write(self, accepted: Sequence[tuple[Arrival, Job]], *, again: bool = True) -> None:
        reports: list[OwnReport] = []
        jobs: list[Job] = []
        written: list[tuple[Arrival, Job, int]] = []
        for one, job in accepted:
            try:
                made = _make_reports(_word(one), job)
            except BadData as error:
                self._refuse(one, "invalid", str(error))
                continue
            reports += made
            jobs += [job] * len(made)
            written.append((one, job, len(reports) - 1))
        outcomes = await apply_reports(self._parts.store, self._settings.owner, reports, jobs)
        lapsed: list[tuple[Arrival, Job]] = []
        for one, job, last in written:
            if not _has_lapsed(outcomes[last]):
                await self._note(one, job, outcomes[last])
            elif again:
                lapsed.append((one, job))
            # Else it could not be taken back, as its row is locked: the next batch tries again.
        if lapsed:
            adopted = await self._leases.adopt([job for _, job in lapsed])
            await self._write([(one, adopted.get(job.id, job)) for one, job in lapsed], again=False)

    async def _note(self, arrival: Arrival, job: Job, outcome: ReportOutcome) -> None:
        """Count what became of a word."""
        if isinstance(outcome.error, JobBusy):
            return
        if outcome.repeated and isinstance(arrival.word, WorkerResult):
            self._refuse(arrival, "duplicate")
        elif outcome.error is None:
            arrival.done = True
            self._parts.meters.bus.apply(_channel(_word(arrival)))
            if outcome.job is not None and not outcome.job.owned:
                # There is room on the bus again.
                self._on_end()
        elif outcome.error.code != LEASE_LOST:
            self._refuse(arrival, outcome.error.code)
        else:
            [current] = await self._parts.store.get([job.id])
            if current is not None and current.terminal and current.attempt == job.attempt:
                await self._note_end(arrival, current)
            else:
                self._refuse(arrival, "old_attempt")

    async def _note_end(self, arrival: Arrival, job: Job) -> None:
        """Record a result that comes after the end, once; progress then means nothing."""
        word = arrival.word
        if not isinstance(word, WorkerResult) or word.status is WorkerStatusWord.RUNNING:
            self._refuse(arrival, "late")
            return
        if await self._is_repeated(word, job):
            self._refuse(arrival, "duplicate")
            return
        late = c.LateResult(
            actor=Actor(Role.BUS, self._settings.owner, job.attempt),
            state=word.status.value,
            error_code=None if word.error_code is None else writable(word.error_code, NAME_LIMIT),
            result_ptr=None if word.result_ptr is None else writable(word.result_ptr, 1000),
            body=encode_body({"worker": writable(word.worker, NAME_LIMIT)}),
        )
        try:
            await perform(self._parts.store, job.id, late)
        except JobBusy:
            return
        except StoreError:
            raise
        except HoldfastError as error:
            self._refuse(arrival, error.code, str(error))
        else:
            self._refuse(arrival, "late")

    async def _is_repeated(self, word: WorkerResult, job: Job) -> bool:
        """Return whether the job ended by this very result."""
        try:
            reports = _make_reports(word, job)
        except BadData:
            return False
        [outcome] = (
            await apply_reports(self._parts.store, self._settings.owner, reports[-1:], [job])
        )[-1:]
        return outcome.repeated

    def _refuse(self, arrival: Arrival, reason: str, detail: str = "") -> None:
        arrival.done = True
        word = _word(arrival)
        self._refusals.add(_channel(word), reason, f"{word.sender}: {word.job_id} {detail}")


_PROGRESSING = (None, WorkerStatusWord.RUNNING)


def _word(arrival: Arrival) -> Word:
    """Return what a packet on one of these channels reports."""
    return cast(Word, arrival.word)


def _channel(word: Word) -> BusChannel:
    return BusChannel.RESULT if isinstance(word, WorkerResult) else BusChannel.PROGRESS


def _has_lapsed(outcome: ReportOutcome) -> bool:
    """Return whether a word was refused only because the bus's own lease has passed."""
    job, error = outcome.job, outcome.error
    return job is not None and job.owned and error is not None and error.code == LEASE_LOST


def _make_reports(word: Word, job: Job) -> list[OwnReport]:
    """Return the reports of a word: a start first, for workers that send none (resolution 4)."""
    of: dict[str, Any] = {"internal_id": job.id, "attempt": job.attempt}
    if isinstance(word, WorkerProgress):
        return [BusStart(**of), BusProgress(**of, data=keep_progress(word.data))]
    if word.status is WorkerStatusWord.RUNNING:
        return [BusStart(**of)]
    end = _read_end(word)
    match word.status:
        case WorkerStatusWord.SUCCEEDED:
            return [BusStart(**of), BusComplete(**of, end=end)]
        case WorkerStatusWord.FAILED | WorkerStatusWord.FAILED_FOR_GOOD:
            permanent = word.status is WorkerStatusWord.FAILED_FOR_GOOD
            end = replace(end, error=None)
            failed = BusFail(**of, end=end, error=_trouble(word), permanent=permanent)
            return [BusStart(**of), failed]
        case WorkerStatusWord.CANCELLED:
            return [BusCancelled(**of, end=end)]
        case WorkerStatusWord.TIMEOUT:
            return [BusTimeOut(**of, end=end)]
        case WorkerStatusWord.FORBIDDEN:
            raise BadData("the status is not a worker's to report")
    assert_never(word.status)


def _read_end(word: WorkerResult) -> RunEnd:
    check_pointers(word.result_ptr, word.artifact_ptrs)
    return RunEnd(
        worker=writable(word.worker, NAME_LIMIT),
        result_ptr=word.result_ptr,
        execution_ms=word.execution_ms,
        artifact_ptrs=word.artifact_ptrs,
        error=_trouble(word) if word.error_code or word.error_message else None,
    )


def _trouble(word: WorkerResult) -> Trouble:
    code = word.error_code and writable(word.error_code, NAME_LIMIT)
    message = writable(word.error_message or "", MESSAGE_LIMIT)
    return Trouble(message=message, type="WorkerError", code=code or None)
