"""Fresh identities: the one seam for randomness and the wall clock outside the stores."""

from __future__ import annotations

import os
import socket
import time
from struct import unpack
from uuid import UUID, SafeUUID

from holdfast.lifecycle.job import JobId


def mint_id() -> JobId:
    """Make a time-ordered id (UUID version 7, with twelve more bits of the clock)."""
    nanos = time.time_ns()
    millis, rest = divmod(nanos, 1_000_000)
    fine = rest * 4096 // 1_000_000
    return _id((millis << 80) | (7 << 76) | (fine << 64) | (2 << 62) | (_random() >> 2))


_DRAWN = 512
_drawn: list[int] = []
# A forked child must not draw what its parent draws.
os.register_at_fork(after_in_child=_drawn.clear)


def _random() -> int:
    """Draw 64 bits; many at once, because asking the system costs more than all the rest."""
    while True:
        try:
            return _drawn.pop()
        except IndexError:
            _drawn.extend(unpack(f"{_DRAWN}Q", os.urandom(8 * _DRAWN)))


def _id(number: int) -> JobId:
    """Make an id as `UUID(int=number)` does, in a third of its time: the number is known to fit."""
    made = _new(UUID)
    _set(made, "int", number)
    _set(made, "is_safe", _UNKNOWN)
    return JobId(made)


_new, _set, _UNKNOWN = object.__new__, object.__setattr__, SafeUUID.unknown


def mint_request() -> str:
    """Make a request id that nobody else uses."""
    return os.urandom(9).hex()


def mint_secret(length: int = 32) -> bytes:
    """Draw bytes that nobody can guess."""
    return os.urandom(length)


def mint_token_id() -> str:
    """Name a token: in the order of time, and told to anybody who may list it."""
    return f"{time.time_ns() // 1000:014x}{os.urandom(3).hex()}"


def mint_key() -> bytes:
    """Make a key of 256 bits."""
    return os.urandom(32)


def unix_seconds() -> float:
    """Tell the system's time, for whoever has no store to ask."""
    return time.time_ns() / 1e9


def mint_worker() -> str:
    """Name a worker, anew at every start of a process: a name never comes back after a restart."""
    return f"{socket.gethostname()[:100]}:{os.getpid()}:{os.urandom(5).hex()}"


def jitter() -> float:
    """Draw a number from [0, 1), so that what failed together does not come back together."""
    return int.from_bytes(os.urandom(4), "big") / 2**32
