"""Where a claim enters its ranges, against dead index entries that a pinned xmin keeps.

Own to PostgreSQL: the index of a SQLite file has no dead entries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

from msgspec import Struct

from holdfast.lifecycle.record import Job
from holdfast.lifecycle.routes import offered_routes
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Claimed, ClaimRequest
from holdfast.stores.claim_ranges import Range, range_of
from holdfast.stores.postgres.wakeup import WakeUp

NOWHERE = -(2**62)
CURSOR_AFTER = 4
"""Full claims in a row after which a range is entered where the last one ended."""
CURSOR_FOR = 16
"""Claims by cursor after which all is looked at from the start again."""
SLACK = 2 * SECOND
"""How far before the latest job a range is entered: what is submitted first may be seen later."""
CHEAP_SECONDS, CHEAP_SECONDS_A_JOB = 0.02, 0.0004
"""What a claim from the start may take before the next ones enter later."""
REST = 20
"""After a costly claim from the start there is no other for this many times as long."""

ARMS = 500
"""Ranges of which it is remembered where jobs were taken from them, the latest: a claim that enters
late looks at each."""

ALONE_SECONDS = 0.25
"""How long after a look at all ranges a claim may look at a hinted one alone. What becomes due by
its time brings no hint, and hints can be lost: such a job waits for this and a poll at most."""
LOOKS_KNOWN = 100
"""Kinds of requests of which the last look is remembered: a server claims for many workers."""

LAST_ROUTE, LAST_LANE = "\U0010ffff", 2**63 - 1
"""Behind every route, and every lane."""


class Search(NamedTuple):
    """Where a claim looks for ranges in the index: in a queue, between two routes and lanes."""

    queue: str
    route: str
    lane: int
    last_route: str
    last_lane: int


class Entries(Struct, frozen=True):
    """The ranges of a claim, and where it enters each."""

    search: tuple[Search, ...]
    """Where to look for ranges; each that is found is entered at its start."""
    known: tuple[tuple[Range, int], ...] = ()
    """Ranges that need not be looked for, and where to enter each."""


def at_their_start(ranges: Sequence[Range]) -> Entries:
    """Return known ranges, each entered at its start."""
    return Entries((), tuple((one, NOWHERE) for one in ranges))


@lru_cache(maxsize=256)
def list_searches(queues: tuple[str, ...], tasks: tuple[str, ...] | None) -> tuple[Search, ...]:
    """Return where the ranges of these tasks are, each as `name` or `name@version`; None: of all.

    One for each route, not one for the queue: so nothing of other tasks is read, dead or alive.
    """
    names = dict.fromkeys(queues)
    if tasks is None:
        return tuple(Search(queue, "", -1, LAST_ROUTE, LAST_LANE) for queue in names)
    routes = offered_routes(tasks)
    return tuple(Search(queue, route, -1, route, LAST_LANE) for queue in names for route in routes)


class _LastLook(Struct):
    """What claims of one kind have seen."""

    heard: int
    """The number of the last hint before the last of them."""
    all_at: float
    """When one looked at all ranges last, and left nothing that was due."""


class HintedRanges:
    """Decides when a claim looks only at the one range that hints have named since the last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._looks: dict[Hashable, _LastLook] = {}

    def choose(self, request: ClaimRequest, wake: WakeUp) -> Range | None:
        """Return the range; None where all have to be looked at."""
        look = self._looks.get(_kind(request))
        if look is None or self._clock() - look.all_at > ALONE_SECONDS:
            return None
        hinted = wake.find_range(request.queues, look.heard)
        return hinted if hinted is not None and _is_served(hinted, request) else None

    def note_claim(
        self, request: ClaimRequest, hinted: Range | None, *, heard: int, is_full: bool
    ) -> None:
        """Learn of a claim that was answered: `heard` is the number of the last hint before it."""
        if request.tenant is not None or request.capacity is not None:
            return
        if len(self._looks) > LOOKS_KNOWN:
            self._looks.clear()
        look = self._looks.setdefault(_kind(request), _LastLook(heard, -inf))
        look.heard = heard
        if is_full:
            look.all_at = -inf
        elif hinted is None:
            look.all_at = self._clock()


def _kind(request: ClaimRequest) -> Hashable:
    """Return what makes two requests see the same jobs."""
    return (
        request.queues,
        request.tasks,
        request.capabilities,
        request.tenant,
        request.capacity is None,
    )


def _is_served(one: Range, request: ClaimRequest) -> bool:
    return any(
        search.queue == one.queue
        and (search.route, search.lane) < one[1:] < (search.last_route, search.last_lane)
        for search in list_searches(request.queues, request.tasks)
    )


class ClaimStarts:
    """Decides where a claim enters its ranges. Only a hint, which may pass over jobs for a while.

    Ranges are looked for and entered at their start, as long as that is cheap. Where it is not,
    what is due for longer than the slack waits for the next claim from the start. A backlog is
    taken in its order: after some full claims each enters where the last one ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with nothing known: every range is entered at its start."""
        self._full = 0
        self._at: dict[Range, int] = {}
        """The latest that was taken by full claims in a row."""
        self._ever: dict[Range, int] = {}
        """The latest that was ever taken."""
        self._clock = clock
        self._rested_at = 0.0
        self.hinted = HintedRanges(clock)

    @property
    def are_cheap(self) -> bool:
        """Whether a range may be entered at its start."""
        return self._full < CURSOR_AFTER and not self._rests

    def choose_entries(self, search: Sequence[Search]) -> Entries:
        """Return where to look for ranges, and which ones to enter at a cursor."""
        if self._full >= CURSOR_AFTER:
            return _enter_behind(search, self._at, 0)
        if self._rests:
            return _enter_behind(search, self._ever, SLACK)
        return Entries(search=tuple(search))

    @property
    def _rests(self) -> bool:
        return self._clock() < self._rested_at

    def note_claim_time(self, entries: Entries, seconds: float, jobs: int) -> None:
        """Learn how long a claim took that entered there, and how many jobs it brought."""
        costly = seconds > CHEAP_SECONDS + CHEAP_SECONDS_A_JOB * jobs
        if costly and not entries.known:
            self._rested_at = self._clock() + REST * seconds

    def learn(self, jobs: Sequence[Claimed], limit: int) -> None:
        """Learn what a claim brought."""
        self._full = self._full + 1 if len(jobs) == limit and limit > 1 else 0
        if self._full > CURSOR_AFTER + CURSOR_FOR and not self._rests:
            self._full = 0
        if not self._full:
            self._at.clear()
        for job, run_at in _find_latest_due(jobs):
            arm = range_of(job)
            order = run_at + arm.ageing
            for latest in (self._at, self._ever) if self._full else (self._ever,):
                # The latest go last, so that the first is the one to forget.
                latest[arm] = max(latest.pop(arm, NOWHERE), order)
                if len(latest) > ARMS:
                    del latest[next(iter(latest))]


def _enter_behind(search: Sequence[Search], latest: Mapping[Range, int], slack: int) -> Entries:
    """Enter the ranges that jobs were taken from behind these, and look for others between them.

    Only there: so a claim never reads the dead entries of the ranges that it has emptied.
    """
    by_queue: dict[str, list[Range]] = {}
    for arm in sorted(latest):
        by_queue.setdefault(arm.queue, []).append(arm)
    gaps: list[Search] = []
    known: list[Range] = []
    for one in search:
        passed = [
            arm
            for arm in by_queue.get(one.queue, ())
            if (one.route, one.lane) < arm[1:] < (one.last_route, one.last_lane)
        ]
        known += passed
        edges = [(one.route, one.lane), *(arm[1:] for arm in passed)]
        ends = [*edges[1:], (one.last_route, one.last_lane)]
        gaps += [Search(one.queue, *edge, *end) for edge, end in zip(edges, ends, strict=True)]
    return Entries(tuple(gaps), tuple((arm, latest[arm] - slack) for arm in known))


def _find_latest_due(jobs: Sequence[Claimed]) -> list[tuple[Job, int]]:
    """Return when the latest of jobs that were claimed alike is due, with what they share."""
    latest: dict[int, tuple[Job, int]] = {}
    group, due = None, 0
    for claimed in jobs:
        run_at = claimed.run_at or 0
        # Neighbours are mostly of one group.
        if claimed.group is not group or run_at > due:
            group = claimed.group
            due = max(run_at, latest[id(group)][1]) if id(group) in latest else run_at
            latest[id(group)] = group.like, due
    return list(latest.values())
