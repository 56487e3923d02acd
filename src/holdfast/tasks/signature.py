"""A function's signature as a pydantic model, made once: what a job's body must look like.

A body is one JSON object of named arguments; `*args` is a list under its name, `**kwargs` an object
under its name. An argument with a default may be missing: then the function's default is used.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from math import isfinite
from types import SimpleNamespace
from typing import Any, NamedTuple, NotRequired, Protocol, TypeAlias

import pydantic
from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic_core import (
    PydanticSerializationError,
    SchemaSerializer,
    SchemaValidator,
    to_jsonable_python,
)
from pydantic_core.core_schema import CoreConfig
from typing_extensions import TypedDict, Unpack

from holdfast.errors import BadData, BadTask, ValidationError
from holdfast.lifecycle.payload import Body, decode_body, encode_body, encode_plain

Bound: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

SHOWN_PROBLEMS = 5
"""How many problems one message lists."""
EMPTY = Body(b"{}")
NULL = Body(b"null")
_NOTHING = (b"{}", b"null", b"")
_CONFIG = CoreConfig(
    ser_json_bytes="base64",
    val_json_bytes="base64",
    ser_json_inf_nan="constants",
    hide_input_in_errors=True,
)
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Form(NamedTuple):
    """A pydantic model: how values are checked, and how they are written."""

    validator: SchemaValidator
    serializer: SchemaSerializer


class Shape(Protocol):
    """How one task's arguments and result are written and read."""

    def pack(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Body:
        """Validate the arguments of a call and write them as JSON."""

    def unpack(self, body: bytes | None) -> Bound:
        """Decode and validate the arguments of a call."""

    def pack_result(self, value: Any) -> Body:
        """Write a result as JSON."""

    def unpack_result(self, body: bytes | None) -> Any:
        """Read a result."""


_PLAIN = (bool, int, float, str)


class Signature:
    """The shape of a function in this process."""

    def __init__(self, task: str, fn: Callable[..., Any], context: type) -> None:
        """Read the signature; an annotation that JSON cannot carry is refused."""
        self._task = task
        read = _ResolvedSignature(task, fn, context)
        self.takes_context = read.takes_context
        self._parameters = read.parameters
        self._signature = inspect.Signature(list(read.parameters.values()))
        self._positional = [p.name for p in read.parameters.values() if p.kind in _BY_POSITION]
        self._names = read.parameters.keys()
        self.names = tuple(read.parameters)
        """The names of the arguments, in order, without the context."""
        self._required = read.required()
        kinds = {p.kind for p in read.parameters.values()}
        self._by_name = kinds <= {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
        self._loose = {name for name, hint in read.hints.items() if hint in (Any, object)}
        self._all_loose = len(self._loose) == len(read.hints) and self._by_name
        self._form = read.form()
        self._validate_json = self._form.validator.validate_json
        self._result = read.result_form()
        self._returns_none = read.returns is None or read.returns is type(None)
        # Values of exactly these types are JSON as they are: pydantic would only cost time.
        self._plain_result = read.returns if read.returns in _PLAIN else None
        self._plain = (
            dict(read.hints)
            if self._by_name and all(hint in _PLAIN for hint in read.hints.values())
            else None
        )
        # What all arguments together have, where each may be given by its place.
        self._plain_types = (
            tuple(read.hints.values())
            if self._plain and len(self._positional) == len(self.names)
            else None
        )

    def pack(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Body:
        """Validate the arguments of a call and write them as JSON."""
        if not kwargs and tuple(map(type, args)) == self._plain_types:
            plain = encode_plain(self.names, args)
            if plain is not None:
                return plain
        if not self._parameters and not args and not kwargs:
            return EMPTY
        named = self._name_arguments(args, kwargs)
        what = f"the arguments of {self._task}()"
        if self._all_loose or self._is_plain(named):
            return encode_body(named, what)
        try:
            checked = self._form.validator.validate_python(named)
        except pydantic.ValidationError as error:
            raise self._make_refusal(error) from error
        # What has no annotation is kept as it is, or refused: it could not be read back otherwise.
        loose = {name: checked[name] for name in self._loose & checked.keys()}
        return _encode(self._form, checked, what, loose)

    def unpack(self, body: bytes | None) -> Bound:
        """Decode and validate the arguments of a call."""
        if body is None or (len(body) <= 4 and body in _NOTHING):
            if not self._parameters:
                return (), {}
            body = b"{}"
        try:
            named: dict[str, Any] = self._validate_json(body)
        except pydantic.ValidationError as error:
            raise self._make_refusal(error) from error
        return ((), named) if self._by_name else self._place_arguments(named)

    def pack_result(self, value: Any) -> Body:
        """Encode a result as JSON, by the return annotation if there is one."""
        if type(value) is Body:
            return value  # it was encoded in another process, or by other rules
        if value is None and (self._returns_none or self._result is None):
            return NULL
        what = f"the result of {self._task}()"
        if self._result is None or type(value) is self._plain_result:
            return encode_body(value, what)
        try:
            checked = self._result.validator.validate_python(value)
        except pydantic.ValidationError as error:
            raise ValidationError(
                f"{what} does not match its annotation: {_list_problems(error)}"
            ) from error
        return _encode(self._result, checked, what)

    def unpack_result(self, body: bytes | None) -> Any:
        """Read a result, by the return annotation if there is one."""
        if self._result is None or body is None:
            return decode_body(body)
        try:
            return self._result.validator.validate_json(body)
        except pydantic.ValidationError as error:
            raise ValidationError(
                f"the result of {self._task}() does not match its annotation: "
                f"{_list_problems(error)}"
            ) from error

    def _name_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments by name. `Signature.bind` would take three times as long."""
        names = self._positional
        if self._by_name and len(args) <= len(names):
            named = {**dict(zip(names, args, strict=False)), **kwargs}
            whole = self._required <= named.keys() <= self._names
            if whole and len(named) == len(args) + len(kwargs):
                return named
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise ValidationError(f"invalid arguments of {self._task}(): {error}") from error

    def _is_plain(self, named: dict[str, Any]) -> bool:
        plain = self._plain
        return plain is not None and all(type(value) is plain[n] for n, value in named.items())

    def _place_arguments(self, named: dict[str, Any]) -> Bound:
        """Return arguments if some of them are positional-only or variadic."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        rest = self._rest_name()
        by_position = bool(rest and named.get(rest))
        for name, parameter in self._parameters.items():
            match parameter.kind:
                case Parameter.VAR_POSITIONAL:
                    args += named.get(name, ())
                case Parameter.VAR_KEYWORD:
                    kwargs |= named.get(name, {})
                case Parameter.POSITIONAL_ONLY:
                    args += self._find_positional(named, name)
                case Parameter.POSITIONAL_OR_KEYWORD if by_position:
                    args += self._find_positional(named, name)
                case _:
                    kwargs |= {name: named[name]} if name in named else {}
        return tuple(args), kwargs

    def _rest_name(self) -> str | None:
        rest = (n for n, p in self._parameters.items() if p.kind is Parameter.VAR_POSITIONAL)
        return next(rest, None)

    def _find_positional(self, named: dict[str, Any], name: str) -> list[Any]:
        """Return an argument that comes before others: a default keeps its place."""
        if name in named:
            return [named[name]]
        return [self._parameters[name].default]

    def _make_refusal(self, error: pydantic.ValidationError) -> ValidationError:
        problems = error.errors(include_url=False, include_context=False)
        missing = [str(p["loc"][0]) for p in problems if _is(p, "missing")]
        unknown = [str(p["loc"][0]) for p in problems if _is(p, "extra_forbidden")]
        if missing:
            text = f"{self._task}() lacks the argument {', '.join(map(repr, missing))}"
            return ValidationError(text, field=missing[0])
        if unknown:
            text = f"{self._task}() has no argument {', '.join(map(repr, unknown))}"
            return ValidationError(text, field=unknown[0])
        first = problems[0]["loc"]
        return ValidationError(
            f"invalid arguments of {self._task}(): {_list_problems(error)}",
            field=str(first[0]) if first else None,
        )


class UnknownSignature:
    """The shape of a task whose function is in another process: any JSON, by name."""

    takes_context = False

    def __init__(self, task: str) -> None:
        self._task = task

    def pack(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Body:
        """Write named arguments as JSON."""
        if args:
            raise ValidationError(
                f"the signature of {self._task}() is not known here: give its arguments by name"
            )
        return encode_body(dict(kwargs), f"the arguments of {self._task}()") if kwargs else EMPTY

    def unpack(self, body: bytes | None) -> Bound:
        """Read named arguments."""
        named = decode_body(body) or {}
        if not isinstance(named, dict):
            raise ValidationError(
                f"the body of {self._task}() must be an object of named arguments"
            )
        return (), named

    def pack_result(self, value: Any) -> Body:
        """Encode any JSON."""
        if type(value) is Body:
            return value
        return encode_body(value, f"the result of {self._task}()")

    def unpack_result(self, body: bytes | None) -> Any:
        """Read any JSON."""
        return decode_body(body)


class _ResolvedSignature:
    """The signature of a function, with its annotations resolved."""

    def __init__(self, task: str, fn: Callable[..., Any], context: type) -> None:
        self._task = task
        self._fn = fn
        parameters = self._read_signature().parameters
        first = next(iter(parameters.values()), None)
        self.takes_context = first is not None and self._is_context(first, context)
        skipped = 1 if self.takes_context else 0
        self.parameters = dict(list(parameters.items())[skipped:])
        self.hints = {n: self._resolve_hint(p.annotation, n) for n, p in self.parameters.items()}
        raw = self._read_signature().return_annotation
        self.returns = Any if raw is Parameter.empty else self._resolve_hint(raw, "return")

    def required(self) -> frozenset[str]:
        """Return the names of the arguments that a call must give."""
        gathered = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        return frozenset(
            name
            for name, parameter in self.parameters.items()
            if parameter.default is Parameter.empty and parameter.kind not in gathered
        )

    def form(self) -> Form:
        """Make the model of all arguments."""
        fields = {name: self._build_field(name) for name in self.parameters}
        make: Any = TypedDict
        form = make(self._task, fields)
        form.__pydantic_config__ = ConfigDict(extra="forbid", val_json_bytes="base64")
        return self._build_form(form, "an argument")

    def result_form(self) -> Form | None:
        """Make the model of the result; None if any JSON is valid."""
        if self.returns is Any:
            return None
        return self._build_form(self.returns, "the result")

    def _build_form(self, hint: Any, what: str) -> Form:
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(hint)
            # To check that JSON can express it: a callable validates, and could never be read back.
            adapter.json_schema()
        except (PydanticUserError, PydanticInvalidForJsonSchema) as error:
            raise BadTask(
                f"task {self._task!r}: {what} cannot be kept as JSON: {_first_line(error)}; "
                "annotate with types that pydantic can read and write"
            ) from error
        # Built again: an adapter accepts no settings for a type that brings its own.
        schema = adapter.core_schema
        return Form(SchemaValidator(schema, _CONFIG), SchemaSerializer(schema, _CONFIG))

    def _read_signature(self) -> inspect.Signature:
        try:
            return inspect.signature(self._fn)
        except (TypeError, ValueError) as error:
            raise BadTask(f"task {self._task!r} has no signature: {error}") from error

    def _build_field(self, name: str) -> Any:
        hint: Any = self.hints[name]
        parameter = self.parameters[name]
        match parameter.kind:
            case Parameter.VAR_POSITIONAL:
                return NotRequired[_of(list, hint)]
            case Parameter.VAR_KEYWORD if typing.get_origin(hint) in (Unpack, typing.Unpack):
                return NotRequired[typing.get_args(hint)[0]]
            case Parameter.VAR_KEYWORD:
                return NotRequired[_of(dict, str, hint)]
            case _:
                return hint if parameter.default is Parameter.empty else NotRequired[hint]

    def _is_context(self, first: Parameter, context: type) -> bool:
        if first.name in ("self", "cls"):
            raise BadTask(
                f"task {self._task!r}: a task is a function or a bound method, "
                f"and this takes {first.name!r}"
            )
        named = first.name == "ctx"
        try:
            hint = self._resolve_hint(first.annotation, first.name)
        except BadTask:
            # It may be imported for the type checker alone, which is fine for the context.
            text = str(first.annotation).rpartition(".")[2]
            if named or text == context.__name__:
                return True
            raise
        annotated = isinstance(hint, type) and issubclass(hint, context)
        if named and not annotated and isinstance(hint, type) and hint not in (Any, object):
            raise BadTask(
                f"task {self._task!r}: the parameter ctx is the context; annotate it as Context, "
                "or call the argument something else"
            )
        return named or annotated

    def _resolve_hint(self, annotation: Any, name: str) -> Any:
        if annotation is Parameter.empty:
            return Any
        scope = getattr(inspect.unwrap(self._fn), "__globals__", {})
        try:
            found = typing.get_type_hints(
                SimpleNamespace(__annotations__={name: annotation}), scope, include_extras=True
            )
        except (NameError, AttributeError, TypeError, SyntaxError) as error:
            raise BadTask(
                f"task {self._task!r}: the annotation of {name!r} cannot be resolved: {error}; "
                "define or import it at the top of the module, not in a function"
            ) from error
        return found[name]


def _of(container: Any, *items: Any) -> Any:
    """Write a container's type; spelled out, a checker would take the items for names of types."""
    return container[items]


def _encode(form: Form, value: Any, what: str, loose: Mapping[str, Any] | None = None) -> Body:
    try:
        plain = form.serializer.to_python(
            value, mode="json", exclude=set(loose) if loose else None, warnings="error"
        )
        body = encode_body({**plain, **loose} if loose else plain, what)
    except (PydanticSerializationError, UnicodeError, ValueError) as error:
        raise BadData(f"{what} cannot be kept as JSON: {_first_line(error)}") from error
    # Under an annotation such as `Any`, pydantic writes NaN as null. Only a null can hide one.
    if body.find(b"null") >= 0 and _loses_a_number(
        form.serializer.to_python(value, warnings=False)
    ):
        raise BadData(f"{what} holds NaN or an infinity, which JSON cannot represent")
    return body


def _loses_a_number(value: Any) -> bool:
    plain = to_jsonable_python(
        value, inf_nan_mode="constants", bytes_mode="base64", fallback=lambda _: None
    )
    return _holds_nonfinite(plain)


def _holds_nonfinite(plain: Any) -> bool:
    match plain:
        case float():
            return not isfinite(plain)
        case dict():
            return any(map(_holds_nonfinite, plain.values()))
        case list():
            return any(map(_holds_nonfinite, plain))
        case _:
            return False


def _is(problem: Mapping[str, Any], type_: str) -> bool:
    return problem["type"] == type_ and len(problem["loc"]) == 1


def _list_problems(error: pydantic.ValidationError) -> str:
    problems = error.errors(include_url=False, include_context=False)
    shown = [f"{_place(p['loc'])}{p['msg']}" for p in problems[:SHOWN_PROBLEMS]]
    more = len(problems) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")


def _place(location: Sequence[int | str]) -> str:
    return f"{'.'.join(map(str, location))}: " if location else ""


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
