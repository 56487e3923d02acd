"""Fresh identities: the one seam for randomness and the wall clock outside the stores."""

from __future__ import annotations

import os
import socket
import time
from itertools import accumulate
from struct import unpack
from uuid import UUID

from holdfast.lifecycle.record import JobId


def mint_id() -> JobId:
    """Make a time-ordered id (UUID version 7, with twelve more bits of the clock)."""
    return JobId(UUID(int=_draw_time() | _draw_random() >> 2))


def mint_ids(number: int) -> list[bytes]:
    """Make many ids, as bytes, each greater than the one before.

    They share one look at the clock; their random parts start at random in the lower half, and rise
    by random steps (RFC 9562, 6.2, method 2), so that there is room for millions.
    """
    start = _draw_time() | _draw_random() >> 3
    steps = unpack(f"{number}I", os.urandom(4 * number))
    # One more per step: a step may be 0.
    return [
        (id_ + place).to_bytes(16, "big")
        for place, id_ in enumerate(accumulate(steps, initial=start))
    ][1:]


def _draw_time() -> int:
    """Return an id of the present without its random bits."""
    millis, rest = divmod(time.time_ns(), 1_000_000)
    fine = rest * 4096 // 1_000_000
    return millis << 80 | 7 << 76 | fine << 64 | 2 << 62


_DRAWN = 512
_drawn: list[int] = []
# A forked child must not draw what its parent draws.
os.register_at_fork(after_in_child=_drawn.clear)


def _draw_random() -> int:
    """Draw 64 bits; many at once, because asking the system costs more than all the rest."""
    while True:
        try:
            return _drawn.pop()
        except IndexError:
            _drawn.extend(unpack(f"{_DRAWN}Q", os.urandom(8 * _DRAWN)))


def mint_request() -> str:
    """Make a request id that nobody else uses."""
    return os.urandom(9).hex()


def mint_secret(length: int = 32) -> bytes:
    """Return random bytes that cannot be guessed."""
    return os.urandom(length)


def mint_token_id() -> str:
    """Return a new id of a token: in the order of time, and no secret."""
    return f"{time.time_ns() // 1000:014x}{os.urandom(3).hex()}"


def mint_upload_id() -> str:
    """Return a new id of an upload: in the order of time, and hard to guess."""
    return f"{time.time_ns() // 1000:014x}{os.urandom(8).hex()}"


def mint_key() -> bytes:
    """Return a new key of 256 bits."""
    return os.urandom(32)


def unix_seconds() -> float:
    """Return the system's time, for code without a store to ask."""
    return time.time_ns() / 1e9


def mint_worker(host: str | None = None) -> str:
    """Return a new name of a worker: after a restart of its process it has another one.

    It starts with its host's name: a worker that recovers boxes finds its predecessors by that.
    """
    return f"{host or host_name()}:{os.getpid()}:{os.urandom(5).hex()}"


def host_name() -> str:
    """Return the name of this host, as the names of its workers start unless it has another."""
    return socket.gethostname()[:100]


def jitter() -> float:
    """Return a random number in [0, 1), so that what failed together is not retried together."""
    return int.from_bytes(os.urandom(4), "big") / 2**32
