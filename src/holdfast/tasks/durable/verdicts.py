"""Whether a step that was started had its effect: the answers of a verifier, or of a person."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct


class Happened(Struct, frozen=True):
    """The step had its effect, and this was its result."""

    result: Any = None


class NotHappened(Struct, frozen=True):
    """The step had no effect, and may be run."""


class NotKnown(Struct, frozen=True):
    """The verifier does not know; a person has to decide (`holdfast resolve`)."""


NOT_HAPPENED, UNKNOWN = NotHappened(), NotKnown()
Verdict: TypeAlias = Happened | NotHappened | NotKnown
