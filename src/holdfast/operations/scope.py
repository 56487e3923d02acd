"""What one caller may see and act on: a tenant or all, some queues or all, on an open session."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import TypeAlias
from uuid import UUID

from holdfast.admission.topics import NO_TOPICS, Topics
from holdfast.auth.tokens import TokenRole
from holdfast.errors import BadData, Forbidden, NoSuchJob
from holdfast.flow.submit import JobBuilder, KnownTask
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.record import Actor, Job, JobId
from holdfast.lifecycle.states import KeyKind, Role
from holdfast.operations.requests import Which
from holdfast.operations.session import StoreSession
from holdfast.queries.absence import missing_job_error
from holdfast.webhooks.egress import Outside

KnownTasks: TypeAlias = Mapping[str, KnownTask]
DEFAULT_TENANT = "default"


class CallerScope:
    """One actor, with the tenant and the queues that it acts for."""

    def __init__(
        self,
        session: StoreSession,
        *,
        name: str,
        tenant: str | None = DEFAULT_TENANT,
        queues: frozenset[str] | None = None,
        tasks: KnownTasks | None = None,
        topics: Topics = NO_TOPICS,
        awaited: Callable[[JobId], Awaitable[None]] | None = None,
        outside: Outside | None = None,
        served: bool = False,
        names_tenant: bool = False,
        role: TokenRole = TokenRole.ADMIN,
        token: str | None = None,
    ) -> None:
        """Act as `name` for a tenant and in some queues; None acts for all.

        The terms and signatures of `tasks` are known; a job of another task is not checked.
        `topics` has the pools of jobs that are submitted by topic. `awaited` is called for each job
        that the caller starts to wait for. `outside` refuses webhooks whose address is not public.
        What is `served` is written out for a client: a list examines a bounded number of jobs, and
        bodies of events stay JSON text. `names_tenant`: so does the error about a job that is not
        there. `role` and `token` are those of the caller's token; without one it is a program on
        this machine, which may do everything.
        """
        self.session = session
        self.store = session.store
        self.builder, self.control = _act_as(name)
        self.tenant = tenant
        self.queues = queues
        self.tasks = tasks or {}
        self.topics = topics
        self.awaited = awaited
        self.outside = outside
        self.served = served
        self.names_tenant = names_tenant
        self.role = role
        self.token = token

    async def get(self, job: Which) -> Job:
        """Read a job; raise NoSuchJob if there is none that the caller may see."""
        id_ = await self._look_up(job)
        record = None if id_ is None else (await self.session.batched.get([id_]))[0]
        if record is not None and self.may_see(record):
            return record
        if self.queues is not None:
            raise NoSuchJob(f"no job {job}", job_id=str(job))
        # The same for a job that is another tenant's as for one that never was.
        raise await missing_job_error(
            self.store, job, id=id_, tenant=self.tenant, names_tenant=self.names_tenant
        )

    async def id_of(self, job: Which) -> JobId:
        """Return a job's internal id; a caller of all tenants need not look that up."""
        if self.tenant is None and self.queues is None and isinstance(job, UUID):
            return job
        return (await self.get(job)).id

    async def _look_up(self, job: Which) -> JobId | None:
        if isinstance(job, UUID):
            return job
        text = check_text(job, "job_id")
        found = await self.store.look_up(self.tenant or DEFAULT_TENANT, KeyKind.JOB_ID, text)
        if found is None and self.tenant is None:
            try:
                return JobId(UUID(text))
            except ValueError:
                return None
        return found

    def may_see(self, job: Job) -> bool:
        """Return whether a job is of the caller's tenant and queues."""
        return self.tenant in (None, job.tenant) and self.serves(job.queue)

    def serves(self, queue: str) -> bool:
        """Return whether a queue is one of the caller's."""
        return self.queues is None or queue in self.queues

    def check_queue(self, queue: str) -> None:
        """Raise Forbidden for a queue that the caller's token does not cover."""
        if self.queues is not None and queue not in self.queues:
            own = ", ".join(sorted(self.queues))
            raise Forbidden(f"this token does not cover queue {queue!r}; it covers {own}")

    def queue_of(self, asked: str | None) -> str | None:
        """Return the queue that a list is of; a caller of several has to name one."""
        if self.queues is None:
            return asked
        if asked is None and len(self.queues) == 1:
            return next(iter(self.queues))
        if asked is None:
            raise BadData(f"name a queue: {', '.join(sorted(self.queues))}")
        self.check_queue(asked)
        return asked

    def tenant_of(self, asked: str | None) -> str:
        """Return the tenant that a job is for; BadData if it is not the caller's own."""
        if self.tenant is None:
            return DEFAULT_TENANT if asked is None else asked
        if asked not in (None, self.tenant):
            raise BadData(f"tenant must be left out, or be {self.tenant!r}", field="tenant")
        return self.tenant


@lru_cache(maxsize=1024)
def _act_as(name: str) -> tuple[JobBuilder, Actor]:
    """Return what builds jobs in a caller's name and the actor that controls them.

    The same few callers send every request.
    """
    builder = JobBuilder(actor=Actor(Role.GATEWAY, check_text(name, "name", limit=200)))
    return builder, Actor(Role.CONTROL, name)
