"""Query strings, read as people write them: numbers, ids and dates have several spellings.

What is not one of them is refused, with the name of the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeAlias, TypeVar, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec.structs import fields
from starlette.datastructures import QueryParams

from holdfast.errors import ValidationError
from holdfast.http.json_body import NAMED_FIELD

Q = TypeVar("Q", bound=msgspec.Struct)
Spelling: TypeAlias = Callable[[str], Any]
"""Returns the value of a text; if the text has none, returns the text or raises ValueError."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_SECONDS = 20_000_000_000
"""A larger number is a time in milliseconds since 1970."""

_INTEGER = re.compile(r"\s*([+-]?\d+(?:_\d+)*)(?:\.0+)?\s*", re.ASCII)
_TIMESTAMP = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)", re.ASCII)
_DATE = re.compile(
    r"(?P<day>[\d-]+)[Tt _](?P<minute>\d\d:\d\d)"
    r"(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d+))?)?(?P<zone>(?:[Zz+-].*)?)",
    re.ASCII,
)


def read_query(params: QueryParams, kind: type[Q]) -> Q:
    """Read the parameters of `kind` from a query string; ValidationError names an invalid one."""
    lists, spellings = _shape(kind)
    given: dict[str, Any] = {}
    for name in kind.__struct_fields__:
        if name in lists and name in params:
            given[name] = params.getlist(name)
        elif name in params:
            given[name] = _read(params[name], spellings.get(name))
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error


def _invalid(text: str) -> ValidationError:
    message, found, path = text.rpartition(" - at `$.")
    if found:
        field = path.removesuffix("`").replace("[", ".").replace("]", "")
        return ValidationError(f"{field}: {message}", field=field)
    named = NAMED_FIELD.fullmatch(text)
    return ValidationError(text, field=named[1] if named else None)


def _read(text: str, spelling: Spelling | None) -> Any:
    try:
        return text if spelling is None else spelling(text)
    except (ValueError, OverflowError):
        return text


@cache
def _shape(kind: type[msgspec.Struct]) -> tuple[frozenset[str], dict[str, Spelling]]:
    """Return the fields that may be given several times, and how texts of the others are read."""
    lists = frozenset(one.name for one in fields(kind) if get_origin(one.type) is tuple)
    spellings = {
        one.name: _SPELLINGS[found]
        for one in fields(kind)
        for found in _types(one.type)
        if one.name not in lists and found in _SPELLINGS
    }
    return lists, spellings


def _types(hint: Any) -> Iterator[Any]:
    """Return the types that a hint is made of."""
    hint = getattr(hint, "__supertype__", hint)
    yield hint
    for one in get_args(hint):
        yield from _types(one)


def _integer(text: str) -> Any:
    found = _INTEGER.fullmatch(text)
    return int(found[1]) if found else text


def _float(text: str) -> Any:
    return float(text) if text.isascii() else text


def _uuid(text: str) -> str:
    braced = text.startswith("{") and text.endswith("}")
    return text[1:-1] if braced else text.removeprefix("urn:uuid:")


def _moment(text: str) -> Any:
    if _TIMESTAMP.fullmatch(text):
        number = float(text)
        in_seconds = abs(number) <= MOST_SECONDS
        return EPOCH + (timedelta(seconds=number) if in_seconds else timedelta(milliseconds=number))
    found = _DATE.fullmatch(text)
    if found is None:
        return text
    day, minute, second, fraction, zone = found.groups()
    return f"{day}T{minute}:{second or '00'}.{(fraction or '0')[:6]}{zone}"


_SPELLINGS: dict[Any, Spelling] = {int: _integer, float: _float, UUID: _uuid, datetime: _moment}
