"""What takes several requests, the same on an open store and through a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from msgspec.structs import replace

from holdfast.durations import Span, span_seconds
from holdfast.errors import ResultTimeout
from holdfast.lifecycle.record import Job
from holdfast.operations.policy_view import RequestedApproval
from holdfast.operations.request import Operations
from holdfast.operations.requests import (
    GetHistory,
    GetJob,
    GetResult,
    ListApprovals,
    ListJobs,
    Which,
)
from holdfast.operations.views import JobOutcome
from holdfast.queries.history import ReadEvent
from holdfast.queries.outcomes import find_next_try

PAGE = 100
"""How many jobs of a long list are read at once."""
POLL_SECONDS = 25.0
"""How long one request waits for a job's end: less than the time after which proxies give up."""
EARLY_SECONDS = 0.2
"""The pause after an answer that came before its time, as from a server that is stopping."""


async def list_all(
    operations: Operations, request: ListJobs, limit: int | None
) -> AsyncIterator[Job]:
    """Go through jobs, newest first, page by page; None goes through all."""
    left = limit
    while left is None or left > 0:
        size = PAGE if left is None else min(left, PAGE)
        page = await operations.do(replace(request, limit=size))
        for job in page.jobs:
            yield job
        left = None if left is None else left - len(page.jobs)
        if page.next is None:
            return
        request = replace(request, before=page.next)


async def list_all_approvals(
    operations: Operations, request: ListApprovals, limit: int | None
) -> AsyncIterator[RequestedApproval]:
    """Go through the jobs that await approvals, page by page; None goes through all."""
    left = limit
    while left is None or left > 0:
        size = PAGE if left is None else min(left, PAGE)
        page = await operations.do(replace(request, limit=size))
        for one in page.approvals:
            yield one
        left = None if left is None else left - len(page.approvals)
        if page.next is None:
            return
        request = replace(request, after=page.next)


async def read_history(operations: Operations, job: Which) -> list[ReadEvent]:
    """Read a job's whole history, page by page."""
    events: list[ReadEvent] = []
    after: int | None = 0
    while after is not None:
        page = await operations.do(GetHistory(job=job, after=after))
        events += page.events
        after = page.next
    return events


async def wait_for_end(operations: Operations, job: Which, timeout: Span | None = None) -> Job:
    """Wait until a job has ended; ResultTimeout if that takes longer."""
    wait = _BoundedWait(timeout)
    while True:
        found = await operations.do(GetJob(job=job, wait=wait.next_seconds()))
        if found.terminal:
            return found
        if wait.is_over:
            raise wait.timed_out(found)
        await wait.pause()


async def wait_for_outcome(
    operations: Operations, job: Which, timeout: Span | None = None
) -> JobOutcome:
    """Wait for the outcome of a job's last try; ResultTimeout if that takes longer."""
    wait = _BoundedWait(timeout)
    while True:
        found = await operations.do(GetResult(job=job, wait=wait.next_seconds()))
        if isinstance(found, JobOutcome):
            return found
        if wait.is_over:
            raise wait.timed_out(await _last_try(operations, found))
        await wait.pause()


async def _last_try(operations: Operations, job: Job) -> Job:
    """Return the newest try of a job's work: the one that a caller waits for."""
    while (
        job.terminal
        and (again := find_next_try(await read_history(operations, job.id))) is not None
    ):
        job = await operations.do(GetJob(job=again))
    return job


class _BoundedWait:
    """A wait for a job's end, in requests of bounded length."""

    def __init__(self, timeout: Span | None) -> None:
        self._seconds = None if timeout is None else span_seconds(timeout, "timeout")
        self._until = None if self._seconds is None else time.monotonic() + self._seconds
        self._started = self._asked = 0.0

    def next_seconds(self) -> float:
        """Return how long the next request shall wait."""
        self._started = time.monotonic()
        left = POLL_SECONDS if self._until is None else max(0.0, self._until - self._started)
        self._asked = min(POLL_SECONDS, left)
        return self._asked

    @property
    def is_over(self) -> bool:
        """Whether the time is over."""
        return self._until is not None and time.monotonic() >= self._until

    def timed_out(self, job: Job) -> ResultTimeout:
        """Return the error that describes what was waited for."""
        return ResultTimeout(
            f"job {job.public_id} is {job.state} and has not ended within {self._seconds:g} s",
            job_id=job.public_id,
        )

    async def pause(self) -> None:
        """Pause after an answer that came too early."""
        if time.monotonic() - self._started < self._asked / 2:
            await asyncio.sleep(EARLY_SECONDS)
