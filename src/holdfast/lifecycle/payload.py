"""What may be kept: JSON of bounded size and depth, text without NUL and lone surrogates.

Everything is checked before anything is written, so that one bad value never fails another job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import isfinite
from typing import Any, cast

import msgspec

from holdfast.errors import BadData
from holdfast.lifecycle.times import HORIZON, LAST_INSTANT, LONGEST_SPAN, After, Time

BODY_LIMIT = 1024 * 1024
DEPTH_LIMIT = 64
TEXT_LIMIT = 1000
LABELS_LIMIT = 16 * 1024
INTEGER_LIMIT = 2**63
NUMBER_LIMIT = 2**31 - 1
DIGEST_SIZE = 16


class Body(bytes):
    """JSON text that was checked, so that it is not checked again."""


def encode_body(value: Any, what: str = "payload", *, limit: int = BODY_LIMIT) -> Body:
    """Return a value as JSON text; raise BadData if it cannot be kept."""
    try:
        _check_value(value, what, DEPTH_LIMIT)
        text = msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise BadData(f"{what} holds a lone surrogate, which is not text") from error
    if len(text) > limit:
        raise BadData(f"{what} is {len(text):,} bytes of JSON; the limit is {limit:,}")
    return Body(text)


def encode_plain(names: Sequence[str], values: Sequence[Any]) -> Body | None:
    """Return texts, numbers and booleans by name as JSON text; None where `encode_body` must look.

    The names must be names of Python, as many as there are values, which have no subclass's type.
    """
    for value in values:
        kind = type(value)
        if kind is str:
            if "\0" in value:
                return None
        elif kind is int:
            if not -INTEGER_LIMIT <= value < INTEGER_LIMIT:
                return None
        elif kind is float and not isfinite(value):
            return None
    try:
        text = _write(dict(zip(names, values)))  # noqa: B905  `strict` takes as long as all the rest
    except UnicodeEncodeError:
        return None
    return None if len(text) > BODY_LIMIT else Body(text)


_write = msgspec.json.Encoder().encode


def sound_body(body: bytes, what: str = "payload") -> bytes:
    """Return a body as plain bytes, unchanged; raise BadData if it is not JSON that may be kept."""
    if type(body) is Body:
        return body[:]  # a slice of a subclass is plain bytes
    if type(body) is not bytes:
        raise BadData(f"{what} must be bytes of JSON text, not {type(body).__name__}")
    if body != b"null":
        check_body(body, what)
    return body


def check_body(text: bytes, what: str = "payload", *, limit: int = BODY_LIMIT) -> Body:
    """Check JSON text that was written elsewhere; one that was checked is returned as it is."""
    if type(text) is Body and len(text) <= limit:
        return text
    if len(text) > limit:
        raise BadData(f"{what} is {len(text):,} bytes of JSON; the limit is {limit:,}")
    try:
        value = msgspec.json.decode(text)
    except RecursionError as error:
        raise BadData(f"{what} is nested deeper than {DEPTH_LIMIT} levels") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadData(f"{what} is not JSON: {error}") from error
    kept = encode_body(value, what, limit=limit)
    # The decoder keeps the last of two equal keys, and readers disagree about which one counts.
    if kept != text and _pairs(kept) != _pairs(text):
        raise BadData(f"{what} has the same key twice in one object")
    return kept


def has_twins(text: bytes) -> bool:
    """Return whether JSON text that can be read has the same key twice in one object."""
    return _pairs(msgspec.json.encode(msgspec.json.decode(text))) != _pairs(text)


def _pairs(text: bytes) -> int:
    return _STRING.sub(b"", text).count(b":")


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')


def decode_body(text: bytes | str | None) -> Any:
    """Read JSON text back."""
    return None if text is None else msgspec.json.decode(text)


def check_text(value: Any, what: str, *, limit: int = TEXT_LIMIT, empty: bool = False) -> str:
    """Check a name, key or reason: real text of bounded length."""
    if type(value) is not str:
        raise BadData(f"{what} must be text, not {type(value).__name__}")
    if not value and not empty:
        raise BadData(f"{what} must not be empty")
    if len(value) > limit:
        raise BadData(f"{what} has {len(value):,} characters; the limit is {limit:,}")
    _check_characters(value, what)
    return value


def check_number(value: Any, what: str, *, low: int = 1, high: int = NUMBER_LIMIT) -> int:
    """Check a whole number."""
    if type(value) is not int:
        raise BadData(f"{what} must be a whole number, not {value!r}")
    if not low <= value <= high:
        raise BadData(f"{what} must be between {low:,} and {high:,}, not {value:,}")
    return value


def check_time(value: Any, what: str) -> Time:
    """Check an instant or a span: it cannot be taken for the other, or overflow."""
    if type(value) is After:
        if type(value.micros) is not int or abs(value.micros) >= HORIZON:
            raise BadData(
                f"the span of {what} must be under {LONGEST_SPAN}, in whole microseconds, "
                f"not {value.micros!r}"
            )
    elif type(value) is not int:
        raise BadData(f"{what} must be an instant in microseconds or After(…), not {value!r}")
    elif not HORIZON <= value <= LAST_INSTANT:
        raise BadData(
            f"{what} must be microseconds since 1970, between the years 1985 and 9999, "
            f"not {value}; use After(…) for a span"
        )
    return cast("Time", value)


def check_labels(labels: Any, what: str = "labels") -> dict[str, str]:
    """Check a small mapping of text to text. Names have no `=`: filters are written NAME=TEXT."""
    if not isinstance(labels, Mapping):
        raise BadData(f"{what} must be a mapping, not {type(labels).__name__}")
    checked = {
        check_text(key, f"a key of {what}", limit=200): check_text(
            value, f"{what}[{key!r}]", empty=True
        )
        for key, value in labels.items()
    }
    for key in checked:
        if "=" in key:
            raise BadData(f"a key of {what} must not contain '=': {key!r}")
    size = sum(len(key) + len(value) for key, value in checked.items())
    if size > LABELS_LIMIT:
        raise BadData(f"{what} hold {size:,} characters; the limit is {LABELS_LIMIT:,}")
    return checked


def digest(text: bytes) -> bytes:
    """Return the digest of a body, by a hash that PostgreSQL has, too."""
    return _NULL if text == b"null" else sha256(text).digest()[:DIGEST_SIZE]


_NULL = sha256(b"null").digest()[:DIGEST_SIZE]


def _check_value(value: Any, what: str, depth: int) -> None:
    kind = type(value)
    if kind is str:
        _check_nul(value, what)
    elif kind is int:
        if not -INTEGER_LIMIT <= value < INTEGER_LIMIT:
            raise BadData(f"{what} holds an integer beyond 64 bits")
    elif kind is float:
        if not isfinite(value):
            raise BadData(f"{what} holds {value!r}, which JSON cannot represent")
    elif value is not None and kind is not bool:
        _check_container(value, what, depth)


def _check_container(value: Any, what: str, depth: int) -> None:
    if depth == 0:
        raise BadData(f"{what} is nested deeper than {DEPTH_LIMIT} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise BadData(f"{what} has a key that is not text: {key!r}")
            _check_nul(key, what)
            _check_value(item, what, depth - 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_value(item, what, depth - 1)
    else:
        raise BadData(f"{what} holds a {type(value).__name__}, which is not JSON")


def _check_nul(value: str, what: str) -> None:
    if "\0" in value:
        raise BadData(f"{what} holds a NUL character, which no database text can hold")


def _check_characters(value: str, what: str) -> None:
    _check_nul(value, what)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadData(f"{what} holds a lone surrogate, which is not text") from error
