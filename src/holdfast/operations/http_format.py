"""The HTTP format of requests and results: one description for server and client.

Everything here follows from a request's class: see `request.Request`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import quote

import msgspec
from msgspec import NODEFAULT, Meta, Raw, Struct, defstruct
from msgspec.structs import FieldInfo, fields

from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.record import Record
from holdfast.operations.json_format import has_own_format, read_json_as
from holdfast.operations.request import InHeader, Request, StreamedBody, WholeBody
from holdfast.operations.views import (
    Explanation,
    JobList,
    JobOutcome,
    JobView,
    Receipt,
    Rendered,
    Result,
)
from holdfast.ports.models import Page, Submitted
from holdfast.queries.why.why import Why

R = TypeVar("R")
SCHEMA_REF = "#/components/schemas/{name}"
_IN_PATH = re.compile(r"{(\w+)}")


class Layout(Struct, frozen=True, kw_only=True):
    """Where the fields of one kind of request go."""

    path: tuple[str, ...]
    rest: str | None
    """The name that is all of the rest of the path, slashes included: a second one, at its end."""
    headers: dict[str, str]
    """Names of headers by field."""
    whole_body: str | None
    """The field that is the whole body."""
    stream: str | None
    """The field whose bytes are the body."""
    stream_media: tuple[str, ...]
    query: type[Struct] | None
    body: type[Struct] | None


class WrittenRequest(Struct, frozen=True, kw_only=True):
    """A request as it is sent over HTTP; the values of its headers are not written yet."""

    path: str
    query: list[tuple[str, str]]
    headers: dict[str, Any]
    body: Any
    stream: AsyncIterable[bytes] | None = None
    """The body, where it is sent piece by piece; then `media` is its type."""
    media: str | None = None


@cache
def layout_of(kind: type[Request[Any]]) -> Layout:
    """Derive the layout of a kind of request from its class."""
    marks = {name: _marks(hint) for name, hint in get_type_hints(kind, include_extras=True).items()}
    path = tuple(_IN_PATH.findall(kind.path or ""))
    headers, whole, others = {}, None, []
    stream: str | None = None
    media: tuple[str, ...] = ()
    for one in fields(kind):
        for mark in marks[one.name]:
            if isinstance(mark, InHeader):
                headers[one.name] = mark.name
            elif isinstance(mark, WholeBody):
                whole = one.name
            elif isinstance(mark, StreamedBody):
                stream, media = one.name, mark.media
        if one.name not in (*path, *headers, whole, stream):
            others.append(one)
    in_body = kind.method == "POST"
    return Layout(
        path=path,
        rest=path[-1] if len(path) > 1 else None,
        headers=headers,
        whole_body=whole,
        stream=stream,
        stream_media=media,
        query=None if in_body else _make_struct(f"{kind.__name__}Query", others, kind),
        body=_make_struct(kind.body_name, others, kind) if in_body and kind.body_name else None,
    )


def whole_body_type(kind: type[Request[Any]]) -> Any:
    """Return the type of the field that is a request's whole body; None if there is none.

    It may be a union of structs: see `alternatives_of`.
    """
    name = layout_of(kind).whole_body
    return None if name is None else get_type_hints(kind)[name]


def alternatives_of(hint: Any) -> tuple[type[Struct], ...]:
    """Return the structs of a union of several without tags: a decoder cannot distinguish them."""
    members = get_args(hint) if isinstance(hint, UnionType) else ()
    structs = (one for one in members if isinstance(one, type) and issubclass(one, Struct))
    untagged = tuple(one for one in structs if one.__struct_config__.tag is None)
    return untagged if len(untagged) > 1 else ()


def list_body_alternatives(kind: type[Request[Any]]) -> Iterable[type[Struct]]:
    """Return the structs of such unions in a request's body."""
    for hint in get_type_hints(kind).values():
        for one in (hint, *get_args(hint)):
            yield from alternatives_of(one)


def _marks(hint: Any) -> Sequence[Any]:
    return getattr(hint, "__metadata__", ())


def _make_struct(name: str, chosen: Iterable[FieldInfo], kind: type[Request[Any]]) -> type[Struct]:
    hints = get_type_hints(kind, include_extras=True)
    return defstruct(
        name,
        [_field(one, hints[one.name]) for one in chosen],
        namespace={"__doc__": kind.__doc__},
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


def _field(one: FieldInfo, hint: Any) -> Any:
    if get_origin(hint) is Sequence and (choice := alternatives_of(get_args(hint)[0])):
        # Each is read by itself, once it is known which of them it is.
        refs = [{"$ref": SCHEMA_REF.format(name=each.__name__)} for each in choice]
        hint = list[Annotated[Raw, Meta(extra_json_schema={"anyOf": refs})]]
    if one.default_factory is not NODEFAULT:
        return one.name, hint, msgspec.field(default_factory=one.default_factory)
    return (one.name, hint) if one.default is NODEFAULT else (one.name, hint, one.default)


def write_request(request: Request[Any]) -> WrittenRequest:
    """Write a request for HTTP; raise BadData if a part of the path is not a name."""
    kind = type(request)
    layout = layout_of(kind)
    path = kind.path or ""
    for name in layout.path:
        text = str(getattr(request, name))
        pieces = text.split("/") if name == layout.rest else [text]
        written = "/".join(_segment(piece, name) for piece in pieces)
        path = path.replace(f"{{{name}}}", written)
    body: Any = None
    if layout.whole_body is not None:
        body = getattr(request, layout.whole_body)
    elif layout.body is not None:
        body = {name: getattr(request, name) for name in layout.body.__struct_fields__}
    query = () if layout.query is None else layout.query.__struct_fields__
    return WrittenRequest(
        path=path,
        query=[pair for name in query for pair in _write_pairs(name, getattr(request, name))],
        headers={header: getattr(request, name) for name, header in layout.headers.items()},
        body=body,
        stream=None if layout.stream is None else getattr(request, layout.stream),
        media=next(iter(layout.stream_media), None),
    )


def _segment(text: str, what: str) -> str:
    """Write a name as one piece of a path, whatever it is made of."""
    quoted = quote(check_text(text, what), safe="")
    return quoted.replace(".", "%2E") if text in (".", "..") else quoted


def _write_pairs(name: str, value: Any) -> Iterable[tuple[str, str]]:
    match value:
        case None:
            return []
        case tuple() | list():
            return [pair for one in value for pair in _write_pairs(name, one)]
        case Enum():
            text = str(value.value)
        case datetime():
            text = value.isoformat()
        case float():
            text = f"{value:.3f}"
        case _:
            text = str(value)
    return [(name, text)]


def replies_of(kind: type[Request[Any]]) -> dict[int, Any]:
    """Return the types of a request's answers by status; None: it has no body."""
    return {kind.status: kind.reply} | dict(kind.also)


def view_of(result: Any) -> Any:
    """Return what JSON shows of a result, where that is not the result itself."""
    view = _VIEWS.get(type(result))
    return result if view is None else view(result)


def read_result(kind: type[Request[R]], status: int, text: bytes) -> R:
    """Read a reply as a result; raise msgspec.MsgspecError if it is not one."""
    shown = replies_of(kind)[status]
    view: Any
    if shown is Rendered:
        view = Rendered(document=msgspec.json.decode(text))
    elif has_own_format(shown):
        view = read_json_as(msgspec.json.decode(text), shown)
    else:
        view = msgspec.json.decode(text, type=shown)
    read = _RESULTS.get(shown)
    result: R = view if read is None else read(view)
    return result


_VIEWS: dict[type, Callable[[Any], Any]] = {
    Record: JobView.of,
    Page: JobList.of,
    JobOutcome: Result.of,
    Submitted: Receipt.of,
    Why: Explanation.of,
    Rendered: lambda rendered: rendered.document,
}
_RESULTS: dict[type, Callable[[Any], Any]] = {
    JobView: JobView.record,
    JobList: JobList.page,
    Result: Result.outcome,
    Receipt: Receipt.submitted,
    Explanation: lambda explanation: explanation.why,
}


def result_type(kind: type[Request[R]]) -> Any:
    """Return the `R` that a request is of."""
    for base in kind.__mro__:
        for one in getattr(base, "__orig_bases__", ()):
            if get_args(one) and not isinstance(get_args(one)[0], TypeVar):
                return get_args(one)[0]
    raise TypeError(f"{kind.__name__} does not declare what it returns")
