"""The OpenAPI document: it can be made, it is whole, and it tells of every route."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import httpx
from fastapi.routing import APIRoute

from holdfast.http.server import ROUTERS

REFERENCE = re.compile(r'"#/components/schemas/([^"]+)"')


async def read(http: httpx.AsyncClient) -> dict[str, Any]:
    """Read the document as a client does."""
    reply = await http.get("/openapi.json")
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


async def test_every_schema_that_is_named_is_there(http: httpx.AsyncClient) -> None:
    document = await read(http)
    schemas = document["components"]["schemas"]
    named = set(REFERENCE.findall(json.dumps(document)))

    assert document["openapi"].startswith("3.1")
    assert named - set(schemas) == set()
    # Two types of one name would both be named by their modules.
    assert [name for name in schemas if "." in name] == []


async def test_every_route_is_told_with_its_problems(http: httpx.AsyncClient) -> None:
    paths = (await read(http))["paths"]
    routes = [
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and route.include_in_schema
        for method in route.methods or ()
    ]

    assert len(routes) > 20
    for method, path in routes:
        told = paths[path][method.lower()]["responses"]
        assert "application/problem+json" in told["default"]["content"], (method, path)


async def test_every_header_is_told_where_it_is_read(http: httpx.AsyncClient) -> None:
    paths = (await read(http))["paths"]
    for router in ROUTERS:
        for route in router.routes:
            if not (isinstance(route, APIRoute) and route.include_in_schema):
                continue
            source = inspect.getsource(route.endpoint)
            (method,) = sorted(route.methods or ())
            told = {one["name"] for one in paths[route.path][method.lower()]["parameters"]}
            assert "X-Request-Id" in told
            assert ("Idempotency-Key" in told) is ("ask.key" in source), route.path
            assert ("If-Match" in told) is ("ask.expected_rev" in source), route.path
            if "ask.jobs" in source or "ask.submit" in source:
                assert "Holdfast-Tenant" in told, route.path
    tokens = {one["name"] for one in paths["/v1/tokens"]["post"]["parameters"]}
    assert tokens == {"X-Request-Id"}
