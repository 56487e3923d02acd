"""Call coroutines from ordinary threads: one background thread with an event loop per app.

A thin bridge, not a second implementation: it runs the coroutine that asynchronous code awaits.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
STOP_SECONDS = 10.0
"""How long closing waits for what the bridge still does."""


class Bridge:
    """Runs coroutines for callers that have no event loop. Usable from any number of threads."""

    def __init__(self, *, after_fork: Callable[[], None] | None = None) -> None:
        """Start nothing yet: most programs never need it.

        `after_fork` is called in a forked child, where its owner may have to start again, too.
        """
        self._after_fork = after_fork
        self._lock = threading.Lock()
        self._thread: _LoopThread | None = None
        _bridges.add(self)

    def forget_thread(self) -> None:
        """Start again in a forked child, which has neither the thread nor the lock's holder."""
        self._lock = threading.Lock()
        self._thread = None
        if self._after_fork is not None:
            self._after_fork()

    def run(self, work: Coroutine[Any, Any, T], instead: str) -> T:
        """Run work and wait for it; `instead` is what a coroutine should await."""
        if is_in_a_loop():
            work.close()
            raise RuntimeError(
                f"this thread runs an event loop, which this would block: await {instead} instead"
            )
        return self.run_blocking(work)

    def runs_here(self) -> bool:
        """Return whether the calling thread is the bridge's own, which cannot wait for itself."""
        thread = self._thread
        return thread is not None and thread.is_current()

    def run_blocking(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work and wait for it, also in a thread whose event loop is blocked meanwhile.

        Only for callers that block that loop anyway, and for short work.
        """
        future = self._start_once().start_work(work)
        try:
            return future.result()
        except BaseException:
            # An interrupted caller no longer waits; work that failed is done already.
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop and all that it holds open. A later call starts a new one."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def _start_once(self) -> _LoopThread:
        with self._lock:
            if self._thread is None:
                self._thread = _LoopThread()
                # Not at the end of the program, when executors accept no more work: what was
                # acknowledged is durable, and the thread ends with the process.
                weakref.finalize(self, self._thread.stop).atexit = False
            return self._thread


class _LoopThread:
    """A thread that runs an event loop until it is stopped."""

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


class LoopSession(Protocol):
    """What belongs to one event loop: connections, and what waits for them."""

    async def close(self) -> None:
        """Close the connections."""


S = TypeVar("S", bound=LoopSession)


class LoopSessions(Generic[S]):
    """A session for each event loop, and a bridge for threads that have no loop."""

    def __init__(self, make: Callable[[], S]) -> None:
        """Make sessions by `make`, when they are first needed."""
        self._make = make
        self._by_loop: dict[asyncio.AbstractEventLoop, S] = {}
        self._lock = threading.Lock()
        self._inherited: list[S] = []
        """What a parent had open when it forked: kept, so that nothing closes its connections."""
        self.bridge = Bridge(after_fork=self._leave_parent)

    def current(self) -> S | None:
        """Return the running loop's session, if it has one."""
        return self._by_loop.get(asyncio.get_running_loop())

    def get(self) -> S:
        """Return the running loop's session; make it if there is none."""
        loop = asyncio.get_running_loop()
        session = self._by_loop.get(loop)
        if session is not None:
            return session
        with self._lock:
            for known in [known for known in self._by_loop if known.is_closed()]:
                del self._by_loop[known]
            return self._by_loop.setdefault(loop, self._make())

    def forget(self, session: S) -> None:
        """Make a new session next time, if the running loop still has this one."""
        with self._lock:
            if self.current() is session:
                del self._by_loop[asyncio.get_running_loop()]

    def in_use(self) -> bool:
        """Return whether a loop that is not closed has a session."""
        return not all(loop.is_closed() for loop in self._by_loop)

    async def close(self) -> None:
        """Close the running loop's session, and what the bridge holds open."""
        with self._lock:
            session = self._by_loop.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()
        await asyncio.to_thread(self.bridge.close)

    def _leave_parent(self) -> None:
        """Start again in a forked child: the parent's sessions and locks are not its own."""
        self._lock = threading.Lock()
        self._inherited += self._by_loop.values()
        self._by_loop.clear()


def is_in_a_loop() -> bool:
    """Return whether this thread runs an event loop, which a wait would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
