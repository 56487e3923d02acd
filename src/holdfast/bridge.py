"""From ordinary threads into the loop: one background thread with an event loop, per app.

A thin bridge, not a second implementation: what is called here is the coroutine that others await.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
STOP_SECONDS = 10.0
"""How long closing waits for what the bridge still does."""


class Bridge:
    """Runs coroutines for callers that have no event loop. Usable from any number of threads."""

    def __init__(self, *, after_fork: Callable[[], None] | None = None) -> None:
        """Start nothing yet: most programs never need it.

        `after_fork` is called in a forked child, where its owner may have to start anew as well.
        """
        self._after_fork = after_fork
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        _bridges.add(self)

    def forget_thread(self) -> None:
        """Start anew in a forked child, which has neither the thread nor the holder of the lock."""
        self._lock = threading.Lock()
        self._thread = None
        if self._after_fork is not None:
            self._after_fork()

    def run(self, work: Coroutine[Any, Any, T], instead: str) -> T:
        """Do the work and wait for it; `instead` is what a coroutine should await."""
        if in_a_loop():
            work.close()
            raise RuntimeError(
                f"this thread runs an event loop, which would stand still: await {instead} instead"
            )
        return self.run_blocking(work)

    def runs_here(self) -> bool:
        """Whether the calling thread is the bridge's own, which cannot wait for itself."""
        thread = self._thread
        return thread is not None and thread.is_current()

    def run_blocking(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work and wait for it, also in a thread whose event loop stands still meanwhile.

        Only for callers that block that loop anyway, and for work that is short.
        """
        future = self._started().start_work(work)
        try:
            return future.result()
        except BaseException:
            # An interrupted caller no longer waits; what failed by itself is done already.
            future.cancel()
            raise

    def close(self) -> None:
        """Let the loop end, with what it holds open. A later call starts a new one."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def _started(self) -> _LoopThread:
        with self._lock:
            if self._thread is None:
                self._thread = _LoopThread()
                # Not at the end of the program, when no executor takes work any more: what was
                # acknowledged is durable, and the thread ends with the process.
                weakref.finalize(self, self._thread.stop).atexit = False
            return self._thread


class _LoopThread:
    """A thread that runs an event loop until it is told to stop."""

    def __init__(self) -> None:
        """Start, and wait until the loop is there."""
        self._ready: Future[asyncio.AbstractEventLoop] = Future()
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve()), name="holdfast bridge", daemon=True
        )
        self._thread.start()
        self._loop = self._ready.result()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self._ready.set_result(asyncio.get_running_loop())
        await self._stopping.wait()

    def is_current(self) -> bool:
        return self._thread is threading.current_thread()

    def start_work(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        if self._stopping is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stopping.set)
        if not self.is_current():
            self._thread.join(STOP_SECONDS)


_bridges: weakref.WeakSet[Bridge] = weakref.WeakSet()


def _forget_threads() -> None:
    for bridge in list(_bridges):
        bridge.forget_thread()


os.register_at_fork(after_in_child=_forget_threads)


def in_a_loop() -> bool:
    """Whether this thread runs an event loop, which a wait would bring to a stand."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
