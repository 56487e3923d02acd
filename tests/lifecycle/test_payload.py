"""What cannot be kept is refused clearly, before anything is written; what can is kept exactly."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadData, HoldfastError
from holdfast.lifecycle.payload import (
    BODY_LIMIT,
    DEPTH_LIMIT,
    LABELS_LIMIT,
    TEXT_LIMIT,
    check_body,
    check_labels,
    check_text,
    decode_body,
    digest,
    encode_body,
)


class Colour(StrEnum):
    """Text that is not quite text."""

    RED = "red"


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


BAD_VALUES: list[Any] = [
    pytest.param(math.nan, "nan", id="NaN"),
    pytest.param({"a": [math.inf]}, "inf", id="infinity"),
    pytest.param([-math.inf], "-inf", id="minus infinity"),
    pytest.param("a\0b", "NUL", id="NUL"),
    pytest.param({"a\0b": 1}, "NUL", id="NUL in a key"),
    pytest.param(["\ud800"], "lone surrogate", id="lone surrogate"),
    pytest.param({"\udfff": 1}, "lone surrogate", id="lone surrogate in a key"),
    pytest.param({1: 2}, "key that is not text: 1", id="number as a key"),
    pytest.param({None: 2}, "key that is not text: None", id="null as a key"),
    pytest.param({Colour.RED: 2}, "key that is not text", id="enum as a key"),
    pytest.param(b"bytes", "a bytes", id="bytes"),
    pytest.param({"a": bytearray(b"x")}, "a bytearray", id="bytearray"),
    pytest.param({1, 2}, "a set", id="set"),
    pytest.param(Colour.RED, "a Colour", id="enum"),
    pytest.param(1j, "a complex", id="complex"),
    pytest.param([object()], "a object", id="object"),
    pytest.param(2**63, "beyond 64 bits", id="integer above"),
    pytest.param({"n": -(2**63) - 1}, "beyond 64 bits", id="integer below"),
    pytest.param(10**5000, "beyond 64 bits", id="enormous integer"),
    pytest.param(nested(DEPTH_LIMIT + 1), "deeper than 64", id="one too deep"),
    pytest.param(nested(100_000), "deeper than 64", id="far too deep"),
    pytest.param(endless(), "deeper than 64", id="endless"),
    pytest.param("x" * BODY_LIMIT, "bytes of JSON; the limit is 1,048,576", id="too large"),
    pytest.param(["é" * (BODY_LIMIT // 2)], "1,048,580 bytes", id="too large once encoded"),
]


@pytest.mark.parametrize(("value", "what"), BAD_VALUES)
def test_a_value_that_cannot_be_kept_is_refused_by_name(value: Any, what: str) -> None:
    with pytest.raises(BadData, match=r"^the result ") as caught:
        encode_body(value, "the result")

    assert what in str(caught.value)
    assert caught.value.code == "bad_data"
    assert isinstance(caught.value, HoldfastError)


BAD_TEXTS: list[Any] = [
    pytest.param(b"", "not JSON", id="nothing"),
    pytest.param(b"{", "not JSON", id="half"),
    pytest.param(b"{} {}", "not JSON", id="two values"),
    pytest.param(b"{'a': 1}", "not JSON", id="single quotes"),
    pytest.param(b"[1,]", "not JSON", id="trailing comma"),
    pytest.param(b"NaN", "not JSON", id="NaN"),
    pytest.param(b"[Infinity]", "not JSON", id="infinity"),
    pytest.param(b"1e999", "not JSON", id="number out of range"),
    pytest.param(b'"\xff"', "not JSON", id="not UTF-8"),
    pytest.param(b'"\xed\xa0\x80"', "not JSON", id="surrogate as bytes"),
    pytest.param(b'"\\ud800"', "not JSON", id="lone surrogate escaped"),
    pytest.param(b'["\\ud800x"]', "not JSON", id="lone surrogate before text"),
    pytest.param(b'"\\u0000"', "NUL", id="NUL escaped"),
    pytest.param(b'{"\\u0000": 1}', "NUL", id="NUL in a key"),
    pytest.param(b"9223372036854775808", "beyond 64 bits", id="integer above"),
    pytest.param(b"-9223372036854775809", "beyond 64 bits", id="integer below"),
    pytest.param(b"1" * 5000, "Integer value out of range", id="enormous integer"),
    pytest.param(b'{"a": 1, "a": 2}', "same key twice", id="key twice"),
    pytest.param(b'[{"b": {"a":1,"\\u0061":2}}]', "same key twice", id="key twice, escaped"),
    pytest.param(b"[" * 100_000, "deeper than 64", id="hostile nesting, open"),
    pytest.param(b"[" * 100_000 + b"]" * 100_000, "deeper than 64", id="hostile nesting"),
    pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "deeper than 64", id="hostile maps"),
    pytest.param(b"[" * 65 + b"]" * 65, "deeper than 64", id="one too deep"),
    pytest.param(b" " * BODY_LIMIT + b"1", "the limit is 1,048,576", id="too large"),
]


@pytest.mark.parametrize(("text", "what"), BAD_TEXTS)
def test_a_text_that_cannot_be_kept_is_refused_by_name(text: bytes, what: str) -> None:
    with pytest.raises(BadData, match=r"^signal ") as caught:
        check_body(text, "signal")

    assert what in str(caught.value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, b"null"),
        (False, b"false"),
        (-(2**63), b"-9223372036854775808"),
        (2**63 - 1, b"9223372036854775807"),
        (0.1, b"0.1"),
        ("", b'""'),
        ("😀\u2028é", '"😀\u2028é"'.encode()),
        ({"": {}, "b": [(1, 2)]}, b'{"":{},"b":[[1,2]]}'),
        (nested(DEPTH_LIMIT), b"[" * 64 + b"1" + b"]" * 64),
        ("x" * (BODY_LIMIT - 2), b'"' + b"x" * (BODY_LIMIT - 2) + b'"'),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else repr(value)[:20],
)
def test_a_value_at_the_edge_is_kept(value: Any, text: bytes) -> None:
    assert encode_body(value) == text
    assert check_body(text) == text


def test_a_foreign_text_is_kept_without_its_blanks() -> None:
    assert check_body(b' { "a:b" : [ "\\":" , 1.50 ] }\n') == b'{"a:b":["\\":",1.5]}'


def test_what_was_checked_is_not_checked_again() -> None:
    body = encode_body({"a": 1})
    assert check_body(body) is body
    with pytest.raises(BadData, match="the limit is 3"):
        check_body(body, limit=3)


TEXT = st.characters(codec="utf-8", exclude_characters="\0")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(TEXT, max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.sampled_from('a":,\\ é'), max_size=4), inner, max_size=3)
    ),
    max_leaves=10,
)


@settings(max_examples=200, derandomize=True, deadline=None)
@given(value=JSON)
def test_what_is_kept_is_read_back_as_it_was(value: Any) -> None:
    text = encode_body(value)

    assert decode_body(text) == value
    assert check_body(text) == text
    assert digest(check_body(text.replace(b"\n", b" "))) == digest(text)


def test_digests_tell_bodies_apart() -> None:
    assert digest(b"null") == digest(encode_body(None))
    assert len({digest(body) for body in (b"null", b"0", b"1", b'"1"', b"[1]")}) == 5
    assert decode_body(None) is None


BAD_NAMES: list[Any] = [
    pytest.param(None, "must be text, not NoneType", id="nothing"),
    pytest.param(7, "must be text, not int", id="number"),
    pytest.param(b"q", "must be text, not bytes", id="bytes"),
    pytest.param(Colour.RED, "must be text, not Colour", id="enum"),
    pytest.param("", "must not be empty", id="empty"),
    pytest.param("a\0", "NUL", id="NUL"),
    pytest.param("a\udc80", "lone surrogate", id="lone surrogate"),
    pytest.param("x" * (TEXT_LIMIT + 1), "1,001 characters; the limit is 1,000", id="long"),
]


@pytest.mark.parametrize(("value", "what"), BAD_NAMES)
def test_a_name_that_cannot_be_kept_is_refused_by_name(value: Any, what: str) -> None:
    with pytest.raises(BadData, match=r"^queue ") as caught:
        check_text(value, "queue")

    assert what in str(caught.value)


def test_a_name_at_the_edge_is_kept() -> None:
    assert check_text("x" * TEXT_LIMIT, "queue") == "x" * TEXT_LIMIT
    assert check_text("", "reason", empty=True) == ""
    assert check_text("日本 \t\n", "reason") == "日本 \t\n"


BAD_LABELS: list[Any] = [
    pytest.param(["a"], "labels must be a mapping, not list", id="list"),
    pytest.param("a", "labels must be a mapping, not str", id="text"),
    pytest.param({1: "a"}, "a key of labels must be text", id="number as a key"),
    pytest.param({"": "a"}, "a key of labels must not be empty", id="empty key"),
    pytest.param({"k" * 201: "a"}, "a key of labels has 201 characters", id="long key"),
    pytest.param({"a=b": "c"}, "a key of labels must not contain '='", id="= in a key"),
    pytest.param({"a": 1}, "labels['a'] must be text, not int", id="number"),
    pytest.param({"a": None}, "labels['a'] must be text", id="nothing"),
    pytest.param({"a": "\0"}, "labels['a'] holds a NUL", id="NUL"),
    pytest.param({f"{n}": "x" * 999 for n in range(17)}, f"{LABELS_LIMIT:,}", id="too many"),
]


@pytest.mark.parametrize(("labels", "what"), BAD_LABELS)
def test_labels_that_cannot_be_kept_are_refused_by_name(labels: Any, what: str) -> None:
    with pytest.raises(BadData) as caught:
        check_labels(labels)

    assert what in str(caught.value)


def test_labels_may_have_empty_values() -> None:
    assert check_labels({"a": "", "b": "1"}) == {"a": "", "b": "1"}
