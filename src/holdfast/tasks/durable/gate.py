"""The gate of one attempt: steps pass side by side; a call that suspends the job, or ends the
attempt, passes alone. So no step has its effect where its record could no longer be written.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class Ticket:
    """One passage: waiting, inside, or over."""

    __slots__ = ("alone", "gate", "go", "inside")

    def __init__(self, gate: Gate, *, alone: bool) -> None:
        self.gate = gate
        self.alone = alone
        self.inside = False
        self.go: Callable[[], None] | None = None

    def enter(self, go: Callable[[], None]) -> None:
        """Wait for the turn, in the order of calls; `go` is called once inside, in any thread."""
        self.go = go
        self.gate.line_up(self)

    def enter_at_once(self) -> bool:
        """Enter, unless that means waiting."""
        return self.gate.let_in(self)

    def leave(self) -> None:
        """Let the next ones in; where its turn has not come yet, wait no longer."""
        self.gate.let_go(self)


class Gate:
    """The tickets that are inside, and those that wait. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside: set[Ticket] = set()
        self._waiting: deque[Ticket] = deque()

    def ticket(self, *, alone: bool = False) -> Ticket:
        """Make a passage through this gate."""
        return Ticket(self, alone=alone)

    def let_in(self, ticket: Ticket) -> bool:
        """Let a ticket in that would be the first in line; return whether it was."""
        with self._lock:
            if self._waiting or not self._has_room(ticket):
                return False
            self._take_in(ticket)
            return True

    def line_up(self, ticket: Ticket) -> None:
        """Let a ticket in, or have it wait."""
        with self._lock:
            self._waiting.append(ticket)
        self._admit()

    def let_go(self, ticket: Ticket) -> None:
        """Let a ticket out, wherever it is."""
        with self._lock:
            if ticket.inside:
                self._inside.discard(ticket)
                ticket.inside = False
            elif ticket in self._waiting:
                self._waiting.remove(ticket)
        self._admit()

    def _admit(self) -> None:
        while (ticket := self._take_in_next()) is not None and ticket.go is not None:
            ticket.go()

    def _take_in_next(self) -> Ticket | None:
        with self._lock:
            if not self._waiting or not self._has_room(self._waiting[0]):
                return None
            ticket = self._waiting.popleft()
            self._take_in(ticket)
            return ticket

    def _has_room(self, ticket: Ticket) -> bool:
        return not self._inside or not (ticket.alone or any(one.alone for one in self._inside))

    def _take_in(self, ticket: Ticket) -> None:
        self._inside.add(ticket)
        ticket.inside = True
