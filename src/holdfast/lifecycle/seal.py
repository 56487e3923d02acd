"""Sealing: a hash chain over one job's events, so that a single changed byte shows.

The bytes are defined here; PostgreSQL writes the same ones in a trigger (see its schema). A
heartbeat is sealed onto the event before it but does not carry the chain on: it may be dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from uuid import UUID

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
