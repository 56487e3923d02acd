"""The server put together: routes, guard, errors, and the store behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

try:
    from fastapi import FastAPI
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the server needs fastapi: pip install 'holdfast[server]'", name=error.name
    ) from error
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import HoldfastError, NoSuchMethod, NoSuchRoute
from holdfast.http import (
    events,
    health,
    jobs,
    letters,
    logs,
    queues,
    reference,
    stats,
    tokens,
    webhooks,
    worker,
)
from holdfast.http.asking import Doorkeeper, House
from holdfast.http.bodies import unfit
from holdfast.http.body_budget import BodyBudget
from holdfast.http.documents import openapi
from holdfast.http.ending import Ending
from holdfast.http.express import Express
from holdfast.http.guard import Guard, request_id_of
from holdfast.http.limits import Limits
from holdfast.http.live import Live
from holdfast.http.names import shown
from holdfast.http.opening import Beside, opened
from holdfast.http.places import Places
from holdfast.http.problems import problem_response
from holdfast.http.rates import Rates
from holdfast.outside import Outside
from holdfast.ports import Store
from holdfast.services.session import Session
from holdfast.tasks import Task
from holdfast.telemetry import Meters
from holdfast.telemetry.depths import Depths, watch_depths

ROUTERS = (
    jobs.router,
    events.router,
    letters.router,
    letters.counting,
    logs.router,
    queues.router,
    webhooks.router,
    worker.router,
    stats.router,
    tokens.router,
    health.router,
    reference.router,
)


def make_server(
    store: Store,
    doorkeeper: Doorkeeper,
    *,
    tasks: Mapping[str, Task[Any, Any]] | None = None,
    limits: Limits | None = None,
    meters: Meters | None = None,
    check: Beside | None = None,
    beside: Sequence[Beside] = (),
    outside: Outside | None = None,
) -> FastAPI:
    """Make the application for a store that is not open yet; it opens and closes with it.

    `check` may refuse to serve once that is open, be it late; `beside` are loops that run on it
    from then on.
    """
    meters = meters or Meters()
    limits = limits or Limits()
    session = Session(store)
    house = House(
        session=session,
        doorkeeper=doorkeeper,
        rates=Rates(limits),
        places=Places("requests", limits.requests),
        bodies=BodyBudget(limits),
        live=Live(session, limits.streams),
        tasks=tasks or {},
        meters=meters,
        depths=Depths(meters),
        ending=Ending(),
        outside=outside or Outside(),
    )

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        loops: list[Beside] = [partial(watch_depths, house.depths), *beside]
        async with opened(house.session, loops, check, house.ending.begin):
            yield

    app = FastAPI(
        title="Holdfast", lifespan=life, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.house = house
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    app.add_exception_handler(HoldfastError, _told)
    app.add_exception_handler(RequestValidationError, _unfit)
    app.add_exception_handler(HTTPException, _no_route)
    # The last that is added stands first.
    app.add_middleware(Express, routers=ROUTERS)
    app.add_middleware(Guard, limits=limits, meters=meters.door, ending=house.ending)
    return app


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    return problem_response(error, request_id_of(request), request.method)


async def _unfit(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    said = unfit(f"{field}: {first['msg']}", field or None)
    return problem_response(said, request_id_of(request), request.method)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = NoSuchMethod if error.status_code == 405 else NoSuchRoute
    missing = kind(f"there is no {request.method} {shown(request.url.path)}")
    response = problem_response(missing, request_id_of(request), request.method)
    response.headers.update(error.headers or {})
    return response
