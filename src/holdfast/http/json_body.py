"""Requests and answers as bytes: read strictly, with the field that is invalid; written once."""

from __future__ import annotations

import re
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import fields
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import UnsupportedMedia, ValidationError
from holdfast.lifecycle.payload import BODY_LIMIT, DEPTH_LIMIT, has_twins
from holdfast.operations.http_format import alternatives_of, view_of
from holdfast.operations.json_format import has_own_format, json_of

T = TypeVar("T")
JSON = "application/json"
_encoder = msgspec.json.Encoder()


def read_json(text: bytes, kind: type[T], *, root: str = "$") -> T:
    """Read JSON text as `kind`; ValidationError names an invalid field by its path from `root`."""
    try:
        found: T = _decoder(kind).decode(text)
        # The decoder keeps the last of two equal keys; a proxy in between may read the first. For
        # a text that is larger than any one job this would take too much memory: there only the
        # bodies of jobs are checked, one by one.
        twins = len(text) <= BODY_LIMIT and has_twins(text)
    except RecursionError as error:
        raise ValidationError(f"the body is nested deeper than {DEPTH_LIMIT} levels") from error
    except msgspec.ValidationError as error:
        raise _decoder_error(str(error), root) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValidationError(f"the body is not JSON: {error}") from error
    if twins:
        raise ValidationError("the body has the same key twice in one object")
    return found


def _decoder_error(text: str, root: str) -> ValidationError:
    """Return what a decoder reports: its path first, and the name of a field that has none."""
    message, found, path = text.rpartition(" - at `$")
    place = root + path.removesuffix("`") if found else root
    message = message if found else text
    named = NAMED_FIELD.fullmatch(message)
    detail = message if place == "$" else f"{place}: {message}"
    if named is not None:
        return ValidationError(detail, field=f"{place}.{named[1]}")
    return ValidationError(detail, field=None if place == "$" else place)


NAMED_FIELD = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`", re.DOTALL)


def answer(value: Any, status: int = 200, **headers: str) -> Response:
    """Answer with a value as JSON."""
    value = view_of(value)
    if has_own_format(type(value)):
        value = json_of(value)
    return Response(_encoder.encode(value), status, headers=headers or None, media_type=JSON)


def check_media(request: Request) -> None:
    """Refuse a body that is not announced as JSON.

    Without that header a browser sends a body to any address, for any page, without asking first.
    """
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != JSON and not media.endswith("+json"):
        what = "the request has no Content-Type" if not media else f"the body is {media!r}"
        raise UnsupportedMedia(f"{what}; send JSON with `Content-Type: {JSON}`")


class _Decoder(Protocol):
    def decode(self, text: bytes, /) -> Any: ...


class _EitherDecoder:
    """Reads one of several structs: one if the text has the field that only that one requires.

    The first is tried first: most are of its kind, and cost nothing more.
    """

    def __init__(self, first: type[Struct], *others: type[Struct]) -> None:
        self._first = msgspec.json.Decoder(first)
        self._others: dict[str, _Decoder] = {}
        for one in others:
            [choosing] = _required(one) - _required(first)
            self._others[choosing] = msgspec.json.Decoder(one)

    def decode(self, text: bytes, /) -> Any:
        try:
            return self._first.decode(text)
        except msgspec.ValidationError:
            found = msgspec.json.decode(text)
            names = found if isinstance(found, dict) else ()
            chosen = next((self._others[name] for name in self._others if name in names), None)
            if chosen is None:
                raise
        return chosen.decode(text)


def _required(kind: type[Struct]) -> set[str]:
    return {one.name for one in fields(kind) if one.required}


def _make_decoder(kind: Any) -> _Decoder:
    choice = alternatives_of(kind)
    return _EitherDecoder(*choice) if choice else msgspec.json.Decoder(kind)


_DECODERS: dict[Any, _Decoder] = {}


def _decoder(kind: Any) -> _Decoder:
    return _DECODERS.get(kind) or _DECODERS.setdefault(kind, _make_decoder(kind))
