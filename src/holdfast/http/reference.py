"""`/docs`: the OpenAPI document as a page for people, without scripts or foreign assets."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.http.endpoints import openapi

Json: TypeAlias = dict[str, Any]

POLICY = "default-src 'none'; style-src 'self'; frame-ancestors 'none'; base-uri 'none'"
"""Nothing but the stylesheet is loaded: a text of the document cannot become more than a text."""
_REF = "#/components/schemas/"


async def answer_document(request: Request) -> Response:
    """Answer with the OpenAPI document."""
    del request
    return Response(msgspec.json.encode(openapi()), media_type="application/json")


async def answer_page(request: Request) -> Response:
    """Answer with the page."""
    del request
    headers = {"content-security-policy": POLICY}
    return Response(_write_page(), media_type="text/html", headers=headers)


async def answer_style(request: Request) -> Response:
    """Answer with the page's stylesheet."""
    del request
    return Response(_style(), media_type="text/css", headers={"cache-control": "max-age=3600"})


@cache
def _style() -> str:
    return files("holdfast.http").joinpath("reference.css").read_text("utf-8")


# Made once: it takes many times as long as any other answer, and needs no token.
@cache
def _write_page() -> str:
    document = openapi()
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            tag = (route.get("tags") or ["other"])[0]
            groups.setdefault(tag, []).append(_write_route(method.upper(), path, route))
    info = document["info"]
    title = f"{escape(info['title'])} {escape(info['version'])}"
    links = "".join(f'<a href="#{_anchor(tag)}">{escape(tag)}</a>' for tag in groups)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f'<title>{title}</title><link rel="stylesheet" href="docs/style.css"></head><body>',
        f"<h1>{title}</h1><p>{escape(info.get('description', ''))} For programs: ",
        '<a href="openapi.json">openapi.json</a> (OpenAPI 3.1).</p>',
        "<p>Send a token as <code>Authorization: Bearer hf_…</code>, and bodies as ",
        "<code>Content-Type: application/json</code>.</p>",
        f'<nav>{links}<a href="#schemas">schemas</a></nav>',
    ]
    for tag, routes in groups.items():
        parts += [f'<h2 id="{_anchor(tag)}">{escape(tag)}</h2>', *routes]
    parts += ['<h2 id="schemas">schemas</h2>', *_write_schemas(document["components"]["schemas"])]
    return "".join([*parts, "</body></html>"])


def _write_route(method: str, path: str, route: Json) -> str:
    text = escape(route.get("description") or route.get("summary") or "")
    parts = [
        f"<details><summary><b>{method}</b> <code>{escape(path)}</code> ",
        f"{escape(route.get('summary', ''))}</summary><p>{text}</p>",
    ]
    if parameters := route.get("parameters"):
        rows = [
            (
                f"<code>{escape(one['name'])}</code>",
                one["in"],
                _write_kind(one["schema"]),
                _write_description(one),
            )
            for one in parameters
        ]
        parts.append(_table(("parameter", "in", "type", ""), rows))
    if body := route.get("requestBody"):
        parts.append(f"<p>Body: {_write_content(body)}</p>")
    answers = [(escape(status), _write_content(one)) for status, one in route["responses"].items()]
    parts += [_table(("status", "answer"), answers), "</details>"]
    return "".join(parts)


def _write_content(described: Json) -> str:
    kinds = [
        f"<code>{escape(media)}</code> {_write_kind(one.get('schema', {}))}"
        for media, one in described.get("content", {}).items()
    ]
    return "<br>".join(kinds) or escape(described.get("description", ""))


def _write_schemas(schemas: Json) -> Iterator[str]:
    for name, schema in sorted(schemas.items()):
        needed = set(schema.get("required", ()))
        rows = [
            (
                f"<code>{escape(field)}</code>{' *' if field in needed else ''}",
                _write_kind(one),
                _write_description(one),
            )
            for field, one in schema.get("properties", {}).items()
        ]
        table = _table(("field (* required)", "type", ""), rows) if rows else _write_kind(schema)
        yield (
            f'<details id="schema-{_anchor(name)}"><summary><code>{escape(name)}</code> '
            f"{escape(schema.get('description', ''))}</summary>{table}</details>"
        )


def _write_kind(schema: Json) -> str:
    """Write a type in a few words; a schema of its own is linked."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_REF)
        return f'<a href="#schema-{_anchor(name)}">{escape(name)}</a>'
    if found := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_write_kind(one) for one in found)
    if "enum" in schema:
        return " | ".join(f"<code>{escape(str(one))}</code>" for one in schema["enum"])
    if "const" in schema:
        return f"<code>{escape(str(schema['const']))}</code>"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_write_kind(schema.get('items', {}))}"
    return escape(" ".join(filter(None, [str(kind), schema.get("format", "")])))


def _write_description(described: Json) -> str:
    schema = described.get("schema", described)
    text = described.get("description") or schema.get("description") or ""
    if (default := schema.get("default")) in (None, [], {}):
        return escape(text)
    return escape(f"{text} (default {default})")


def _table(heads: tuple[str, ...], rows: list[Any]) -> str:
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="deep"><table><tr>{head}</tr>{body}</table></div>'


def _anchor(name: str) -> str:
    return "".join(one if one.isalnum() else "-" for one in name)
