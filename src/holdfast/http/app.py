"""The server put together: endpoints, limits, and the store behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

try:
    import starlette  # noqa: F401  named before a module that needs it fails
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the server needs starlette: pip install 'holdfast[server]'", name=error.name
    ) from error

from holdfast.admission.topics import NO_TOPICS, Topics
from holdfast.http import reference
from holdfast.http.body_budget import BodyBudget
from holdfast.http.concurrency import ConcurrencyLimit
from holdfast.http.endpoints import ENDPOINTS
from holdfast.http.lifespan import Beside, ServerShutdown, opened
from holdfast.http.limits import ServerLimits
from holdfast.http.middleware import Guard
from holdfast.http.rate_limit import RateLimiter
from holdfast.http.request import Authenticator, ServerState
from holdfast.http.router import Application, Router
from holdfast.http.routes import OpenEndpoint
from holdfast.http.sse import EventStreams
from holdfast.operations.scope import KnownTasks
from holdfast.operations.session import StoreSession
from holdfast.ports.blobs import OpenBlobs
from holdfast.ports.store import Store
from holdfast.services.depth_refresh import refresh_depths
from holdfast.telemetry import Meters
from holdfast.telemetry.counters import OTHER
from holdfast.telemetry.queue_depths import Depths
from holdfast.webhooks.egress import Outside
from holdfast.worker_protocol.protocol import RemoteWorkers

PAGES = (
    OpenEndpoint("/openapi.json", reference.answer_document, label=OTHER),
    OpenEndpoint("/openapi.json", reference.answer_document, method="HEAD", label=OTHER),
    OpenEndpoint("/docs", reference.answer_page),
    OpenEndpoint("/docs/style.css", reference.answer_style),
)
"""What describes the endpoints, and is not described itself."""


def make_server(
    store: Store,
    authenticator: Authenticator,
    *,
    tasks: KnownTasks | None = None,
    topics: Topics = NO_TOPICS,
    limits: ServerLimits | None = None,
    meters: Meters | None = None,
    check: Beside | None = None,
    beside: Sequence[Beside] = (),
    outside: Outside | None = None,
    open_blobs: OpenBlobs | None = None,
) -> Application:
    """Make the application for a store that is not open yet; it opens and closes with it.

    `check` may refuse to serve once the store is open, even late; `beside` are loops that run on
    it from then on. `topics` has the pools of jobs that are submitted by topic. `open_blobs` opens
    the place of logs, artifacts and uploads.
    """
    meters = meters or Meters()
    limits = limits or ServerLimits()
    session = StoreSession(store, open_blobs=open_blobs)
    state = ServerState(
        session=session,
        workers=RemoteWorkers(session),
        authenticator=authenticator,
        rates=RateLimiter(limits),
        requests=ConcurrencyLimit("requests", limits.requests),
        bodies=BodyBudget(limits),
        uploads=ConcurrencyLimit("uploads", limits.uploads),
        upload_idle_seconds=limits.upload_idle_seconds,
        streams=EventStreams(session, limits.streams),
        tasks=tasks or {},
        topics=topics,
        meters=meters,
        depths=Depths(meters),
        shutdown=ServerShutdown(),
        outside=outside or Outside(),
    )

    @asynccontextmanager
    async def lifespan(app: Application) -> AsyncIterator[None]:
        del app
        loops: list[Beside] = [partial(refresh_depths, state.depths), *beside]
        async with opened(session, loops, check, state.shutdown.start):
            yield

    router = Router((*ENDPOINTS, *PAGES))
    guard = Guard(
        router,
        limits=limits,
        meters=meters.door,
        shutdown=state.shutdown,
        streams=router.streams,
    )
    return Application(guard, state, lifespan)
