"""Spans: what people write, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.durations import span_micros, span_seconds


@pytest.mark.parametrize(
    ("span", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("90s", 90),
        ("500ms", 0.5),
        ("1m500ms", 60.5),
        ("2d", 172_800),
        ("0.5s", 0.5),
        ("0s", 0),
        ("30", 30),
        ("0.25", 0.25),
        (7, 7),
        (0.25, 0.25),
        (timedelta(minutes=2), 120),
    ],
)
def test_a_span_is_read_as_people_write_it(span: Any, seconds: float) -> None:
    assert span_seconds(span) == seconds
    assert span_micros(span) == round(seconds * 1_000_000)


@pytest.mark.parametrize(
    "span",
    ["", "5 5", "5x", "m", "1.2.3s", "-5m", "30m1h", "\u0665m", -1, timedelta(-1), True, None, [5],
     float("nan"), float("inf"), 1e308],
)  # fmt: skip
def test_what_is_no_span_is_refused_with_the_name_of_what_it_was_for(span: Any) -> None:
    with pytest.raises(ValueError, match=r"timeout must be .*'1h30m'"):
        span_seconds(span, "timeout")
