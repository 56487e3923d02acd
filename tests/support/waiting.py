"""Waiting for what gives no signal, such as another program's start; always with a limit."""

import time
from collections.abc import Callable


def wait_until(
    condition: Callable[[], bool],
    what: str,
    *,
    limit_seconds: float = 20.0,
    pause_seconds: float = 0.01,
) -> None:
    """Return once `condition` holds; raise TimeoutError naming `what` when it never does."""
    limit = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(f"waited {limit_seconds:g} s for {what}")
        time.sleep(pause_seconds)
