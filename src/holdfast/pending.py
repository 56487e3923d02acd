"""A job that was submitted inside a transaction which nobody but its owner can see the end of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from holdfast.errors import NoSuchJob, NotCommitted
from holdfast.jobs import Home, JobHandle
from holdfast.lifecycle.job import JobId, NewJob
from holdfast.lifecycle.states import State
from holdfast.spans import Span
from holdfast.stores.submitting import Enlisted

R_co = TypeVar("R_co", covariant=True)


class PendingHandle(Generic[R_co]):
    """A job that is there once its transaction is committed; `refresh` then gives its handle."""

    __slots__ = ("_enlisted", "_home", "_job", "_read_result", "committed")

    def __init__(
        self, job: NewJob, home: Home, read_result: Callable[[bytes | None], R_co]
    ) -> None:
        """Hold a decided submit; `settle` tells what became of it."""
        self._job = job
        self._enlisted: Enlisted | None = None
        self._home = home
        self._read_result = read_result
        self.committed = False
        """Whether it is known to be there. Nobody tells when a transaction ends; see `refresh`."""

    def __repr__(self) -> str:
        """Name it with its task."""
        state = "committed" if self.committed else "not committed yet"
        return f"<PendingHandle {self._told.job_id} {self._job.record.task} {state}>"

    def settle(self, enlisted: Enlisted) -> None:
        """Hear what its keys came to: a new job, or one that was there."""
        self._enlisted = enlisted

    @property
    def id(self) -> str:
        """The job's public id."""
        return self._known.job_id

    @property
    def internal_id(self) -> JobId:
        """What other jobs name it by as their parent."""
        return self._known.id

    @property
    def created(self) -> bool:
        """Whether the job is new; False if one of its keys stands for an earlier one."""
        return self._known.created

    @property
    def is_new(self) -> bool:
        """Whether the job is new, as far as that is known before its keys are looked up."""
        return self._told.created

    @property
    def task(self) -> str:
        """The name of its task."""
        return self._job.record.task

    @property
    def queue(self) -> str:
        """Where it waits once it is there."""
        return self._job.record.queue

    async def refresh(self) -> JobHandle[R_co]:
        """Find the job; NotCommitted as long as its transaction has not been committed."""
        told = self._told
        try:
            found = await (await self._home.operations()).get(told.id)
        except NoSuchJob as error:
            raise NotCommitted(
                f"job {told.job_id} is not in the ledger: its transaction is not committed yet, or "
                "was rolled back; commit it, and ask again",
                job_id=told.job_id,
            ) from error
        self.committed = True
        return JobHandle(found, self._home, self._read_result, created=told.created)

    async def wait(self, timeout: Span | None = None) -> State:
        """Wait until it has ended; NotCommitted before the commit, when nobody could run it."""
        return await (await self.refresh()).wait(timeout)

    async def result(self, timeout: Span | None = None) -> R_co:
        """Wait for the result; NotCommitted before the commit, when nobody could run it."""
        return await (await self.refresh()).result(timeout)

    def refresh_sync(self) -> JobHandle[R_co]:
        """Find the job, from a thread without a loop."""
        return self._home.run_sync(self.refresh(), "job.refresh()")

    def wait_sync(self, timeout: Span | None = None) -> State:
        """Wait until it has ended, in a thread without a loop."""
        return self._home.run_sync(self.wait(timeout), "job.wait()")

    def result_sync(self, timeout: Span | None = None) -> R_co:
        """Wait for the result, in a thread without a loop."""
        return self._home.run_sync(self.result(timeout), "job.result()")

    @property
    def _told(self) -> Enlisted:
        """What is known, or else what was asked for."""
        record: Any = self._job.record
        return self._enlisted or Enlisted(id=record.id, job_id=record.public_id, created=True)

    @property
    def _known(self) -> Enlisted:
        if self._enlisted is None and self._job.keys:
            raise NotCommitted(
                "the keys of this job are looked up when its transaction runs, at the end of its "
                "block: its id is known only then"
            )
        return self._told
