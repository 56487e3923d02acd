"""The OpenAPI document without its prose: what a client depends on, to be compared as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("openapi.txt")
_PROSE = ("description", "summary", "title")
_UNORDERED = ("required", "enum", "tags")


def bare(node: Any, *, names: bool = False) -> Any:
    """Return a document without prose, in a stable order; `names`: its keys are names of fields."""
    if isinstance(node, list):
        return [bare(one) for one in node]
    if not isinstance(node, dict):
        return node
    found: dict[str, Any] = {}
    for key in sorted(node):
        if not names and key in _PROSE and isinstance(node[key], str):
            continue
        one = bare(node[key], names=key in ("properties", "schemas") and not names)
        if not names and key in _UNORDERED:
            one = sorted(one) if isinstance(one, list) else one
        if not names and key == "parameters":
            one = sorted(one, key=lambda parameter: (parameter["in"], parameter["name"]))
        found[key] = one
    return found


def written(document: Any) -> str:
    """Write a bare document with a line for each route and each schema, so that a change shows."""
    lines = [
        f"{section} {name} {json.dumps(one)}"
        for section, found in (
            ("schema", document["components"]["schemas"]),
            *((path, methods) for path, methods in document["paths"].items()),
        )
        for name, one in sorted(found.items())
    ]
    rest = {
        "openapi": document["openapi"],
        "security": document["security"],
        "securitySchemes": document["components"]["securitySchemes"],
    }
    return "\n".join([json.dumps(rest), *lines, ""])
