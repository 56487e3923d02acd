"""The one writer of a database file in this process: a thread that gathers what waits.

Whatever callers have asked for while a transaction was under way goes into the next one, each in
a savepoint of its own, so that a bad one fails alone and all pay for one flush of the disk. Own to
SQLite: only one transaction at a time can write to a file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import apsw

from holdfast.crash_points import reach
from holdfast.errors import StoreBroken, StoreError, StoreReplaced
from holdfast.stores.columns import Dictionary
from holdfast.stores.sqlite.connections import (
    FATAL,
    FileIdentity,
    Patience,
    SqlitePlace,
    translate_error,
)
from holdfast.stores.sqlite.notices import Notices
from holdfast.stores.sqlite.turn import Turn, settle_counts
from holdfast.stores.sqlite.wakeup import News
from holdfast.stores.sqlite.write_queue import Turnstile

T = TypeVar("T")
log = logging.getLogger(__name__)
Action: TypeAlias = Callable[[Turn], Any]
TOGETHER = 256
"""Callers that share a transaction at most: the first must not wait for the last too long."""


class WriteRequest:
    """What one caller asked for, and what came of it."""

    def __init__(
        self,
        action: Action,
        clock: Callable[[], int],
        future: asyncio.Future[Any],
    ) -> None:
        self.action = action
        self.clock = clock
        self.future = future
        self.result: Any = None
        self.error: BaseException | None = None

    def answer(self) -> None:
        """Answer the caller, unless it has gone; on its own event loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Writer:
    """Serves write requests, gathered, on one connection that nobody else uses."""

    def __init__(
        self,
        connection: apsw.Connection,
        place: SqlitePlace,
        seen: Dictionary,
        identity: FileIdentity,
    ) -> None:
        self.news = News()
        self._connection = connection
        self._place = place
        self._seen = seen
        self._identity = identity
        self._waiting: deque[WriteRequest] = deque()
        self._urgent: deque[WriteRequest] = deque()
        self._lock = threading.Lock()
        self._resting = False
        """Whether the thread waits, or is about to."""
        self._closing = False
        self._served: list[WriteRequest] = []
        self._turn = Turn(connection, seen, 0)
        connection.create_scalar_function("holdfast_now", lambda *_: self._turn.now, 0)
        self._stopped: str | None = None
        """Why nobody is served any more."""
        self._turnstile = None if place.in_memory else Turnstile(place.path)
        self._notices = _open_notices(self._turnstile)
        self._thread = threading.Thread(
            target=self._serve, name=f"holdfast writer of {place.path}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Finish what was asked for, then close; blocks until it is done."""
        with self._lock:
            self._closing = True
            self._wake_thread()
        self._thread.join()

    async def perform(
        self, action: Callable[[Turn], T], clock: Callable[[], int], *, urgent: bool = False
    ) -> T:
        """Run an action in a transaction, urgent ones first; return once it is durable.

        Cancelling the wait does not undo it: others are in the same transaction.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        request = WriteRequest(action, clock, future)
        with self._lock:
            if self._closing:
                raise StoreError("the store is closed")
            if self._stopped is not None:
                raise StoreBroken(self._stopped)
            (self._urgent if urgent else self._waiting).append(request)
            self._wake_thread()
        return await future

    def _wake_thread(self) -> None:
        """End the thread's rest, if it has one; with the lock."""
        if self._resting:
            self._resting = False
            self._notices.signal()

    async def await_news(
        self, queues: frozenset[str], number: int, *, limit_seconds: float
    ) -> bool:
        """Wait until work may have come since a number, or the limit."""
        if not self._notices.are_watched:
            # The thread may be resting for as long as nobody waited: it now looks by the clock.
            asyncio.get_running_loop().call_soon(self._nudge)
        return await self.news.wait(queues, number, limit_seconds)

    def _nudge(self) -> None:
        with self._lock:
            self._wake_thread()

    def _serve(self) -> None:
        try:
            while (requests := self._gather_requests()) is not None:
                self._serve_some(requests)
        except BaseException as error:  # the thread's edge: without it, all would wait for ever
            log.exception("the writer of %s stopped", self._place.path)
            self._give_up(error)
        finally:
            # Even a connection that cannot be closed must not keep the file of the queue open.
            with contextlib.suppress(apsw.Error):
                self._connection.close()
            if self._turnstile is not None:
                self._turnstile.close()
            self._notices.close()

    def _serve_some(self, requests: list[WriteRequest]) -> None:
        self._served = requests
        if requests:
            if woken := self._transact(requests):
                # Others first: they have the longer way.
                self._notices.send()
                self.news.note_commit(woken)
            _deliver_answers(requests)
        else:
            self._look_for_news()

    def _give_up(self, error: BaseException) -> None:
        """Fail all callers that wait, and those that come later."""
        with self._lock:
            self._stopped = (
                f"the writer of {self._place.path} stopped ({error!r}); what it was doing may or "
                "may not be there: close all stores of the file and open them again"
            )
            left = [*self._served, *self._urgent, *self._waiting]
            self._urgent.clear()
            self._waiting.clear()
            self._resting = False
        _fail(left, StoreBroken(self._stopped))
        _deliver_answers(left)

    def _gather_requests(self) -> list[WriteRequest] | None:
        """Take all that waits; nothing when it is time to look for news, None at the end."""
        while True:
            with self._lock:
                if self._urgent or self._waiting:
                    return self._take_waiting()
                if self._closing:
                    return None
                self._resting = True
            if not self._notices.wait(self._rest_seconds()):
                with self._lock:
                    self._resting = False
                return []

    def _rest_seconds(self) -> float | None:
        """Return how long to wait for others before it is time to look; None: until they come."""
        if self._place.in_memory or self._notices.are_watched:
            return None
        return self.news.next_look_seconds()

    def _take_waiting(self) -> list[WriteRequest]:
        self._resting = False
        taken = list(self._urgent)
        self._urgent.clear()
        while self._waiting and len(taken) < TOGETHER:
            taken.append(self._waiting.popleft())
        return taken

    def _look_for_news(self) -> None:
        """Notice, between transactions, that another process has committed."""
        try:
            self.news.note_data_version(self._data_version())
        except apsw.Error:
            # Busy or broken: those who wait look for themselves, and meet the error there.
            self.news.note_data_version(None)

    def _data_version(self) -> int:
        version: int = self._connection.pragma("data_version")
        return version

    def _transact(self, requests: Sequence[WriteRequest]) -> set[str]:
        """Do all requests in one transaction, or, where that fails as a whole, each in its own.

        Returns the queues that may have got work.
        """
        patience = Patience(self._place.deadline_seconds)
        try:
            self._start_transaction(patience)
        except Exception as error:  # noqa: BLE001  the thread's edge: it fails every caller
            _fail(requests, error)
            return set()
        try:
            turns = self._perform_all(requests)
            reach("sqlite.committing")
            patience.retry_while_busy(lambda: self._connection.execute("COMMIT"))
            reach("sqlite.committed")
            self._identity.check()
        except Exception as error:  # noqa: BLE001  as above
            with contextlib.suppress(apsw.Error):
                self._roll_back()
            if len(requests) == 1 or isinstance(error, StoreReplaced):
                _fail(requests, error)
                return set()
            return set().union(*(self._transact([request]) for request in requests))
        for turn in turns:
            for remember in turn.after_commit:
                remember()
        return set().union(*(turn.woken for turn in turns))

    def _start_transaction(self, patience: Patience) -> None:
        # What could not be rolled back when the disk failed; see below.
        self._roll_back()
        if self._turnstile is None:
            patience.retry_while_busy(self._ask)
        else:
            self._turnstile.enter(self._ask, patience)

    def _ask(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def _roll_back(self) -> None:
        """Undo a transaction that is still open.

        Whatever failed, on this connection: opened again, it could find in the WAL what a failed
        sync left there, and write on after frames that never reached the disk.
        """
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _perform_all(self, requests: Sequence[WriteRequest]) -> list[Turn]:
        if not self._place.in_memory:
            self.news.note_data_version(self._data_version())
        if len(requests) == 1:
            turns = [self._perform_request(requests[0])]
        else:
            turns = [self._perform_apart(request) for request in requests]
        settle_counts(self._connection, turns)
        return turns

    def _perform_request(self, request: WriteRequest) -> Turn:
        turn = Turn(self._connection, self._seen, request.clock(), self.news.number)
        self._turn = turn
        request.error = None
        request.result = request.action(turn)
        return turn

    def _perform_apart(self, request: WriteRequest) -> Turn:
        """Do one of several: what it raises is its own, unless the disk or the file gave out."""
        self._connection.execute("SAVEPOINT caller")
        try:
            turn = self._perform_request(request)
        except FATAL:
            raise
        except Exception as error:
            if not self._connection.in_transaction:
                raise
            self._connection.execute("ROLLBACK TO caller")
            _fail([request], error)
            turn = Turn(self._connection, self._seen, 0)
        self._connection.execute("RELEASE caller")
        return turn


def _open_notices(turnstile: Turnstile | None) -> Notices:
    if turnstile is None:
        return Notices(None)
    try:
        return Notices(turnstile.name)
    except OSError as error:
        turnstile.close()
        raise StoreBroken(f"cannot wait for notices beside {turnstile.name}: {error}") from error


def _fail(requests: Iterable[WriteRequest], error: BaseException) -> None:
    for request in requests:
        request.error = translate_error(error)


def _deliver_answers(requests: Iterable[WriteRequest]) -> None:
    """Answer all callers, with one call into each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WriteRequest]] = {}
    for request in requests:
        by_loop.setdefault(request.future.get_loop(), []).append(request)
    for loop, answered in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, its callers are gone
            loop.call_soon_threadsafe(_answer_all, answered)


def _answer_all(requests: Iterable[WriteRequest]) -> None:
    for request in requests:
        request.answer()
