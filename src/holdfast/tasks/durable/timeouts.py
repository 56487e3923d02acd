"""Time limits of asyncio around a durable wait: `asyncio.timeout`, `asyncio.wait_for`.

The wait has to end in time, although its job is suspended and no part of the handler is left that
a limit could cancel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import Context as Variables
from functools import partial
from typing import Any


def limit_ends_at(is_own: Callable[[Variables], bool]) -> float | None:
    """Return when, by the loop's clock, the first limit around the caller ends; None without.

    Limits around tasks that wait for the caller's count, too (`asyncio.gather`). `is_own` returns
    whether a limit is the handler's own, by the context variables in which it was started.

    asyncio keeps no list of limits. Each has a timer on the loop, which refers to its task or to
    the future that it settles. On a loop that does not show its timers, no limit is found.
    """
    loop = asyncio.get_running_loop()
    around = _find_dependents(asyncio.current_task())
    ends = [
        timer.when()
        for timer in getattr(loop, "_scheduled", ())
        if not timer.cancelled()
        and _find_limited_future(timer) in around
        and is_own(timer._context)
    ]
    # A timer whose time has come waits among what is run next: nothing is left of its limit.
    ends += [
        loop.time()
        for timer in getattr(loop, "_ready", ())
        if not timer.cancelled()
        and _find_limited_future(timer) in around
        and is_own(timer._context)
    ]
    return min(ends, default=None)


def _find_limited_future(timer: asyncio.Handle) -> asyncio.Future[Any] | None:
    """Return the task that a timer would cancel, or the future by which it ends a wait."""
    callback = getattr(timer, "_callback", None)
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Timeout):
        return getattr(owner, "_task", None)
    # Until Python 3.12 `wait_for` waits for a future that its timer settles.
    if callback is not None and callback is getattr(asyncio.tasks, "_release_waiter", None):
        waiter: asyncio.Future[Any] = timer._args[0]
        return waiter
    return None


def _find_dependents(task: asyncio.Future[Any] | None) -> set[asyncio.Future[Any]]:
    """Find a task, and all tasks and futures that end only after it."""
    found: set[asyncio.Future[Any]] = set()
    looked_at = [] if task is None else [task]
    while looked_at:
        one = looked_at.pop()
        if one not in found:
            found.add(one)
            for callback, _ in getattr(one, "_callbacks", None) or ():
                looked_at += _find_settled_futures(callback)
    return found


def _find_settled_futures(callback: Any) -> Iterator[asyncio.Future[Any]]:
    """Find what the end of a task settles: the futures by which asyncio waits for it."""
    owner = getattr(callback, "__self__", None)
    settled = [owner, getattr(owner, "_parent_task", None)]
    if isinstance(callback, partial):
        settled += callback.args
    settled += [cell.cell_contents for cell in getattr(callback, "__closure__", None) or ()]
    return (one for one in settled if isinstance(one, asyncio.Future))
