"""Names in paths, which may hold a slash: `%2F` belongs to the name, `/` to the path."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from pydantic import BeforeValidator
from starlette.types import Scope

_SLASH = "\ud800"
"""Stands for a name's slash until its route has it. No path decodes to it: it is no character."""


def keep_slashes(scope: Scope) -> Scope:
    """Give a request of which no name is taken for two pieces of the path."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return scope
    pieces = raw.decode("latin-1").split("/")
    return {**scope, "path": "/".join(unquote(one).replace("/", _SLASH) for one in pieces)}


def shown(path: str) -> str:
    """Write a path down for a person."""
    return path.replace(_SLASH, "%2F")


def _read(text: str) -> str:
    return text.replace(_SLASH, "/")


Name = Annotated[str, BeforeValidator(_read)]
"""A piece of a path that is somebody's name."""
