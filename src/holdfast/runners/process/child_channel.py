"""The end of the channel to the worker in a handler's process: blocking, for any thread."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Iterator

from holdfast.runners.process.protocol import (
    TO_CHILD_LIMIT,
    Frames,
    HandlerHeartbeat,
    HandlerProgress,
    ToChild,
    ToWorker,
    frame,
)

_READ_SIZE = 64 * 1024


class Channel:
    """Sends whole messages, and reads what the worker sends."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._late: dict[type, HandlerProgress | HandlerHeartbeat] = {}

    def messages(self) -> Iterator[ToChild]:
        """Return what the worker sends, until it closes the channel or dies."""
        frames: Frames[ToChild] = Frames(ToChild, limit=TO_CHILD_LIMIT)
        with contextlib.suppress(OSError):
            while data := self._connection.recv(_READ_SIZE):
                yield from frames.feed(data)

    def send(self, message: ToWorker) -> None:
        """Send, waiting if the worker is slow to read."""
        with self._lock:
            while self._late:
                self._connection.sendall(frame(self._late.popitem()[1]))
            self._connection.sendall(frame(message))

    def offer(self, message: HandlerProgress | HandlerHeartbeat) -> None:
        """Send without waiting; if the worker is slow, the newest of its kind goes later."""
        if not self._lock.acquire(blocking=False):
            self._late[type(message)] = message
            return
        try:
            if select.select([], [self._connection], [], 0)[1]:
                self._late.pop(type(message), None)
                self._connection.sendall(frame(message))
            else:
                self._late[type(message)] = message
        finally:
            self._lock.release()
