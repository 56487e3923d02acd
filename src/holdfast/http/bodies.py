"""Requests and answers as bytes: read strictly, written once, told apart by field where unfit."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.errors import UnsupportedMedia, ValidationError
from holdfast.json_format import has_own_format, json_of
from holdfast.lifecycle.job import Job
from holdfast.lifecycle.payload import BODY_LIMIT, DEPTH_LIMIT, has_twins
from holdfast.views import JobView, micros

T = TypeVar("T")
JSON = "application/json"
_encoder = msgspec.json.Encoder()


def read_json(text: bytes, kind: type[T], *, root: str = "$") -> T:
    """Read JSON text as `kind`; what does not fit is named, by its path from `root` on."""
    try:
        found: T = _decoder(kind).decode(text)
        # The decoder keeps the last of two equal keys; whoever stands between may read the first.
        # Of what is larger than any one job, this would take too much memory: there only bodies
        # of jobs are looked at, one by one.
        twins = len(text) <= BODY_LIMIT and has_twins(text)
    except RecursionError as error:
        raise ValidationError(f"the body is nested deeper than {DEPTH_LIMIT} levels") from error
    except msgspec.ValidationError as error:
        raise _misfit(str(error), root) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValidationError(f"the body is not JSON: {error}") from error
    if twins:
        raise ValidationError("the body has the same key twice in one object")
    return found


def unfit(message: str, field: str | None) -> ValidationError:
    """Say what does not fit, and where."""
    return ValidationError(message, field=field)


def _misfit(said: str, root: str) -> ValidationError:
    """Tell what a decoder says: its path first, and of a field without one the name."""
    message, found, path = said.rpartition(" - at `$")
    place = root + path.removesuffix("`") if found else root
    message = message if found else said
    named = _NAMED.fullmatch(message)
    text = message if place == "$" else f"{place}: {message}"
    if named is not None:
        return unfit(text, f"{place}.{named[1]}")
    return unfit(text, None if place == "$" else place)


_NAMED = re.compile(r"Object (?:contains unknown|missing required) field `(.*)`", re.DOTALL)


def read_instant(date: datetime | None, name: str) -> int | None:
    """Read a date of a request as a time of the store's clock."""
    if date is None:
        return None
    if date.tzinfo is None:
        raise unfit(f"{name} must say its time zone", name)
    return micros(date)


def answer(value: Any, status: int = 200, **headers: str) -> Response:
    """Answer with a value as JSON."""
    if has_own_format(type(value)):
        value = json_of(value)
    return Response(_encoder.encode(value), status, headers=headers or None, media_type=JSON)


def answer_job(record: Job, status: int = 200) -> Response:
    """Answer with a job, and with its revision for `If-Match`."""
    return answer(JobView.of(record), status, etag=f'"{record.rev}"')


def check_media(request: Request) -> None:
    """Refuse a body that is not announced as JSON.

    Without that header a browser sends a body to any address, for any page, without asking first.
    """
    said = request.headers.get("content-type")
    media = (said or "").partition(";")[0].strip().lower()
    if media != JSON and not media.endswith("+json"):
        what = "the request has no Content-Type" if not media else f"the body is {media!r}"
        raise UnsupportedMedia(f"{what}; send JSON with `Content-Type: {JSON}`")


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return _DECODERS.get(kind) or _DECODERS.setdefault(kind, msgspec.json.Decoder(kind))
