"""One HTTP request whose caller is known, and what all requests of a server share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.requests import Request as HttpRequest

from holdfast.admission.topics import Topics
from holdfast.auth.authorization import LOCAL, Caller, Scope
from holdfast.errors import BadData, StoreUnavailable, Unauthorized, ValidationError
from holdfast.http.body_budget import BodyBudget
from holdfast.http.concurrency import ConcurrencyLimit
from holdfast.http.json_body import check_media, read_json
from holdfast.http.lifespan import ServerShutdown
from holdfast.http.middleware import at_end_of, request_id_of
from holdfast.http.rate_limit import RateLimiter
from holdfast.http.sse import EventStreams
from holdfast.http.streamed_body import check_streamed_media, read_pieces
from holdfast.lifecycle.payload import check_text
from holdfast.operations.local import LocalOperations
from holdfast.operations.request import R, Request
from holdfast.operations.scope import KnownTasks
from holdfast.operations.session import StoreSession
from holdfast.ports.models import Submitted
from holdfast.telemetry import Meters
from holdfast.telemetry.queue_depths import Depths
from holdfast.webhooks.egress import Outside
from holdfast.worker_protocol.protocol import RemoteWorkers, WorkerProtocol

T = TypeVar("T")
LAST_EVENT_ID_LIMIT = 400


class Authenticator(Protocol):
    """Finds out whom a request comes from."""

    async def caller(self, headers: Headers) -> Caller:
        """Return the caller; Unauthorized if its token is not valid."""


class ServerState(Struct, frozen=True, kw_only=True):
    """What all requests of a server share."""

    session: StoreSession
    workers: RemoteWorkers
    authenticator: Authenticator
    rates: RateLimiter
    requests: ConcurrencyLimit
    bodies: BodyBudget
    uploads: ConcurrencyLimit
    """Bodies that are streamed: none of them is held."""
    upload_idle_seconds: float
    streams: EventStreams
    tasks: KnownTasks
    topics: Topics
    meters: Meters
    depths: Depths
    shutdown: ServerShutdown
    """Ends every long wait: a server that stops waits for no client."""
    outside: Outside
    """Refuses webhooks whose addresses are not public."""

    def check_open(self) -> None:
        """Refuse while the database has not answered yet."""
        if not self.session.is_open:
            raise StoreUnavailable("the database has not answered since the server started")

    def count_submit(self, submitted: Submitted) -> None:
        """Count a submit that made a job."""
        if submitted.created:
            self.meters.submitted(submitted.job.task, submitted.job.queue)


class HttpCall(Struct, frozen=True, kw_only=True):
    """One request whose caller was authenticated and may make it."""

    request: HttpRequest
    caller: Caller
    server: ServerState

    @property
    def request_id(self) -> str:
        """What this request is called in logs and answers."""
        return request_id_of(self.request)

    @property
    def at_end(self) -> ExitStack:
        """What runs once the request has been answered."""
        return at_end_of(self.request)

    @property
    def tenant(self) -> str | None:
        """Whose jobs the caller acts on; None: those of all tenants."""
        name = self.request.headers.get("holdfast-tenant")
        if name is None:
            return self.caller.tenant
        return self.caller.tenant_for(check_text(unquote(name), "Holdfast-Tenant", limit=200))

    @property
    def idempotency_key(self) -> str | None:
        """The key under which a repeated request is carried out once."""
        key = self.request.headers.get("idempotency-key")
        return None if key is None else check_text(key, "Idempotency-Key", limit=200)

    @property
    def last_event_id(self) -> str | None:
        """The last event that the client of a stream has seen."""
        last = self.request.headers.get("last-event-id")
        if last is not None and len(last) > LAST_EVENT_ID_LIMIT:
            text = f"last-event-id: {len(last):,} characters; the limit is {LAST_EVENT_ID_LIMIT}"
            raise ValidationError(text, field="last-event-id")
        return last

    @property
    def expected_rev(self) -> int | None:
        """The revision that `If-Match` demands (C3)."""
        tag = self.request.headers.get("if-match")
        if tag is None or tag.strip() == "*":
            return None
        text = tag.strip().removeprefix("W/").strip('"')
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise BadData(f'If-Match must be a job\'s revision, such as "3"; not {tag!r}')
        return int(text)

    async def do(self, request: Request[R]) -> R:
        """Carry out a request in the caller's name."""
        kind = type(request)
        if kind.scope is Scope.WORK:
            return await self._workers().do(request)
        tenant = self.tenant if kind.for_tenant else self.caller.tenant
        return await self.operations(tenant).do(request)

    def operations(self, tenant: str | None) -> LocalOperations:
        """Return what the caller may do for a tenant; None: for all."""
        return LocalOperations(
            self.server.session,
            name=self.caller.name,
            tenant=tenant,
            queues=self.caller.queues,
            tasks=self.server.tasks,
            topics=self.server.topics,
            outside=self.server.outside,
            served=True,
            role=self.caller.role,
            token=None if self.caller.token == LOCAL else self.caller.token,
        )

    def _workers(self) -> WorkerProtocol:
        return WorkerProtocol(
            workers=self.server.workers,
            caller=self.caller,
            tenant=lambda: self.tenant,
            request_id=self.request_id,
            watched=partial(self.server.shutdown.watched, self.request.receive),
        )

    async def check_token(self) -> None:
        """Raise Unauthorized if the token was revoked or changed since the request was admitted."""
        caller = await self.server.authenticator.caller(self.request.headers)
        if caller != self.caller:
            raise Unauthorized("the token has changed since the request was admitted")

    async def unless_over(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Await work that may take long; None if the server stops or the client leaves first."""
        return await self.server.shutdown.await_unless_stopped(work, self.request.receive)

    async def body(self, kind: type[T]) -> T:
        """Read the request's JSON."""
        check_media(self.request)
        text = await self.server.bodies.read(self.request, self.caller.token)
        return read_json(text, kind)

    def stream(self, media: Collection[str]) -> AsyncIterator[bytes]:
        """Return the body of the request piece by piece; one of another media type is refused."""
        check_streamed_media(self.request, media)
        self.server.uploads.take(self.caller, self.at_end)
        return read_pieces(
            self.request.receive, self.server.shutdown, self.server.upload_idle_seconds
        )


async def admit(request: HttpRequest, scope: Scope) -> HttpCall:
    """Authenticate a request's caller; refuse it beyond its rate, its role or its share."""
    server: ServerState = request.scope["app"].state
    server.check_open()
    caller = await server.authenticator.caller(request.headers)
    server.rates.take(caller.token)
    caller.demand(scope)
    return HttpCall(request=request, caller=caller, server=server)
