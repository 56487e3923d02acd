"""The ASGI application: finds the endpoint of a request, behind the guard that all requests pass.

A table instead of the framework's list of patterns: to compare a request with forty of them costs
more than to authenticate it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Router as StarletteRouter
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.errors import NoSuchMethod, NoSuchRoute
from holdfast.http.middleware import request_id_of, shown_path
from holdfast.http.problems import problem_response
from holdfast.http.request import ServerState
from holdfast.http.routes import AnyEndpoint

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")


class Application(StarletteRouter):
    """The server as an ASGI application. The framework's part of it is the lifespan."""

    def __init__(
        self,
        app: ASGIApp,
        state: ServerState,
        lifespan: Callable[[Application], AbstractAsyncContextManager[None]],
    ) -> None:
        """Answer HTTP requests by `app`; `state` is what they share."""
        super().__init__(lifespan=lifespan)
        self._app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        if scope["type"] == "http":
            await self._app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class Router:
    """Finds the endpoint of a request by its method and path."""

    def __init__(self, endpoints: Iterable[AnyEndpoint]) -> None:
        """Index the endpoints; no two may have the same method and path."""
        self._plain: dict[tuple[str, str], AnyEndpoint] = {}
        self._named: dict[tuple[str, ...], tuple[AnyEndpoint, str]] = {}
        self._with_rest: dict[tuple[str, ...], tuple[AnyEndpoint, str, str]] = {}
        places: set[int] = set()
        rests: set[tuple[int, int]] = set()
        for endpoint in endpoints:
            pieces = endpoint.path.split("/")
            names = [place for place, piece in enumerate(pieces) if piece.startswith("{")]
            if not names:
                self._plain[endpoint.method, endpoint.path] = endpoint
                continue
            place, *rest = names
            name = pieces[place].strip("{}")
            if not rest:
                self._named[endpoint.method, *_without(pieces, place)] = endpoint, name
                places.add(place)
                continue
            # A second name is all of the rest of the path, with its slashes.
            [length] = rest
            assert length == len(pieces) - 1, endpoint.path
            key = (endpoint.method, *_without(pieces[:length], place))
            self._with_rest[key] = endpoint, name, pieces[length].strip("{}")
            rests.add((place, length))
        self._places = sorted(places)
        self._rests = sorted(rests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._find(scope, scope["method"])
        if endpoint is None:
            await self._refuse(HttpRequest(scope))(scope, receive, send)
        else:
            scope["endpoint"] = endpoint
            await endpoint(scope, receive, send)

    def streams(self, scope: Scope) -> bool:
        """Return whether the body of a request is read piece by piece, and never held."""
        endpoint = self._find(scope, scope["method"])
        return endpoint is not None and endpoint.streams

    def _find(self, scope: Scope, method: str) -> AnyEndpoint | None:
        path: str = scope["path"]
        if root := scope.get("root_path"):
            path = _below(path, root)
        plain = self._plain.get((method, path))
        if plain is not None:
            scope["path_params"] = {}
            return plain
        pieces = path.split("/")
        for place in self._places:
            if place < len(pieces) and pieces[place]:
                found = self._named.get((method, *_without(pieces, place)))
                if found is not None:
                    scope["path_params"] = {found[1]: pieces[place]}
                    return found[0]
        return self._find_with_rest(scope, method, pieces)

    def _find_with_rest(
        self, scope: Scope, method: str, pieces: Sequence[str]
    ) -> AnyEndpoint | None:
        for place, length in self._rests:
            rest = "/".join(pieces[length:])
            if rest and pieces[place]:
                found = self._with_rest.get((method, *_without(pieces[:length], place)))
                if found is not None:
                    scope["path_params"] = {found[1]: pieces[place], found[2]: rest}
                    return found[0]
        return None

    def _refuse(self, request: HttpRequest) -> Response:
        found = [one for name in METHODS if (one := self._find(request.scope, name)) is not None]
        allowed = [one.method for one in found]
        if found:
            # For the metrics: a path without a name is the route that was meant.
            request.scope["endpoint"] = min(found, key=lambda one: "{" in one.path)
        text = f"there is no {request.method} {shown_path(request.url.path)}"
        missing = NoSuchMethod(text) if allowed else NoSuchRoute(text)
        response = problem_response(missing, request_id_of(request), request.method)
        if allowed:
            response.headers["Allow"] = ", ".join(allowed)
        return response


def _below(path: str, root: str) -> str:
    """Return a path without the prefix that the application is mounted under."""
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def _without(pieces: Sequence[str], place: int) -> tuple[str, ...]:
    """Return a path's pieces with the name left out."""
    return (*pieces[:place], "{}", *pieces[place + 1 :])
