"""How a step's result is written and read, by the annotation of what returns it."""

from __future__ import annotations

import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pydantic

from holdfast.errors import BadData
from holdfast.lifecycle.payload import Body, decode_body, encode_body


class StepCodec:
    """Writes and reads the results of one step."""

    def __init__(self, hint: Any) -> None:
        """`Any` is kept as plain JSON."""
        self._adapter = None if hint in (Any, None) else pydantic.TypeAdapter(hint)

    def pack(self, value: Any) -> Body:
        """Write a result; BadData if it cannot be kept."""
        if self._adapter is None:
            return encode_body(value, "the result")
        try:
            plain = self._adapter.dump_python(value, mode="json", warnings="error")
        except (pydantic.ValidationError, ValueError) as error:
            raise BadData(str(error).partition("\n")[0]) from error
        return encode_body(plain, "the result")

    def unpack(self, body: bytes | None) -> Any:
        """Read a result."""
        if body is None or self._adapter is None:
            return decode_body(body)
        return self._adapter.validate_json(body)


PLAIN = StepCodec(Any)


def codec_of(fn: Callable[..., Any]) -> StepCodec:
    """Return how a function's results are kept: by its return annotation, else as plain JSON."""
    try:
        return _build_codec(fn)
    except TypeError:  # it cannot be hashed
        return PLAIN


@lru_cache(maxsize=1024)
def _build_codec(fn: Callable[..., Any]) -> StepCodec:
    try:
        hint = typing.get_type_hints(fn, include_extras=True).get("return", Any)
        return StepCodec(hint)
    except (NameError, AttributeError, TypeError, pydantic.PydanticUserError):
        return PLAIN
