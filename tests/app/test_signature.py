"""Arguments: a signature is the form of a job's body, at submit and before the call."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack
from uuid import UUID

import pytest
import typing_extensions
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from holdfast.errors import BadData, BadTask, ValidationError
from holdfast.lifecycle.payload import BODY_LIMIT, Body
from holdfast.tasks.context import Context
from holdfast.tasks.signature import Signature, UnknownSignature

if TYPE_CHECKING:
    from tests.app.nowhere import Missing  # type: ignore[import-not-found]


class Colour(Enum):
    RED = "red"


class Order(BaseModel):
    id: int
    lines: list[str] = []
    note: Any = None


@dataclass
class Point:
    x: float
    y: float


class Extras(TypedDict, total=False):
    size: int


def shape(fn: Callable[..., Any]) -> Signature:
    return Signature(getattr(fn, "__name__", "task"), fn, Context)


def round_trip(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Pack a call, unpack it, and make it."""
    form = shape(fn)
    given, named = form.unpack(form.pack(args, kwargs))
    return fn(*given, **named)


def thumbnail(image: str, width: int = 100) -> str:
    return f"{image}@{width}"


def test_a_body_is_one_object_of_named_arguments() -> None:
    assert json.loads(shape(thumbnail).pack(("cat.png",), {})) == {"image": "cat.png"}
    assert json.loads(shape(thumbnail).pack((), {"width": 3, "image": "c"})) == {
        "width": 3,
        "image": "c",
    }


def test_a_default_is_the_functions_own_and_not_written_down() -> None:
    assert round_trip(thumbnail, "cat.png") == "cat.png@100"
    assert round_trip(thumbnail, "cat.png", 50) == "cat.png@50"


def every_kind(a: int, /, b: int, c: int = 3, *rest: int, d: int = 4, **others: int) -> Any:
    return a, b, c, rest, d, others


def test_every_kind_of_parameter_comes_back_as_it_was_given() -> None:
    packed = shape(every_kind).pack((1, 2, 5, 6, 7), {"d": 8, "e": 9, "a": 10})
    assert json.loads(packed) == {
        "a": 1,
        "b": 2,
        "c": 5,
        "rest": [6, 7],
        "d": 8,
        "others": {"e": 9, "a": 10},
    }
    assert round_trip(every_kind, 1, 2) == (1, 2, 3, (), 4, {})
    assert round_trip(every_kind, 1, b=2) == (1, 2, 3, (), 4, {})
    assert round_trip(every_kind, 1, 2, 5, 6, 7, d=8, e=9) == (1, 2, 5, (6, 7), 8, {"e": 9})


def test_a_default_keeps_its_place_before_positional_rest() -> None:
    def handler(a: int, b: int = 2, *rest: int) -> Any:
        return a, b, rest

    given, named = shape(handler).unpack(b'{"a":1,"rest":[5]}')
    assert handler(*given, **named) == (1, 2, (5,))


def typed(  # noqa: PLR0917  one of each
    order: Order,
    at: datetime,
    colour: Colour,
    point: Point,
    path: Path,
    number: Decimal,
    key: UUID,
    raw: bytes,
    tags: set[str],
) -> Any:
    return order, at, colour, point, path, number, key, raw, tags


def test_rich_types_come_back_as_what_they_were() -> None:
    given = (
        Order(id=1, lines=["a"]),
        datetime(2026, 1, 2, tzinfo=UTC),
        Colour.RED,
        Point(1.0, 2.0),
        Path("a/b"),
        Decimal("1.10"),
        UUID(int=7),
        b"\xff\x00",
        {"t"},
    )
    assert round_trip(typed, *given) == given


def loose(anything, more: Any = None) -> Any:  # type: ignore[no-untyped-def]
    return anything, more


def test_without_an_annotation_any_json_is_kept_as_it_is() -> None:
    value = {"a": [1, 2.5, None, True, "x"]}
    assert round_trip(loose, value) == (value, None)


@pytest.mark.parametrize("value", [datetime(2026, 1, 1, tzinfo=UTC), {1: 2}, {1}, object(), b"x"])
def test_without_an_annotation_what_json_would_change_is_refused(value: Any) -> None:
    with pytest.raises(BadData, match=r"the arguments of loose\(\)"):
        shape(loose).pack((value,), {})


def test_a_wrong_argument_names_the_task_and_the_field() -> None:
    with pytest.raises(ValidationError, match=r"thumbnail\(\).*width: Input should be a valid int"):
        shape(thumbnail).pack(("cat.png", "wide"), {})
    with pytest.raises(ValidationError, match=r"thumbnail\(\).*width: Input should be a valid int"):
        shape(thumbnail).unpack(b'{"image":"cat.png","width":"wide"}')


def test_the_values_of_refused_arguments_are_not_told() -> None:
    def pay(card: int) -> int:
        return card

    with pytest.raises(ValidationError) as caught:
        shape(pay).pack(("4111-secret",), {})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"invalid arguments of thumbnail\(\): missing a required argument: 'image'"),
        (("a", 1, 2), {}, r"invalid arguments of thumbnail\(\): too many positional arguments"),
        (("a",), {"image": "b"}, r"thumbnail\(\): .*multiple values for argument 'image'"),
        (("a",), {"depth": 1}, r"thumbnail\(\): .*unexpected keyword argument 'depth'"),
    ],
)
def test_missing_and_unknown_arguments_are_told_like_a_wrong_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        shape(thumbnail).pack(args, kwargs)


def test_a_wrong_call_is_told_without_annotations_too() -> None:
    for kwargs in ({}, {"more": 1}, {"anything": 1, "less": 2}):
        with pytest.raises(ValidationError, match=r"invalid arguments of loose\(\)"):
            shape(loose).pack((), kwargs)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"null", "lacks the argument 'image'"),
        (b'{"image":"a","depth":1}', "has no argument 'depth'"),
        (b"[1]", "invalid arguments"),
        (b"{", "Invalid JSON"),
    ],
)
def test_a_stored_body_that_does_not_fit_is_refused_before_the_call(
    body: bytes, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        shape(thumbnail).unpack(body)


def test_a_task_without_parameters_takes_an_empty_body_and_nothing_else() -> None:
    def tick() -> None: ...

    form = shape(tick)
    assert form.pack((), {}) == b"{}"
    assert [form.unpack(body) for body in (None, b"", b"{}", b"null")] == [((), {})] * 4
    with pytest.raises(ValidationError, match="too many positional"):
        form.pack((1,), {})
    with pytest.raises(ValidationError, match="has no argument 'x'"):
        form.unpack(b'{"x":1}')


def numbers(
    one: float = 1.0,
    some: list[float] | None = None,
    any_: Any = None,
    table: dict[str, Any] | None = None,
    order: Order | None = None,
) -> Any:
    return one, some, any_, table, order


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda n: {"one": n},
        lambda n: {"some": [1.0, n]},
        lambda n: {"any_": {"deep": [n]}},
        lambda n: {"table": {"deep": [n]}},
        lambda n: {"table": {"deep": Point(n, 1.0)}},
        lambda n: {"order": Order(id=1, note=n)},
        lambda n: {"order": {"id": 1, "note": [n]}},
    ],
)
def test_no_number_becomes_null(bad: float, wrap: Callable[[float], dict[str, Any]]) -> None:
    with pytest.raises(BadData, match="which JSON cannot represent"):
        shape(numbers).pack((), wrap(bad))


def test_a_null_that_was_meant_is_kept() -> None:
    body = shape(numbers).pack((), {"table": {"a": None}, "order": Order(id=1)})
    assert json.loads(body)["table"] == {"a": None}


def text(value: str = "", tree: dict[str, Any] | list[Any] | None = None) -> str:
    return value


def deep(levels: int) -> list[Any]:
    tree: list[Any] = []
    for _ in range(levels):
        tree = [tree]
    return tree


def cycle() -> list[Any]:
    tree: list[Any] = []
    tree.append(tree)
    return tree


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"value": "a\0b"}, "NUL"),
        ({"value": "\ud800"}, "surrogate|unicode"),
        ({"value": "x" * (1024 * 1024)}, "limit is 1,048,576"),
        ({"tree": deep(70)}, "deeper than 64"),
        ({"tree": deep(5000)}, "depth|deeper|recursion"),
        ({"tree": cycle()}, "Circular|recursion"),
        ({"tree": [2**70]}, "64 bits"),
        ({"tree": [object()]}, "cannot be kept as JSON"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_written(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadData, match=f"(?i){message}"):
        shape(text).pack((), given)


def test_the_context_is_known_by_its_name_or_its_annotation_and_is_no_argument() -> None:
    def by_name(ctx, image: str) -> None: ...  # type: ignore[no-untyped-def]

    def by_annotation(context: Context, image: str) -> None: ...

    def without(image: str, ctx: str) -> None: ...

    assert shape(by_name).takes_context
    assert shape(by_annotation).takes_context
    assert not shape(without).takes_context
    assert json.loads(shape(by_name).pack(("a",), {})) == {"image": "a"}
    assert json.loads(shape(without).pack(("a", "b"), {})) == {"image": "a", "ctx": "b"}


def test_a_context_of_another_type_is_refused() -> None:
    def handler(ctx: str) -> None: ...

    with pytest.raises(BadTask, match="the parameter ctx is the context"):
        shape(handler)


def test_an_annotation_that_only_the_type_checker_sees_is_refused() -> None:
    def handler(ctx: Missing, order: Missing) -> None: ...

    with pytest.raises(BadTask, match=r"annotation of 'order'.*'Missing'.*top of the module"):
        shape(handler)


def takes_callback(callback: Callable[[], int]) -> int:
    return callback()


def takes_class(form: Signature) -> bytes:
    return form.pack((), {})


def gives_class() -> Signature:
    return shape(thumbnail)


def takes_self(self: Any) -> Any:
    return self


@pytest.mark.parametrize("fn", [takes_callback, takes_class, gives_class, takes_self])
def test_what_json_can_never_say_is_refused_at_registration(fn: Callable[..., Any]) -> None:
    with pytest.raises(BadTask, match=fn.__name__):
        shape(fn)


def test_constraints_and_typed_keywords_are_checked() -> None:
    def constrained(n: Annotated[int, Field(gt=0)], **extras: Unpack[Extras]) -> Any:
        return n, extras

    def old(**extras: typing_extensions.Unpack[Extras]) -> Any:
        return extras

    assert round_trip(constrained, 1, size=3) == (1, {"size": 3})
    assert round_trip(old, size=3) == {"size": 3}
    with pytest.raises(ValidationError, match="n: Input should be greater than 0"):
        shape(constrained).pack((0,), {})
    with pytest.raises(ValidationError, match=r"extras\.size: Input should be a valid integer"):
        shape(constrained).pack((1,), {"size": "big"})


def test_a_result_is_written_and_read_by_its_annotation() -> None:
    def find() -> Order: ...  # type: ignore[empty-body]

    form = shape(find)
    order = Order(id=1)
    assert form.unpack_result(form.pack_result(order)) == order
    assert form.unpack_result(form.pack_result({"id": 1})) == order
    with pytest.raises(ValidationError, match=r"the result of find\(\).*valid dict"):
        form.pack_result(3)


def test_a_result_without_annotation_is_any_json() -> None:
    form = shape(loose)
    assert form.unpack_result(form.pack_result({"a": [1]})) == {"a": [1]}
    with pytest.raises(BadData, match="set, which is not JSON"):
        form.pack_result({1})
    with pytest.raises(BadData, match="JSON cannot represent"):
        form.pack_result([float("nan")])


def test_a_task_that_returns_nothing_has_the_result_null() -> None:
    def nothing() -> None: ...

    assert shape(nothing).pack_result(None) == b"null"
    assert shape(nothing).unpack_result(b"null") is None
    with pytest.raises(ValidationError):
        shape(nothing).pack_result(3)


def test_an_unknown_signature_takes_named_json_alone() -> None:
    form = UnknownSignature("resize")
    assert form.pack((), {"image": "a"}) == b'{"image":"a"}'
    assert form.unpack(form.pack((), {})) == ((), {})
    with pytest.raises(ValidationError, match=r"resize\(\) is not known here.*by name"):
        form.pack(("a",), {})
    with pytest.raises(BadData, match="datetime"):
        form.pack((), {"at": datetime(2026, 1, 1, tzinfo=UTC)})
    with pytest.raises(ValidationError, match="must be an object"):
        form.unpack(b"[1]")


def plain(text: str, number: int, share: float, sure: bool = False) -> None:
    """A signature of nothing but plain types."""


VALUES = st.one_of(
    st.text(st.characters(codec=None), max_size=5),
    st.sampled_from(["a\0b", "\\u0000", "\ud800", "x" * BODY_LIMIT, "Ü", '"', "1", "nan"]),
    st.integers(),
    st.sampled_from([2**63, 2**63 - 1, -(2**63), -(2**63) - 1, 2**64, 10**400]),
    st.floats(),
    st.booleans(),
    st.none(),
    st.just([1]),
)


def outcome(pack: Callable[[], Body]) -> tuple[str, bytes]:
    """Return what a call gives: its body, or its error."""
    try:
        return "body", pack()
    except BadData as error:
        return f"{type(error).__name__}: {error}", b""


@given(st.lists(VALUES, max_size=5))
def test_plain_arguments_are_written_as_a_model_writes_them(values: list[Any]) -> None:
    quick, slow = shape(plain), shape(plain)
    slow._plain_types = None

    assert outcome(lambda: quick.pack(values, {})) == outcome(lambda: slow.pack(values, {}))


@example("a\0b", 1, 0.5, True)
@example("\\u0000", 1, 0.5, True)
@example("\ud800", 1, 0.5, True)
@example("x" * BODY_LIMIT, 1, 0.5, True)
@example("a", 2**63, 0.5, True)
@example("a", -(2**63), 0.5, True)
@example("a", 1, float("nan"), True)
@given(st.text(st.characters(codec=None)), st.integers(), st.floats(), st.booleans())
def test_arguments_of_the_right_types_are_written_as_a_model_writes_them(
    text: str, number: int, share: float, sure: bool
) -> None:
    quick, slow = shape(plain), shape(plain)
    slow._plain_types = slow._plain = None
    values = (text, number, share, sure)
    named = dict(zip(quick.names, values, strict=True))

    by_model = outcome(lambda: slow.pack(values, {}))
    assert outcome(lambda: quick.pack(values, {})) == by_model
    assert outcome(lambda: quick.pack((), named)) == by_model
    assert type(by_model[1]) is not Body or type(quick.pack(values, {})) is Body


def test_a_subclass_of_a_plain_type_is_looked_at_by_the_model() -> None:
    class Name(str):
        __slots__ = ()

    quick, slow = shape(plain), shape(plain)
    slow._plain_types = None
    values = (Name("a"), True, 1, False)
    assert outcome(lambda: quick.pack(values, {})) == outcome(lambda: slow.pack(values, {}))
