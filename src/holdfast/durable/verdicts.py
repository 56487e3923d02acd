"""What a verifier, or a person, says of a step that was begun: whether it had its effect."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct


class Happened(Struct, frozen=True):
    """A verifier's word: the step had its effect, and this was its result."""

    result: Any = None


class NotHappened(Struct, frozen=True):
    """A verifier's word: the step had no effect, it may be run."""


class Unknown(Struct, frozen=True):
    """A verifier's word: a person has to say (`holdfast resolve`)."""


NOT_HAPPENED, UNKNOWN = NotHappened(), Unknown()
Verdict: TypeAlias = Happened | NotHappened | Unknown
