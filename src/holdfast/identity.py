"""Fresh identities: the one seam for randomness and the wall clock outside the stores."""

from __future__ import annotations

import os
import socket
import time
from uuid import UUID

from holdfast.lifecycle.job import JobId


def mint_id() -> JobId:
    """Make a time-ordered id (UUID version 7, with twelve more bits of the clock)."""
    nanos = time.time_ns()
    millis, rest = divmod(nanos, 1_000_000)
    random = int.from_bytes(os.urandom(8), "big") >> 2
    number = (millis << 80) | (7 << 76) | ((rest * 4096 // 1_000_000) << 64) | (2 << 62) | random
    return JobId(UUID(int=number))


def mint_request() -> str:
    """Make a request id that nobody else uses."""
    return os.urandom(9).hex()


def mint_worker() -> str:
    """Name a worker, anew at every start of a process: a name never comes back after a restart."""
    return f"{socket.gethostname()[:100]}:{os.getpid()}:{os.urandom(5).hex()}"


def jitter() -> float:
    """Draw a number from [0, 1), so that what failed together does not come back together."""
    return int.from_bytes(os.urandom(4), "big") / 2**32
