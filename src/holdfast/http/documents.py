"""What the routes take and give, for the OpenAPI document: the schemas of msgspec's own types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from holdfast import __version__
from holdfast.http.problems import MEDIA
from holdfast.json_format import json_schema_of, structs_of
from holdfast.messages import Problem

_REF = "#/components/schemas/{name}"
_kinds: set[Any] = {Problem}


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    told = {"name": name, "in": "header", "required": False, "description": description}
    return told | {"schema": {"type": "string"} | schema}


REQUEST_ID = _header("X-Request-Id", "Names the request in logs and answers.", maxLength=128)
TENANT = _header(
    "Holdfast-Tenant",
    "For a token that is bound to none: the tenant to act for, percent-encoded.",
    minLength=1,
)
KEY = _header("Idempotency-Key", "The same again is done once.", minLength=1, maxLength=200)
REVISION = _header(
    "If-Match", "Only while the job is at this revision.", pattern=r'^(\*|(W/)?"[0-9]{1,9}")$'
)


def documented(
    *, takes: Any = None, reads: Sequence[dict[str, Any]] = (TENANT,), **gives: Any
) -> dict[str, Any]:
    """Describe a route: its body, headers that it reads, and by status its answers: `_201=Receipt`.

    For `**documented(…)` in a route's decorator.
    """
    responses: dict[int | str, dict[str, Any]] = {"default": _content(Problem, MEDIA, "A problem")}
    for status, kind in gives.items():
        code = int(status.removeprefix("_"))
        responses[code] = {"description": "Done"} if kind is None else _content(kind)
    extra: dict[str, Any] = {"parameters": [REQUEST_ID, *reads]}
    if takes is not None:
        body = _content(takes) | {"required": True}
        del body["description"]
        extra["requestBody"] = body
    return {"responses": responses, "openapi_extra": extra}


def _content(
    kind: Any, media: str = "application/json", description: str = "Done"
) -> dict[str, Any]:
    _kinds.add(kind)
    schema = {"$ref": _REF.format(name=kind.__name__)}
    return {"description": description, "content": {media: {"schema": schema}}}


def openapi(app: FastAPI) -> dict[str, Any]:
    """Make the document once: the framework's routes, msgspec's schemas."""
    if app.openapi_schema is None:
        document = get_openapi(
            title="Holdfast",
            version=__version__,
            description="Durable jobs for agents, commands and functions.",
            routes=app.routes,
            openapi_version="3.1.0",
        )
        _, schemas = msgspec.json.schema_components(
            sorted(_kinds, key=lambda kind: str(kind.__name__)), ref_template=_REF
        )
        for kind in structs_of(_kinds):
            if kind.__name__ in schemas:
                json_schema_of(schemas[kind.__name__], kind)
        components = document.setdefault("components", {})
        components["schemas"] = {**components.get("schemas", {}), **schemas}
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}, {}]
        app.openapi_schema = document
    return app.openapi_schema
