"""`asyncio.timeout` around a durable wait: the wait has to end in time, though its job is parked
and nothing of the handler is left that the timeout could cancel.
"""

from __future__ import annotations

import asyncio


def seconds_left() -> float | None:
    """Return the seconds until the first `asyncio.timeout` around the caller ends; None without.

    asyncio keeps no list of them. Each has a timer on the loop, which names its task; a loop of
    another make that does not show its timers knows of none.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    ends = [
        timer.when()
        for timer in getattr(loop, "_scheduled", ())
        if not timer.cancelled() and _task_of(timer) is task
    ]
    return max(0.0, min(ends) - loop.time()) if ends else None


def _task_of(timer: asyncio.TimerHandle) -> object:
    owner = getattr(getattr(timer, "_callback", None), "__self__", None)
    return getattr(owner, "_task", None) if isinstance(owner, asyncio.Timeout) else None
