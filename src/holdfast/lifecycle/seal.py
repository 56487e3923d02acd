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
    """Read the log of switches."""
    return msgspec.json.decode(text, type=list[tuple[int, bool]]) if text else []


def switched(text: str | None, at: int, on: bool) -> str:
    """Write the log with one more switch, if it is one."""
    switches = list(read_switches(text))
    if on != (bool(switches) and switches[-1][1]):
        switches.append((at, on))
    return msgspec.json.encode(switches).decode()


def must_be_sealed(switches: Switches, at: int, *, told_late: bool) -> bool:
    """Whether an event of this time was written while sealing was on.

    `told_late`: its time may lie long before its writing, so only a period that lasts still tells.
    """
    ends = [*(since for since, _ in switches[1:]), None]
    return any(
        on and since + SWITCH_SPAN <= at and _is_before(at, end, told_late=told_late)
        for (since, on), end in zip(switches, ends, strict=False)
    )


def _is_before(at: int, end: int | None, *, told_late: bool) -> bool:
    return end is None or (not told_late and at < end - SWITCH_SPAN)


def seal(previous: bytes | None, values: Iterable[object]) -> bytes:
    """Seal one event's stored columns onto the seal before it."""
    return sha256((previous or b"") + seal_text(values)).digest()


def seal_text(values: Iterable[object]) -> bytes:
    """Write columns so that no two different rows read the same: each with its length."""
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
