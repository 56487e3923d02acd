"""Progress of a handler that runs again from the top: it reports again what it had reported before,
and its progress must not jump back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from holdfast.lifecycle.payload import Body
from holdfast.tasks.durable.protocol import Ask, Recall, Recalled, Reply


class ProgressReports:
    """The reports of one attempt, which may repeat those of an earlier one. From any thread."""

    def __init__(
        self, ask: Ask, replays: Callable[[], bool | None], send: Callable[[Body], None]
    ) -> None:
        """`replays` returns None while the handler has made no durable call."""
        self._ask = ask
        self._replays = replays
        self._send = send
        self._lock = threading.Lock()
        self._asked = False
        self._is_recorded: bool | None = None
        self._kept: Body | None = None

    def report(self, body: Body) -> None:
        """Send a report, unless the handler has not come as far as an earlier attempt did."""
        replays = self._replays()
        if replays is None:
            # No step was called yet. This is a repetition if any is recorded.
            replays = self._is_recorded
        if replays is None:
            self._keep_until_recalled(body)
        elif not replays:
            self._send(body)

    def _keep_until_recalled(self, body: Body) -> None:
        with self._lock:
            self._kept = body
            first, self._asked = not self._asked, True
        if first:
            self._ask(Recall(), self._take_recalled)

    def finish(self) -> None:
        """Send what is kept at the end of a handler that has made no durable call."""
        if self._replays() is None:
            self._send_kept()

    def _take_recalled(self, reply: Reply) -> None:
        self._is_recorded = isinstance(reply, Recalled) and bool(reply.entries)
        if not self._is_recorded:
            self._send_kept()

    def _send_kept(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            self._send(kept)
