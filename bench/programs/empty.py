"""The same framework with nothing behind it: what a server of it can answer at most.

`python -m bench.programs.empty PORT`: a POST is read and answered, nothing else; the settings are
those of `holdfast serve`.
"""

from __future__ import annotations

import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.http.limits import ServerLimits
from holdfast.http.slow_clients import make_limited_protocol


async def take(request: Request) -> Response:
    """Read the body, and answer with nothing in it."""
    await request.body()
    return Response(b"{}", media_type="application/json")


app = Starlette(routes=[Route("/empty", take, methods=["POST"])])


if __name__ == "__main__":
    uvicorn.run(
        app,
        port=int(sys.argv[1]),
        # Head and body of an answer in one write, as `holdfast serve` sends them.
        http=make_limited_protocol(ServerLimits()),
        log_config=None,
        access_log=False,
        ws="none",
    )
