"""The JSON of HTTP and of the command line: one format of times, spans and ids.

Inside, times are microseconds of the store's clock. In JSON a time is RFC 3339 in UTC, a span is a
text with its unit, and `id` is the public id of a job, with the internal one beside it as
`internal_id`. Values that users gave (arguments, payloads, results) are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
from msgspec import Raw, Struct

from holdfast.durations import instant, micros, span_micros, span_text

T = TypeVar("T")
_TIMES = frozenset(
    {"at", "lease_until", "not_before", "now", "since", "start_by", "ts", "until"},
)
_SPANS = frozenset({"ahead", "by"})
Format: TypeAlias = Literal["time", "span"]


def json_of(value: Any) -> Any:
    """Return what JSON shows of a value."""
    match value:
        case Struct():
            return _write_object(value)
        case Raw() | str() | int() | float() | None:
            return value
        case dict():
            return {str(json_of(key)): json_of(one) for key, one in value.items()}
        case list() | tuple() | frozenset() | set():
            return [json_of(one) for one in value]
        case _:
            return msgspec.to_builtins(value)


def read_json_as(data: Any, kind: type[T]) -> T:
    """Read what `json_of` wrote of a `kind`; raises msgspec.ValidationError if it does not fit."""
    return msgspec.convert(_read_inside(data, kind), kind)


def json_schema_of(schema: dict[str, Any], kind: type[Struct]) -> None:
    """Correct the schema that msgspec makes of a struct, where `json_of` writes it otherwise."""
    fields = _fields(kind)
    properties = schema.get("properties", {})
    for field, hint in fields.hints.items():
        if field in properties and datetime in (hint, *get_args(hint)):
            properties[field] = _dated(properties[field])
    for field, form in fields.formats.items():
        if field in properties:
            properties[field] = _correct_schema(properties[field], form)
    if fields.is_job and "internal_id" not in properties:
        properties["internal_id"] = properties.pop("id")
        properties["id"] = properties.pop("job_id")
        if "required" in schema:
            named = set(schema["required"]) - {"job_id"} | {"internal_id"}
            schema["required"] = sorted(named)


def structs_of(kinds: Iterable[Any]) -> set[type[Struct]]:
    """Return all structs that types are made of."""
    found: set[type[Struct]] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, Struct):
            if kind not in found:
                found.add(kind)
                waiting += _fields(kind).hints.values()
        else:
            waiting += [one for one in get_args(kind) if one is not Ellipsis]
    return found


def has_own_format(kind: Any) -> bool:
    """Return whether `json_of` writes a type otherwise than msgspec does."""
    return _has_own_format(kind, frozenset())


@cache
def _has_own_format(kind: Any, seen: frozenset[Any]) -> bool:
    if kind in seen:
        return False
    if isinstance(kind, type) and issubclass(kind, Struct):
        fields = _fields(kind)
        if fields.formats or fields.is_job:
            return True
        return any(_has_own_format(one, seen | {kind}) for one in fields.hints.values())
    if kind in (dict, list, tuple):
        return True
    return any(_has_own_format(one, seen) for one in get_args(kind) if one is not Ellipsis)


class _Fields(Struct, frozen=True):
    """What is to be known of a struct's fields."""

    hints: dict[str, Any]
    formats: dict[str, Format]
    is_job: bool
    """Its `id` is the internal one of a job, and it has a `job_id`, too."""


@cache
def _fields(kind: type[Struct]) -> _Fields:
    hints = get_type_hints(kind)
    hints = {name: hints[name] for name in kind.__struct_fields__}
    formats: dict[str, Format] = {}
    for name, hint in hints.items():
        if not (hint is int or int in get_args(hint)):
            continue
        if name.endswith("_at") or name in _TIMES:
            formats[name] = "time"
        elif name in _SPANS:
            formats[name] = "span"
    is_job = _is_uuid(hints.get("id")) and hints.get("job_id") is str
    return _Fields(hints, formats, is_job)


def _is_uuid(hint: Any) -> bool:
    return hint is UUID or getattr(hint, "__supertype__", None) is UUID


def _write_object(value: Struct) -> dict[str, Any]:
    kind = type(value)
    fields = _fields(kind)
    config = kind.__struct_config__
    shown: dict[str, Any] = {}
    if config.tag is not None and config.tag_field is not None:
        shown[config.tag_field] = config.tag
    for name in kind.__struct_fields__:
        one = getattr(value, name)
        form = fields.formats.get(name)
        if one is msgspec.UNSET:
            continue
        if form is None or one is None:
            shown[name] = json_of(one)
        else:
            shown[name] = msgspec.to_builtins(instant(one)) if form == "time" else span_text(one)
    if fields.is_job:
        shown["internal_id"] = shown["id"]
        shown["id"] = shown.pop("job_id")
    return shown


def _read_inside(data: Any, kind: Any) -> Any:
    """Turn what `json_of` wrote back into what msgspec reads as `kind`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        found = _choose_member(data, arguments)
        return data if found is None else _read_inside(data, found)
    if isinstance(data, list) and arguments:
        return [_read_inside(one, arguments[0]) for one in data]
    if isinstance(data, dict) and origin is dict:
        return {key: _read_inside(one, arguments[1]) for key, one in data.items()}
    if isinstance(data, dict) and isinstance(kind, type) and issubclass(kind, Struct):
        return _read_struct(data, kind)
    return data


def _read_struct(data: dict[str, Any], kind: type[Struct]) -> dict[str, Any]:
    fields = _fields(kind)
    given = dict(data)
    if fields.is_job and "internal_id" in given:
        given["job_id"], given["id"] = given["id"], given.pop("internal_id")
    for name, one in given.items():
        form = fields.formats.get(name)
        if form is not None and isinstance(one, str):
            date = form == "time"
            given[name] = micros(msgspec.convert(one, datetime)) if date else span_micros(one)
        elif name in fields.hints:
            given[name] = _read_inside(one, fields.hints[name])
    return given


def _choose_member(data: Any, kinds: tuple[Any, ...]) -> Any:
    """Choose the member of a union that data is of."""
    structs = [one for one in kinds if isinstance(one, type) and issubclass(one, Struct)]
    if isinstance(data, dict) and structs:
        for one in structs:
            config = one.__struct_config__
            if config.tag_field is None or data.get(config.tag_field) == config.tag:
                return one
        return None
    others = [one for one in kinds if one is not NoneType and one not in structs]
    return others[0] if len(others) == 1 else None


def _dated(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        return schema | {"anyOf": [_dated(one) for one in schema["anyOf"]]}
    return schema | {"format": "date-time"} if schema.get("type") == "string" else schema


def _correct_schema(schema: dict[str, Any], form: Format) -> dict[str, Any]:
    if "anyOf" in schema:
        return schema | {"anyOf": [_correct_schema(one, form) for one in schema["anyOf"]]}
    if schema.get("type") != "integer":
        return schema
    kept = {name: one for name, one in schema.items() if name in ("description", "title")}
    return kept | {"type": "string"} | ({"format": "date-time"} if form == "time" else {})
