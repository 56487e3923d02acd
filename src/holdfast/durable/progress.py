"""How far a handler is, told once: a handler that runs again from the top, past what is recorded,
reports again what it had reported before, and its bar must not jump back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.durable.messages import Ask, Recall, Recalled, Reply
from holdfast.lifecycle.payload import Body


class Reports:
    """The reports of one attempt that may be a repetition. From any thread."""

    def __init__(
        self, ask: Ask, replays: Callable[[], bool | None], send: Callable[[Body], None]
    ) -> None:
        """Ask what is recorded; `replays` is None while the handler has made no durable call."""
        self._ask = ask
        self._replays = replays
        self._send = send
        self._lock = threading.Lock()
        self._asked = False
        self._is_recorded: bool | None = None
        self._kept: Body | None = None

    def report(self, body: Body) -> None:
        """Send a report, unless the handler has not come as far as an earlier attempt."""
        replays = self._replays()
        if replays is None:
            # No step came by yet. Whether any is recorded decides whether this is a repetition.
            replays = self._is_recorded
        if replays is None:
            self._keep(body)
        elif not replays:
            self._send(body)

    def _keep(self, body: Body) -> None:
        with self._lock:
            self._kept = body
            first, self._asked = not self._asked, True
        if first:
            self._ask(Recall(), self._answered)

    def finish(self) -> None:
        """Send what is kept at the end of a handler that has made no durable call."""
        if self._replays() is None:
            self._release()

    def _answered(self, reply: Reply) -> None:
        self._is_recorded = isinstance(reply, Recalled) and bool(reply.entries)
        if not self._is_recorded:
            self._release()

    def _release(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            self._send(kept)
