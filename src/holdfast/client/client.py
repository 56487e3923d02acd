"""`holdfast.Client`: jobs on a server, as an app has them on its store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload
from uuid import UUID

import httpx

from holdfast.app.job_methods import JobMethods, read_filters
from holdfast.app.sync import LoopSessions
from holdfast.client.remote import RemoteOperations
from holdfast.client.transport import Transport, make_headers, make_http, read_url
from holdfast.durations import Span, span_seconds
from holdfast.errors import BadConnection, HoldfastError
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import State
from holdfast.operations.requests import Answer, GetJob, ListQueues, ListWorkers, SubmitJobs
from holdfast.operations.sequences import list_all
from holdfast.operations.views import Depth, Roll
from holdfast.tasks.call_request import build_wanted_job
from holdfast.tasks.handles import JobHandle, PendingHandle, check_all_accepted
from holdfast.tasks.tasks import Call, P, R, Task, make_foreign_task
from holdfast.telemetry.tracing import submit_span

T = TypeVar("T")


class Client(JobMethods):
    """Jobs on a server. Its handles are those of an app: `await (await client.submit(…)).result()`.

    It opens when it is first used, on the running event loop, and closes with that loop;
    `async with client:` closes it at a point of your choice. Each method that is awaited has a twin
    for threads without an event loop, whose name ends in `_sync`.

    A request is sent again, under the same request id, until the server answers or `patience` ends:
    what the server did before its answer was lost is not done twice.
    """

    _variable = "client"
    _sessions: LoopSessions[_Connections]

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        tenant: str | None = None,
        patience: Span = "30s",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Keep the address and the token; nothing is sent yet.

        `tenant` is the tenant to act for, if the token may act for all. `transport` replaces the
        network, for proxies, certificates of your own, and tests.
        """
        self.url = read_url(url)
        self._headers = make_headers(token, tenant)
        self._transport = transport
        self._patience_seconds = span_seconds(patience, "patience")
        self._sessions = LoopSessions(self._connect)

    def __repr__(self) -> str:
        """Return which server it is of, without the token."""
        return f"<Client {self.url}>"

    # -- submitting

    def named(self, task: str) -> Task[..., Any]:
        """Return a task by its name; it takes named arguments, and `options(…)`."""
        return make_foreign_task(task, self)

    @overload
    async def submit(
        self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[R]: ...
    @overload
    async def submit(self, task: str, /, **kwargs: Any) -> JobHandle[Any]: ...
    async def submit(self, task: Any, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Submit a job: of a task at hand, or by the task's name and named arguments.

        A task at hand brings its terms along, and its arguments are checked before anything is
        sent: `client.submit(resize.options(queue="slow"), "cat.png")`.
        """
        wanted = self.named(task) if isinstance(task, str) else task
        return (await self.submit_many([wanted.prepare(*args, **kwargs)]))[0]

    @overload
    def submit_sync(
        self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> JobHandle[R]: ...
    @overload
    def submit_sync(self, task: str, /, **kwargs: Any) -> JobHandle[Any]: ...
    def submit_sync(self, task: Any, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Submit a job, in a thread without an event loop."""
        return self.run_sync(self.submit(task, *args, **kwargs), "client.submit(…)")

    async def submit_many(self, calls: Sequence[Call]) -> list[JobHandle[Any]]:
        """Submit calls of any tasks together: `[resize.prepare("a.png"), send.prepare("x")]`.

        Return handles in their order. If only some are refused, PartlySubmitted has the outcome of
        each.
        """
        if not calls:
            return []
        operations = await self.operations()
        with submit_span(calls[0].task.name, calls[0].task.queue) as traceparent:
            jobs = [build_wanted_job(call, traceparent) for call in calls]
            answers = await operations.do(SubmitJobs(jobs=jobs))
        return check_all_accepted(
            [self._answer(call, one) for call, one in zip(calls, answers, strict=True)]
        )

    def _answer(self, call: Call, answer: Answer) -> JobHandle[Any] | HoldfastError:
        if isinstance(answer, HoldfastError):
            return answer
        return JobHandle(answer.job, self, call.task.unpack_result, created=answer.created)

    async def _operations_for(self, _tenant: str | None) -> RemoteOperations:
        # The server decides by the token whether the job may be for another tenant.
        return await self.operations()

    async def _on_submitted(self, job: JobHandle[Any]) -> None:
        pass

    async def submit_many_in(
        self, connection: Any, calls: Sequence[Call]
    ) -> list[PendingHandle[Any]]:
        """Raise BadConnection: a server is not part of the caller's transaction."""
        raise _no_transaction_error()

    def submit_many_in_sync(
        self, connection: Any, calls: Sequence[Call]
    ) -> list[PendingHandle[Any]]:
        """Raise BadConnection: a server is not part of the caller's transaction."""
        raise _no_transaction_error()

    # -- jobs

    async def get(self, job_id: str | UUID) -> JobHandle[Any]:
        """Return a job by its id; raise NoSuchJob if there is none that the token may see."""
        operations = await self.operations()
        return self._handle(await operations.do(GetJob(job=str(job_id))))

    def get_sync(self, job_id: str | UUID) -> JobHandle[Any]:
        """Return a job by its id, in a thread without an event loop."""
        return self.run_sync(self.get(job_id), "client.get(…)")

    async def jobs(
        self,
        *,
        state: State | str | Sequence[State | str] = (),
        queue: str | None = None,
        task: str | None = None,
        parent: JobHandle[Any] | None = None,
        workflow_id: str | None = None,
        correlation_id: str | None = None,
        error_code: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[JobHandle[Any]]:
        """Go through jobs, newest first: `async for job in client.jobs(state="failed")`."""
        request = read_filters(
            state=state,
            queue=queue,
            task=task,
            parent=None if parent is None else parent.record.id,
            workflow_id=workflow_id,
            correlation_id=correlation_id,
            error_code=error_code,
            labels=labels,
        )
        async for record in list_all(await self.operations(), request, limit):
            yield self._handle(record)

    def jobs_sync(self, *, limit: int, **filters: Any) -> list[JobHandle[Any]]:
        """List jobs, newest first, in a thread without an event loop; filters as in `jobs`."""

        async def listed() -> list[JobHandle[Any]]:
            return [job async for job in self.jobs(limit=limit, **filters)]

        return self.run_sync(listed(), "client.jobs(…)")

    async def queues(self) -> list[Depth]:
        """List queues: how many jobs are in which state, and whether they are paused."""
        return (await (await self.operations()).do(ListQueues())).queues

    def queues_sync(self) -> list[Depth]:
        """List queues, in a thread without an event loop."""
        return self.run_sync(self.queues(), "client.queues()")

    async def workers(self) -> Roll:
        """List workers, live, silent and ended ones."""
        return await (await self.operations()).do(ListWorkers(limit=1000))

    def workers_sync(self) -> Roll:
        """List workers, in a thread without an event loop."""
        return self.run_sync(self.workers(), "client.workers()")

    async def _which(self, job: str | UUID | JobHandle[Any]) -> str:
        return str(job.record.id) if isinstance(job, JobHandle) else str(job)

    def _handle(self, record: Job) -> JobHandle[Any]:
        return JobHandle(record, self, decode_body)

    # -- opening and closing

    async def operations(self) -> RemoteOperations:
        """Return the operations on a server's jobs, for the running loop."""
        session = self._sessions.get()
        await session.start()
        return session.operations

    def _connect(self) -> _Connections:
        http = make_http(self.url, self._headers, self._transport)
        return _Connections(http, self._patience_seconds)

    async def __aenter__(self) -> Self:
        """Use it on this event loop."""
        await self.operations()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close its connections."""
        await self.close()


class _Connections:
    """The connections of one event loop."""

    def __init__(self, http: httpx.AsyncClient, patience_seconds: float) -> None:
        self.operations = RemoteOperations(Transport(http, patience_seconds=patience_seconds))
        self._http = http
        self._life = self._open_connections()
        self._started = False

    async def start(self) -> None:
        if not self._started:
            self._started = True
            await anext(self._life)

    async def close(self) -> None:
        await self._life.aclose()

    async def _open_connections(self) -> AsyncGenerator[None]:
        # A generator, because a loop that ends closes those that it has started: so a client that
        # is used without `async with` leaves no connection open.
        try:
            yield
        finally:
            await self._http.aclose()


def _no_transaction_error() -> BadConnection:
    return BadConnection(
        "a client submits over HTTP, outside your transaction; an app on the same "
        "database can: Holdfast(url)"
    )
