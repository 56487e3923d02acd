"""Who listens on the bus: topics without a subscriber are left alone for a while.

Heartbeats and handshakes only shorten that while; a worker need not send any.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain, islice, zip_longest
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
MOST_OF_A_WORKER = 50
"""Capabilities that are kept of one worker."""
MOST_CAPABILITIES = 500
"""Capabilities of all workers: the store would refuse an announcement that is too long."""
MOST_TOPICS = 10_000


class _Topic(Struct):
    closed_until: float = 0.0
    pause: float = 0.0
    served_at: float = -SERVED_SECONDS


class _Worker(Struct, frozen=True):
    seen_at: float = -SERVED_SECONDS
    capabilities: tuple[str, ...] = ()


class Listeners:
    """What is known of the topics and workers of a bus; all of it is bounded, and may be wrong."""

    def __init__(self, on_open: Callable[[], None]) -> None:
        self._on_open = on_open
        self._topics: OrderedDict[str, _Topic] = OrderedDict()
        self._workers: OrderedDict[str, _Worker] = OrderedDict()

    @property
    def capabilities(self) -> frozenset[str]:
        """What the workers have that were seen a moment ago."""
        since = monotonic() - SERVED_SECONDS
        lists = [one.capabilities for one in self._workers.values() if one.seen_at > since]
        found: set[str] = set()
        # The first of each before the second of any: one that names many leaves room for others.
        for capability in chain.from_iterable(zip_longest(*lists)):
            if len(found) == MOST_CAPABILITIES:
                break
            if capability is not None:
                found.add(capability)
        return frozenset(found)

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
        last = self._workers.pop(word.sender, _Worker())
        given = word.capabilities
        kept = last.capabilities if given is None else _choose(given)
        self._workers[word.sender] = _Worker(monotonic(), kept)
        while len(self._workers) > MOST_WORKERS:
            self._workers.popitem(last=False)
        # One that was away may listen to anything; one that is known has opened its own.
        new = monotonic() - last.seen_at >= SERVED_SECONDS
        closed = [topic for topic, known in self._topics.items() if known.closed_until]
        opened = [topic for topic in closed if new or topic in word.topics]
        for topic in opened:
            self._topics[topic].closed_until = 0.0
        if opened:
            self._on_open()

    def _topic(self, topic: str) -> _Topic:
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _Topic()
            while len(self._topics) > MOST_TOPICS:
                self._topics.popitem(last=False)
        return known


def _choose(given: frozenset[str]) -> tuple[str, ...]:
    """Return what is kept of a worker's capabilities."""
    # What no store could keep would end every claim, and not only this sender's.
    return tuple(islice(filter(_is_name, sorted(given)), MOST_OF_A_WORKER))


def _is_name(capability: str) -> bool:
    try:
        check_text(capability, "a capability", limit=200)
    except BadData:
        return False
    return True
