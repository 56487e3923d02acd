"""Checks that the filters of lists share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from holdfast.durations import micros
from holdfast.errors import ValidationError
from holdfast.lifecycle.payload import check_text


def read_time(date: datetime | None, name: str) -> int | None:
    """Return a date of a request as a time of the store's clock."""
    if date is None:
        return None
    if date.tzinfo is None:
        raise ValidationError(f"{name} must have a time zone", field=name)
    return micros(date)


def check_texts(asked: Any, names: Sequence[str]) -> None:
    """Refuse texts that no job can have: not every store can be asked for them."""
    for name in names:
        if (value := getattr(asked, name)) is not None:
            check_text(value, name, empty=True)
