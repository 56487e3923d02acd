"""Routes that take nothing but a body, answered without the framework's detour.

To find a route, solve its dependencies and wrap its answer costs the framework more than a submit
costs the store. A route that takes neither a path nor a query needs nothing of it but who asks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeAlias

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

Place: TypeAlias = tuple[str, str]
"""A method and a path."""
LetIn: TypeAlias = Callable[[Request], Awaitable[Any]]


class Express:
    """Answers such routes itself, and leaves all others to the application."""

    def __init__(self, app: ASGIApp, routers: Iterable[APIRouter]) -> None:
        """Stand before `app`, whose routes these are."""
        self._app = app
        self._direct = {place: found for router in routers for place, found in direct(router)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        found = self._direct.get((scope.get("method", ""), scope.get("path", "")))
        if found is None:
            await self._app(scope, receive, send)
            return
        let_in, route = found
        # As the framework does, for whoever counts requests by their route.
        scope["route"] = route
        response = await route.endpoint(await let_in(Request(scope, receive, send)))
        await response(scope, receive, send)


def direct(router: APIRouter) -> Iterator[tuple[Place, tuple[LetIn, APIRoute]]]:
    """Find routes that take nothing but `ask`."""
    for route in router.routes:
        if isinstance(route, APIRoute) and "{" not in route.path:
            needs = route.dependant
            alone = len(needs.dependencies) == 1 and needs.dependencies[0].name == "ask"
            params = (needs.query_params, needs.header_params, needs.cookie_params)
            if alone and not any(params) and (let_in := needs.dependencies[0].call) is not None:
                for method in route.methods or ():
                    yield (method, route.path), (let_in, route)
