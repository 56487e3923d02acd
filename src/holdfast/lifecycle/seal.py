"""Sealing: a hash chain over one job's events, so that a single changed byte shows.

The bytes are defined here; PostgreSQL writes the same ones in a trigger (see its schema). A
heartbeat is sealed onto the event before it but does not carry the chain on: it may be dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TypeAlias
from uuid import UUID

import msgspec

from holdfast.lifecycle.times import SECOND

SEALED = (
    "id",
    "rev",
    "type",
    "from_state",
    "to_state",
    "at",
    "attempt",
    "beats",
    "lease_expires_at",
    "run_at",
    "deadline_at",
    "version",
    "actor",
    "request_id",
    "reason",
    "correlation_id",
    "data",
    "digest",
)
"""What a seal covers, in order. The body is covered by its digest, and so may be erased."""


Switches: TypeAlias = Sequence[tuple[int, bool]]
"""When sealing was turned on and off, oldest first."""

SWITCH_SPAN = 5 * SECOND
"""How near to a switch an event may have been written on its other side."""


def read_switches(text: str | None) -> Switches:
    """Return the log of switches from its JSON."""
    return msgspec.json.decode(text, type=list[tuple[int, bool]]) if text else []


def switched(text: str | None, at: int, on: bool) -> str:
    """Return the log with one more switch, unless sealing already was so."""
    switches = list(read_switches(text))
    if on != (bool(switches) and switches[-1][1]):
        switches.append((at, on))
    return msgspec.json.encode(switches).decode()


def must_be_sealed(switches: Switches, at: int, *, backdated: bool) -> bool:
    """Return whether an event of this time was written while sealing was on.

    `backdated`: its time may lie long before its writing, so only a period that still lasts counts.
    """
    ends = [*(since for since, _ in switches[1:]), None]
    return any(
        on and since + SWITCH_SPAN <= at and _is_before(at, end, backdated=backdated)
        for (since, on), end in zip(switches, ends, strict=False)
    )


def _is_before(at: int, end: int | None, *, backdated: bool) -> bool:
    return end is None or (not backdated and at < end - SWITCH_SPAN)


def seal(previous: bytes | None, values: Iterable[object]) -> bytes:
    """Return the seal of one event's stored columns, chained to the seal before it."""
    return sha256((previous or b"") + seal_text(values)).digest()


def seal_text(values: Iterable[object]) -> bytes:
    """Return columns as text, each with its length, so that no two rows have the same text."""
    return "".join(map(_netstring, values)).encode()


def _netstring(value: object) -> str:
    match value:
        case None:
            return "-"
        case UUID():
            text = value.hex
        case bytes():
            text = value.hex()
        case _:
            text = str(value)
    return f"{len(text)}:{text}"
