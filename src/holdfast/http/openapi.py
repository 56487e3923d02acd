"""The OpenAPI document, made from the endpoints: the schemas are msgspec's own."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from inspect import cleandoc
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from holdfast import __version__
from holdfast.http.problems import MEDIA
from holdfast.http.routes import AnyEndpoint, Kind
from holdfast.operations.http_format import (
    SCHEMA_REF,
    Layout,
    alternatives_of,
    layout_of,
    list_body_alternatives,
    replies_of,
    whole_body_type,
)
from holdfast.operations.json_format import json_schema_of, structs_of
from holdfast.operations.problems import ProblemDocument
from holdfast.operations.views import Rendered

Json: TypeAlias = dict[str, Any]
_REFERENCE = re.compile(r'"#/components/schemas/(\w+)"')
SCHEMA_NAMES = {
    "Act": "Said",
    "BacksOff": "Backoff",
    "CancelMode": "Cancel",
    "DeadLetterView": "DeadLetter",
    "FailedAttempt": "Failure",
    "HealthReport": "Health",
    "HeldJob": "Held",
    "LiveChild": "Child",
    "NotStarted": "Claimed",
    "PlacedHold": "Hold",
    "ProblemDocument": "Problem",
    "ReadyToClaim": "Ready",
    "SeenWorker": "Seen",
    "SetAside": "Quarantined",
    "WantedJob": "Wanted",
    "WorkerCounts": "Crew",
    "CancelReport": "SayCancel",
    "CompleteReport": "SayComplete",
    "FailReport": "SayFail",
    "HeartbeatReport": "SayHeartbeat",
    "ProgressReport": "SayProgress",
    "ReleaseReport": "SayRelease",
    "StartReport": "SayStart",
    "StepReport": "SayStep",
    "TimeOutReport": "SayTimeOut",
    "WaitReport": "SayWait",
}
"""Names of schemas that clients know, by the class where it has another."""
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")


def _header(name: str, description: str, **schema: Any) -> Json:
    shown = {"name": name, "in": "header", "required": False, "description": description}
    return shown | {"schema": {"type": "string"} | schema}


_REQUEST_ID = _header("X-Request-Id", "Names the request in logs and answers.", maxLength=128)
_TENANT = _header(
    "Holdfast-Tenant",
    "The tenant to act for, percent-encoded; only for a token without a tenant.",
    minLength=1,
)
_HEADERS = {
    "Idempotency-Key": _header(
        "Idempotency-Key",
        "A repeated request with the same key is carried out once.",
        minLength=1,
        maxLength=200,
    ),
    "If-Match": _header(
        "If-Match",
        "Refuse the request unless the job is at this revision.",
        pattern=r'^(\*|(W/)?"[0-9]{1,9}")$',
    ),
    "Content-Digest": _header(
        "Content-Digest",
        "The SHA-256 of the body, as RFC 9530 has it; another body is refused.",
        pattern="^sha-256=:[A-Za-z0-9+/]{43}=:$",
    ),
    "last-event-id": _header("last-event-id", "The last event that the client has received.")
    | {"schema": {"anyOf": [{"maxLength": 400, "type": "string"}, {"type": "null"}]}},
}


def make_document(endpoints: Iterable[AnyEndpoint]) -> Json:
    """Describe what endpoints take and return."""
    endpoints = list(endpoints)
    shown = {kind for endpoint in endpoints for kind in endpoint.kinds}
    paths: Json = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _describe_operation(endpoint)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "Durable jobs for agents, commands and functions.",
        },
        "paths": paths,
        "components": {
            "schemas": _build_schemas(shown),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }
    return _rename_schemas(document)


def _describe_operation(endpoint: AnyEndpoint) -> Json:
    """Describe a route; of several kinds of request the first names it."""
    first = endpoint.kinds[0]
    name = first.operation_name or _WORD.sub("_", first.__name__).lower()
    described: Json = {
        "tags": [first.group],
        "summary": name.replace("_", " ").title(),
        "description": "\n\n".join(cleandoc(kind.__doc__ or "") for kind in endpoint.kinds),
        "operationId": re.sub(r"\W", "_", f"{name}{first.path}") + f"_{endpoint.method.lower()}",
        "parameters": list(_describe_parameters(endpoint.kinds)),
        "responses": _describe_responses(endpoint.kinds),
    }
    if (body := _describe_body(first)) is not None:
        described["requestBody"] = body
    return described


def _describe_parameters(kinds: Iterable[Kind]) -> Iterable[Json]:
    found: dict[str, Json] = {}
    layouts = [layout_of(kind) for kind in kinds]
    for layout in layouts:
        for name in layout.path:
            found[name] = _parameter(name, "path", {"type": "string"}, required=True)
        found |= {name: one for name, one in _describe_query(layout).items() if name not in found}
    yield from found.values()
    first = next(iter(kinds))
    yield from (_HEADERS[name] for name in layouts[0].headers.values() if name in _HEADERS)
    yield _REQUEST_ID
    if first.for_tenant:
        yield _TENANT


def _describe_query(layout: Layout) -> dict[str, Json]:
    if layout.query is None:
        return {}
    [_], schemas = msgspec.json.schema_components([layout.query], ref_template=SCHEMA_REF)
    schema = schemas[layout.query.__name__]
    json_schema_of(schema, layout.query)
    # A field that one kind of request requires chooses that kind: the route does without it.
    choosing = set(schema["required"])
    return {
        name: _parameter(
            name, "query", _nullable(one) if name in choosing else _correct_query_schema(one)
        )
        for name, one in schema["properties"].items()
    }


def _nullable(schema: Json) -> Json:
    return {"anyOf": [_correct_query_schema(schema), {"type": "null"}]}


def _parameter(name: str, place: str, schema: Json, *, required: bool = False) -> Json:
    return {"name": name, "in": place, "required": required, "schema": schema}


def _correct_query_schema(schema: Json) -> Json:
    """Correct the schema of a field for a query string, where all is text and null is left out."""
    if schema.get("default", ...) is None:
        schema = {name: one for name, one in schema.items() if name != "default"}
    if "anyOf" in schema:
        return schema | {"anyOf": [_correct_query_schema(one) for one in schema["anyOf"]]}
    return schema | {"type": "string"} if "enum" in schema else schema


def _describe_responses(kinds: Iterable[Kind]) -> Json:
    responses: Json = {"default": _content(ProblemDocument, (MEDIA,), "A problem")}
    for kind in kinds:
        for status, shown in replies_of(kind).items():
            code = str(status)
            if shown is None:
                responses[code] = {"description": "Done"}
            elif code in responses:
                content = responses[code]["content"]["application/json"]
                content["schema"] = {"anyOf": [content["schema"], _describe_result(shown)]}
            else:
                responses[code] = _content(shown, kind.media, "Done")
    return responses


def _content(shown: Any, media: Iterable[str], description: str) -> Json:
    content = {one: {"schema": _describe_result(shown if "json" in one else str)} for one in media}
    return {"description": description, "content": content}


def _describe_result(shown: Any) -> Json:
    if shown is str:
        return {"type": "string"}
    if shown is Rendered:
        return {"type": "object", "title": "In a dialect"}
    if choice := alternatives_of(shown):
        return {"anyOf": [_describe_result(one) for one in choice]}
    return {"$ref": SCHEMA_REF.format(name=shown.__name__)}


def _describe_body(kind: Kind) -> Json | None:
    layout = layout_of(kind)
    if layout.stream is not None:
        binary = {"schema": {"type": "string", "format": "binary"}}
        return {"required": True, "content": {layout.stream_media[0]: binary}}
    shown = whole_body_type(kind) or layout.body
    if shown is None:
        return None
    return {"required": True, "content": {"application/json": {"schema": _describe_result(shown)}}}


def _build_schemas(kinds: Iterable[Kind]) -> Json:
    """Return the schemas of all bodies, parameters and answers."""
    # By name: two kinds of request may have the same body.
    found: dict[str, Any] = {one.__name__: one for one in _shown_types(kinds)}
    found[ProblemDocument.__name__] = ProblemDocument
    queries = [layout.query for kind in kinds if (layout := layout_of(kind)).query is not None]
    types = [*found.values(), *(one.type for query in queries for one in fields(query))]
    _, schemas = msgspec.json.schema_components(types, ref_template=SCHEMA_REF)
    for struct in structs_of(found.values()):
        if struct.__name__ in schemas:
            json_schema_of(schemas[struct.__name__], struct)
    return schemas


def _shown_types(kinds: Iterable[Kind]) -> Iterable[type[Struct]]:
    """Find the types of all bodies and answers."""
    for kind in kinds:
        yield from list_body_alternatives(kind)
        for one in (whole_body_type(kind) or layout_of(kind).body, *replies_of(kind).values()):
            if isinstance(one, type) and issubclass(one, Struct) and one is not Rendered:
                yield one


def _rename_schemas(document: Json) -> Json:
    """Give schemas the names that clients know, where the class has another."""
    text = _REFERENCE.sub(
        lambda ref: f'"{SCHEMA_REF.format(name=_name(ref[1]))}"', json.dumps(document)
    )
    renamed: Json = json.loads(text)
    schemas = renamed["components"]["schemas"]
    renamed["components"]["schemas"] = {
        _name(name): one | {"title": _name(name)} if "title" in one else one
        for name, one in schemas.items()
    }
    return renamed


def _name(kind: str) -> str:
    return SCHEMA_NAMES.get(kind, kind)
