"""Submit inside the caller's own transaction: what an app does around it, on either engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

from holdfast.app.drivers import Handles, enlist, enlist_sync
from holdfast.app.sqlite_transaction import Hosted, Transaction, read_hosted_terms
from holdfast.app.sync import is_in_a_loop
from holdfast.errors import BadConnection, PolicyChanged, StoreError
from holdfast.flow.submit import Inherited, JobBuilder, PublishedTerms
from holdfast.lifecycle.record import JobId, NewJob
from holdfast.ports.store import Store
from holdfast.stores.postgres.caller_transaction import dictionary_keys
from holdfast.tasks.handles import HandleOwner, JobHandle, PendingHandle, check_all_accepted
from holdfast.tasks.tasks import Call
from holdfast.telemetry import Meters
from holdfast.telemetry.tracing import submit_span

AHEAD_LIMIT = 5000
"""How many policies and needs are known to be written: submitters choose them."""


@runtime_checkable
class Remembering(Protocol):
    """A store that many connections write to."""

    async def remember(self, jobs: Sequence[NewJob]) -> None:
        """Write down the policies and needs that jobs name."""


@runtime_checkable
class Judging(Protocol):
    """A store that does not see what a caller's transaction submits before the database does."""

    async def judge(self, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """Judge jobs by the applied policy."""

    async def read_policy(self) -> None:
        """Read which policy is applied."""


class Enlisting(HandleOwner):
    """The part of an app that submits inside transactions of its callers."""

    builder: JobBuilder
    meters: Meters
    is_judging: bool = True
    """Whether jobs have to be judged here: False once there is known to be no policy."""
    written_ahead: set[int]
    """Keys of policies and needs that were written, or tried, before a transaction needs them."""

    @property
    @abstractmethod
    def schema(self) -> str:
        """The schema on PostgreSQL that the function is called in."""

    @abstractmethod
    async def store(self) -> Store:
        """Return the open store of the running loop."""

    @abstractmethod
    async def parent_id(self, parent: Any) -> JobId | None:
        """Return the internal id of what was given as a parent."""

    @abstractmethod
    def inherited(self, active: str | None) -> Inherited:
        """Return what a job takes over that is submitted here, within the active span."""

    @abstractmethod
    async def published(self, calls: Sequence[Call]) -> PublishedTerms:
        """Read the terms of tasks that calls know by name alone."""

    @abstractmethod
    def judge_sync(self, jobs: list[NewJob]) -> list[NewJob]:
        """Judge jobs by the policy, in any thread."""

    @abstractmethod
    def published_sync(self, calls: Sequence[Call]) -> PublishedTerms:
        """Read the terms of tasks that calls know by name alone, in any thread."""

    def transaction(self) -> Transaction:
        """Start a transaction on the store's own connection (SQLite): your rows and jobs in one."""
        return Transaction(self)

    async def submit_many_in(
        self, connection: Any, calls: Sequence[Call]
    ) -> list[PendingHandle[Any]]:
        """Submit calls inside a transaction of yours: they are there exactly if it commits."""
        if not calls:
            return []
        parents = [await self.parent_id(call.parent) for call in calls]
        terms = await self.published(calls) if self.builder.list_tasks_by_name(calls) else None
        with submit_span(calls[0].task.name, calls[0].task.queue) as active:
            jobs = self._decide_in(connection, calls, parents, active, terms)
            jobs = await self._judge(jobs)
            if self._has_new_names(jobs):
                await self._write_ahead(jobs)
            handles = self._make_handles(calls, jobs)
            try:
                answers = await enlist(connection, jobs, handles, schema=self.schema)
            except PolicyChanged:
                await self._read_policy()
                raise
            return self._count_accepted(answers)

    def submit_many_in_sync(
        self, connection: Any, calls: Sequence[Call]
    ) -> list[PendingHandle[Any]]:
        """Submit calls inside a transaction of a connection that blocks."""
        if not calls:
            return []
        parents = [self._parent_id_sync(call.parent) for call in calls]
        terms = self._read_terms_sync(connection, calls)
        with submit_span(calls[0].task.name, calls[0].task.queue) as active:
            jobs = self._decide_in(connection, calls, parents, active, terms)
            jobs = self.judge_sync(jobs)
            if not is_in_a_loop() and self._has_new_names(jobs):
                self.run_sync(self._write_ahead(jobs), "task.submit_in(…)")
            handles = self._make_handles(calls, jobs)
            try:
                answers = enlist_sync(connection, jobs, handles, schema=self.schema)
            except PolicyChanged:
                self.is_judging = True
                raise
            return self._count_accepted(answers)

    async def _judge(self, jobs: list[NewJob], *, again: bool = False) -> list[NewJob]:
        """Judge jobs by the policy, if the store does not do so when they are written.

        `again`: read the policy first if there was none, as it may have refused a job since.
        """
        if not self.is_judging:
            return jobs
        judged: Sequence[NewJob] = jobs
        # Whose role has the function alone cannot read a policy, nor can who has no other
        # connection: where one is applied, the database refuses the jobs.
        with suppress(StoreError):
            store = await self.store()
            if again and isinstance(store, Judging):
                await store.read_policy()
            judged = await store.judge(jobs) if isinstance(store, Judging) else jobs
        # Without a policy they are returned as they are. Once there is one, the database refuses.
        self.is_judging = judged is not jobs
        return list(judged)

    async def _read_policy(self) -> None:
        """Read the policy again, so that the caller's next try is judged by the new one."""
        self.is_judging = True
        # The refusal is the answer, also where the policy cannot be read.
        with suppress(StoreError):
            store = await self.store()
            if isinstance(store, Judging):
                await store.read_policy()

    def _read_terms_sync(self, connection: Any, calls: Sequence[Call]) -> PublishedTerms | None:
        named = self.builder.list_tasks_by_name(calls)
        if not named:
            return None
        if isinstance(connection, Hosted):
            # On the writer's thread: who reads elsewhere may have to wait for this transaction.
            return read_hosted_terms(connection, named)
        return self.published_sync(calls)

    def _parent_id_sync(self, parent: Any) -> JobId | None:
        match parent:
            case None:
                return None
            case JobHandle():
                return parent.record.id
            case PendingHandle():
                return parent.internal_id
            case _:
                instead = "task.submit_in(…), or give a handle as the parent,"
                return self.run_sync(self.parent_id(parent), instead)

    def _decide_in(
        self,
        connection: Any,
        calls: Sequence[Call],
        parents: Sequence[JobId | None],
        active: str | None,
        terms: PublishedTerms | None,
    ) -> list[NewJob]:
        if isinstance(connection, Transaction) and connection.home is not self:
            raise BadConnection("this transaction is another app's")
        return self.builder.decide_all(calls, parents, self.inherited(active), terms)

    def _has_new_names(self, jobs: Sequence[NewJob]) -> bool:
        named = {key for job in jobs for key in dictionary_keys(job)} - self.written_ahead
        if len(self.written_ahead) >= AHEAD_LIMIT:
            self.written_ahead.clear()
        self.written_ahead |= named
        return bool(named)

    async def _write_ahead(self, jobs: Sequence[NewJob]) -> None:
        """Write down what the jobs name, outside the transaction they are submitted in.

        A new row in an open transaction makes all who want the same wait for its end, this very
        caller among them. A courtesy: what is not there, the transaction writes itself.
        """
        with suppress(StoreError):
            store = await self.store()
            if isinstance(store, Remembering):
                await store.remember(jobs)

    def _count_accepted(self, answers: list[Any]) -> list[PendingHandle[Any]]:
        """Count what a transaction has taken in: whether it commits is not known here."""
        for answer in answers:
            if isinstance(answer, PendingHandle) and answer.is_new:
                self.meters.submitted(answer.task, answer.queue)
        return check_all_accepted(answers)

    def _make_handles(self, calls: Sequence[Call], jobs: Sequence[NewJob]) -> Handles:
        return [
            PendingHandle(job, self, call.task.unpack_result)
            for call, job in zip(calls, jobs, strict=True)
        ]
