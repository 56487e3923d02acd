"""Query strings: a parameter that a route does not have is refused, not ignored.

A misspelt filter would otherwise return everything, and a bulk command act on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.requests import Request

from holdfast.errors import ValidationError

_KNOWN: dict[tuple[str, str], frozenset[str]] = {}


def check_query(request: Request) -> None:
    """Raise ValidationError for a query parameter that the request's route does not know."""
    if not request.scope.get("query_string"):
        return
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    place = (request.method, route.path)
    known = _KNOWN.get(place)
    if known is None:
        known = _KNOWN[place] = frozenset(_names(route.dependant))
    for name in request.query_params:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise ValidationError(
                f"unknown query parameter {name!r}; {request.method} {route.path} takes: {listed}",
                field=name,
            )


def _names(dependant: Dependant) -> Iterator[str]:
    yield from (param.alias for param in dependant.query_params)
    for needed in dependant.dependencies:
        yield from _names(needed)
