"""Whether the server lives, whether it can serve, and its numbers."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter
from msgspec import Struct
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

from holdfast import __version__
from holdfast.errors import ServerEnding, StoreUnavailable
from holdfast.http.asking import Ask, House, asking
from holdfast.http.bodies import answer
from holdfast.http.documents import documented
from holdfast.http.scopes import Scope
from holdfast.telemetry.prometheus import registry
from holdfast.telemetry.pulse import silent

router = APIRouter(tags=["health"])

READY_SECONDS = 3.0
"""How long the database may take to answer; a probe does not wait for longer."""


class Health(Struct, frozen=True, kw_only=True):
    """How the process is."""

    status: str
    version: str
    silent: dict[str, float] = {}
    """Parts that ought to have shown life since so many seconds."""


@router.get("/healthz", **documented(reads=(), _200=Health, _503=Health))
async def is_alive(request: Request) -> Response:
    """Tell that the process lives; 503 if a part of it has been silent for too long."""
    house: House = request.app.state.house
    dead = silent(list(house.meters.pulses.values()))
    told = {name: round(seconds, 1) for name, seconds in dead.items()}
    health = Health(status="silent" if dead else "alive", version=__version__, silent=told)
    return answer(health, 503 if dead else 200)


@router.get("/readyz", **documented(reads=(), _200=Health))
async def is_ready(request: Request) -> Response:
    """Tell that the server takes requests and its database answers; 503 if not."""
    house: House = request.app.state.house
    house.check_open()
    if house.ending.begun:
        raise ServerEnding("the server is about to end")
    try:
        async with asyncio.timeout(READY_SECONDS):
            await house.session.store.clock()
    except TimeoutError as error:
        raise StoreUnavailable(
            f"the database has not answered within {READY_SECONDS:g} s"
        ) from error
    return answer(Health(status="ready", version=__version__))


def exposed(described: dict[str, Any]) -> dict[str, Any]:
    """Describe that a route answers as Prometheus wants it."""
    text = {"schema": {"type": "string"}}
    media = dict.fromkeys(("text/plain", "application/openmetrics-text"), text)
    described["responses"][200] = {"description": "Done", "content": media}
    return described


@router.get("/metrics", **exposed(documented(reads=())))
async def get_metrics(ask: Annotated[Ask, asking(Scope.METRICS)]) -> Response:
    """Read the numbers of this process and its store, as Prometheus wants them."""
    encode, media = choose_encoder(ask.request.headers.get("accept", ""))
    house = ask.house
    return Response(encode(registry(house.meters, house.depths)), media_type=media)
