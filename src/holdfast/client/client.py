"""`holdfast.Client`: jobs on a server, as an app has them on its store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, overload
from uuid import UUID

import httpx

from holdfast.asking import all_accepted
from holdfast.bridge import Bridge
from holdfast.client.operations import RemoteOperations
from holdfast.client.requests import Requests, make_headers, make_http, read_url
from holdfast.client.wanting import wanted_of
from holdfast.errors import BadConnection, HoldfastError
from holdfast.flow.why import Why
from holdfast.jobs import JobHandle
from holdfast.lifecycle.job import Job
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.states import State
from holdfast.operations import Answer, Depth, Roll, found
from holdfast.options import read_states
from holdfast.pending import PendingHandle
from holdfast.ports import Query, QueueStatus
from holdfast.spans import Span, span_seconds
from holdfast.tasks import Call, P, R, Task, foreign_task
from holdfast.telemetry.tracing import submit_span

T = TypeVar("T")


class Client:
    """Jobs on a server. Its handles are those of an app: `await (await client.submit(…)).result()`.

    It opens when it is first used, on whichever event loop that is, and closes with that loop;
    `async with client:` closes it at a point of your choice. Each method that is awaited has a twin
    for threads without a loop, whose name ends in `_sync`.

    What is asked is asked again, under the same request id, until the server answers or `patience`
    ends: what it did before its answer was lost is not done twice.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        tenant: str | None = None,
        patience: Span = "30s",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Take the address and the token; nothing is asked yet.

        `tenant` is for a token that may act for all: act for this one. `transport` replaces the
        network, for proxies, certificates of your own, and tests.
        """
        self.url = read_url(url)
        self._headers = make_headers(token, tenant)
        self._transport = transport
        self._patience_seconds = span_seconds(patience, "patience")
        self._sessions: dict[asyncio.AbstractEventLoop, _Session] = {}
        self._lock = threading.Lock()
        self._inherited: list[_Session] = []
        """What a parent had open when it forked: kept, so that nothing closes its connections."""
        self._bridge = Bridge(after_fork=self._leave_parent)

    def __repr__(self) -> str:
        """Tell which server it asks, without the token."""
        return f"<Client {self.url}>"

    # -- submitting

    def named(self, task: str) -> Task[..., Any]:
        """Give a task by its name; it takes named arguments, and `options(…)`."""
        return foreign_task(task, self)

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
        """Submit a job, from a thread without a loop."""
        return self.run_sync(self.submit(task, *args, **kwargs), "client.submit(…)")

    async def submit_many(self, calls: Sequence[Call]) -> list[JobHandle[Any]]:
        """Submit calls of any tasks together: `[resize.prepare("a.png"), send.prepare("x")]`.

        Answers in their order. Where one is refused and others are not, PartlySubmitted tells what
        became of each.
        """
        if not calls:
            return []
        operations = await self.operations()
        with submit_span(calls[0].task.name, calls[0].task.queue) as traceparent:
            answers = await operations.submit([wanted_of(call, traceparent) for call in calls])
        return all_accepted(
            [self._answer(call, one) for call, one in zip(calls, answers, strict=True)]
        )

    def submit_many_sync(self, calls: Sequence[Call]) -> list[JobHandle[Any]]:
        """Submit calls together, from a thread without a loop."""
        return self.run_sync(self.submit_many(calls), "client.submit_many(…)")

    def _answer(self, call: Call, answer: Answer) -> JobHandle[Any] | HoldfastError:
        if isinstance(answer, HoldfastError):
            return answer
        return JobHandle(answer.job, self, call.task.unpack_result, created=answer.created)

    async def submit_many_in(
        self, connection: Any, calls: Sequence[Call]
    ) -> list[PendingHandle[Any]]:
        """Refuse: a server is no part of the caller's transaction."""
        raise _no_transaction()

    def submit_many_in_sync(
        self, connection: Any, calls: Sequence[Call]
    ) -> list[PendingHandle[Any]]:
        """Refuse: a server is no part of the caller's transaction."""
        raise _no_transaction()

    # -- jobs

    async def get(self, job_id: str | UUID) -> JobHandle[Any]:
        """Look a job up by its id; NoSuchJob if there is none that the token may see."""
        return self._handle(await (await self.operations()).get(str(job_id)))

    def get_sync(self, job_id: str | UUID) -> JobHandle[Any]:
        """Look a job up, from a thread without a loop."""
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
        operations = await self.operations()
        query = Query(
            states=read_states(state),
            queue=queue,
            task=task,
            parent_id=None if parent is None else parent.record.id,
            workflow_id=workflow_id,
            correlation_id=correlation_id,
            error_code=error_code,
            labels=tuple((labels or {}).items()),
        )
        async for record in found(operations, query, limit):
            yield self._handle(record)

    def jobs_sync(self, *, limit: int, **filters: Any) -> list[JobHandle[Any]]:
        """List jobs, newest first, from a thread without a loop; the filters are as in `jobs`."""

        async def listed() -> list[JobHandle[Any]]:
            return [job async for job in self.jobs(limit=limit, **filters)]

        return self.run_sync(listed(), "client.jobs(…)")

    async def cancel(
        self, job: str | UUID | JobHandle[Any], *, hard: bool = False, reason: str | None = None
    ) -> JobHandle[Any]:
        """Cancel a job; see `JobHandle.cancel`."""
        operations = await self.operations()
        return self._handle(await operations.cancel(_id(job), hard=hard, reason=reason))

    async def why(self, job: str | UUID | JobHandle[Any]) -> Why:
        """Tell why a job stands where it stands: a reason with its facts."""
        return await (await self.operations()).why(_id(job))

    def why_sync(self, job: str | UUID | JobHandle[Any]) -> Why:
        """Tell why a job stands where it stands, in a thread without a loop."""
        return self.run_sync(self.why(job), "client.why(…)")

    async def queues(self) -> list[Depth]:
        """List queues: how many jobs are in which state, and whether they are paused."""
        return await (await self.operations()).queues()

    async def pause(self, queue: str, *, reason: str | None = None) -> QueueStatus:
        """Let no job of a queue be claimed; for a token that may act for all tenants."""
        return await (await self.operations()).pause(queue, reason=reason)

    async def resume(self, queue: str, *, reason: str | None = None) -> QueueStatus:
        """Let a queue's jobs be claimed again."""
        return await (await self.operations()).resume(queue, reason=reason)

    async def workers(self) -> Roll:
        """List workers, live, silent and ended ones."""
        return await (await self.operations()).workers()

    def cancel_sync(
        self, job: str | UUID | JobHandle[Any], *, hard: bool = False, reason: str | None = None
    ) -> JobHandle[Any]:
        """Cancel a job, in a thread without a loop."""
        return self.run_sync(self.cancel(job, hard=hard, reason=reason), "client.cancel(…)")

    def queues_sync(self) -> list[Depth]:
        """List queues, in a thread without a loop."""
        return self.run_sync(self.queues(), "client.queues()")

    def pause_sync(self, queue: str, *, reason: str | None = None) -> QueueStatus:
        """Let no job of a queue be claimed, in a thread without a loop."""
        return self.run_sync(self.pause(queue, reason=reason), "client.pause(…)")

    def resume_sync(self, queue: str, *, reason: str | None = None) -> QueueStatus:
        """Let a queue's jobs be claimed again, in a thread without a loop."""
        return self.run_sync(self.resume(queue, reason=reason), "client.resume(…)")

    def workers_sync(self) -> Roll:
        """List workers, in a thread without a loop."""
        return self.run_sync(self.workers(), "client.workers()")

    def _handle(self, record: Job) -> JobHandle[Any]:
        return JobHandle(record, self, decode_body)

    # -- opening and closing

    async def operations(self) -> RemoteOperations:
        """Give all that can be done with a server's jobs, on the running loop."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None:
            session = self._new_session(loop)
            await session.begin()
        return session.operations

    def _new_session(self, loop: asyncio.AbstractEventLoop) -> _Session:
        with self._lock:
            for known in [known for known in self._sessions if known.is_closed()]:
                del self._sessions[known]
            http = make_http(self.url, self._headers, self._transport)
            session = self._sessions[loop] = _Session(http, self._patience_seconds)
            return session

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
        """Let go of its connections."""
        await self.close()

    async def close(self) -> None:
        """Let go of the connections; a later use makes new ones."""
        with self._lock:
            session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()
        await asyncio.to_thread(self._bridge.close)

    def _leave_parent(self) -> None:
        """Start anew in a forked child: the parent's sessions and locks are not its own."""
        self._lock = threading.Lock()
        self._inherited += self._sessions.values()
        self._sessions.clear()

    def close_sync(self) -> None:
        """Let go of what the `…_sync` methods opened; a later use opens it again."""
        self._bridge.close()

    def run_sync(self, work: Coroutine[Any, Any, T], instead: str) -> T:
        """Do work for a thread without a loop, on the client's own background loop."""
        return self._bridge.run(work, instead)


class _Session:
    """The connections of one event loop."""

    def __init__(self, http: httpx.AsyncClient, patience_seconds: float) -> None:
        self.operations = RemoteOperations(Requests(http, patience_seconds=patience_seconds))
        self._http = http
        self._life = self._live()

    async def begin(self) -> None:
        await anext(self._life)

    async def close(self) -> None:
        await self._life.aclose()

    async def _live(self) -> AsyncGenerator[None]:
        # A generator, because a loop that ends closes those that it has begun: then nobody who
        # used a client without `async with` leaves connections open.
        try:
            yield
        finally:
            await self._http.aclose()


def _id(job: str | UUID | JobHandle[Any]) -> str:
    return str(job.record.id) if isinstance(job, JobHandle) else str(job)


def _no_transaction() -> BadConnection:
    return BadConnection(
        "a client submits over HTTP, which is no part of your transaction; an app on the same "
        "database can: Holdfast(url)"
    )
