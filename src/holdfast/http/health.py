"""Whether the server lives, and whether it can serve."""

from __future__ import annotations

from fastapi import APIRouter
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from holdfast import __version__
from holdfast.http.bodies import answer
from holdfast.http.documents import documented

router = APIRouter(tags=["health"])


class Health(Struct, frozen=True, kw_only=True):
    """That it answers."""

    status: str
    version: str


@router.get("/healthz", **documented(_200=Health))
async def is_alive() -> Response:
    """Tell that the process lives."""
    return answer(Health(status="alive", version=__version__))


@router.get("/readyz", **documented(_200=Health))
async def is_ready(request: Request) -> Response:
    """Tell that the database answers; 503 if not."""
    await request.app.state.house.session.store.clock()
    return answer(Health(status="ready", version=__version__))
