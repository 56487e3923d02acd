"""Who listens on the bus: topics without a subscriber are left alone for a while.

Heartbeats and handshakes only shorten that while; a worker need not send any.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic

from msgspec import Struct

from holdfast.errors import BadData
from holdfast.lifecycle.payload import check_text
from holdfast.ports.bus import BusWord, WorkerPresence

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
SERVED_SECONDS = 60.0
"""How long a topic counts as served after a message to it found a listener."""
MOST_WORKERS = 1000
MOST_CAPABILITIES = 1000
MOST_TOPICS = 10_000


class _Topic(Struct):
    closed_until: float = 0.0
    pause: float = 0.0
    served_at: float = -SERVED_SECONDS


class Listeners:
    """What is known of the topics and workers of a bus; all of it is bounded, and may be wrong."""

    def __init__(self, on_open: Callable[[], None]) -> None:
        self._on_open = on_open
        self._topics: OrderedDict[str, _Topic] = OrderedDict()
        self._workers: OrderedDict[str, float] = OrderedDict()
        self.capabilities: frozenset[str] = frozenset()

    def is_open(self, topic: str) -> bool:
        """Return whether a job may be sent to a topic now."""
        return monotonic() >= self._topic(topic).closed_until

    def is_served(self, topic: str) -> bool:
        """Return whether a worker listened a moment ago."""
        return monotonic() - self._topic(topic).served_at < SERVED_SECONDS

    def is_silent(self, topic: str) -> bool:
        """Return whether nobody listened the last time."""
        return self._topic(topic).pause > 0

    def close(self, topic: str) -> None:
        """Leave a topic alone: nobody listened."""
        known = self._topic(topic)
        known.pause = min(max(known.pause * 2, FIRST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        known.closed_until = monotonic() + known.pause
        known.served_at = -SERVED_SECONDS

    def serve(self, topic: str) -> None:
        """Note that a worker listened."""
        known = self._topic(topic)
        known.pause = known.closed_until = 0.0
        known.served_at = monotonic()

    async def handle(self, words: Sequence[BusWord]) -> None:
        """Learn from heartbeats and handshakes."""
        for word in words:
            assert isinstance(word, WorkerPresence)
            self._learn(word)

    def _learn(self, word: WorkerPresence) -> None:
        self._add_capabilities(word.capabilities)
        last = self._workers.pop(word.sender, -SERVED_SECONDS)
        self._workers[word.sender] = monotonic()
        while len(self._workers) > MOST_WORKERS:
            self._workers.popitem(last=False)
        # One that was away may listen to anything; one that is known has opened its own.
        new = monotonic() - last >= SERVED_SECONDS
        closed = [topic for topic, known in self._topics.items() if known.closed_until]
        opened = [topic for topic in closed if new or topic in word.topics]
        for topic in opened:
            self._topics[topic].closed_until = 0.0
        if opened:
            self._on_open()

    def _add_capabilities(self, given: frozenset[str]) -> None:
        room = MOST_CAPABILITIES - len(self.capabilities)
        # What no store could keep would end every claim, and not only this sender's.
        new = (one for one in given - self.capabilities if _is_name(one))
        self.capabilities |= set(islice(new, room))

    def _topic(self, topic: str) -> _Topic:
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _Topic()
            while len(self._topics) > MOST_TOPICS:
                self._topics.popitem(last=False)
        return known


def _is_name(capability: str) -> bool:
    try:
        check_text(capability, "a capability", limit=200)
    except BadData:
        return False
    return True
