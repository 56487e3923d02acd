"""Every interleaving of all who act on one job: an explicit search of the states of a `world`.

States that differ only in what no later step can see (revisions, names of requests, times long
past) are one state. `python -m tests.lifecycle.search --help` runs it for as long as you like.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Hashable
from typing import NamedTuple

from holdfast.lifecycle import commands as c
from holdfast.lifecycle import rebase as rebasing
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import State
from tests.lifecycle import promises
from tests.lifecycle.world import (
    GUARDS,
    Broken,
    Model,
    Parcel,
    Party,
    Size,
    World,
    as_owner,
    find_request,
    holders,
    insist,
    is_live,
)


def essence(world: World, *, blind: bool = False) -> Hashable:
    """All that a later step can see of a world; `blind` to revisions, it may see more.

    Behind a compare-and-set, what a client once read is as good as nothing read as soon as the job
    has moved on: its commit is stale and it reads again. And a worker that has lost the job and has
    nothing under way can do no more than find out.
    """
    job = world.job
    return (
        seen_of(job, world.now),
        world.ticks,
        world.lost_replies,
        (world.takeovers, world.retakes),
        _worker_sees(world, world.w1),
        _worker_sees(world, world.w2),
        _sender_sees(world, world.sweep, blind=blind),
        _sender_sees(world, world.ann, blind=blind),
        _sender_sees(world, world.bob, blind=blind),
    )


def seen_of(job: Job, now: int) -> Hashable:
    """All that a later step can see of a record."""
    lease = job.lease_expires_at
    return (
        job.state.code,
        job.attempt,
        job.failures,
        job.releases,
        job.owner,
        lease is not None and lease > now,
        job.cancel_requested,
        len(job.signals),
        job.state is State.WAITING and job.run_at is not None and job.run_at > now,
        job.result_digest,
        job.error_code,
    )


def _worker_sees(world: World, party: Party) -> Hashable:
    known, parcel = party.known, party.parcel
    sees: Hashable = None
    if parcel is not None:
        sees = _contents(world, parcel)
    elif known is not None:
        if known is world.job:
            sees = "current"
        elif rebasing.still_mine(world.job, c.Start(actor=as_owner(party, known))):
            sees = seen_of(known, world.now)
        else:
            sees = "lost"
    live = known is not None and is_live(known, world.now)
    return (party.left, party.beats, party.dead, sees, live)


def _sender_sees(world: World, party: Party, *, blind: bool) -> Hashable:
    parcel = party.parcel
    if parcel is None:
        return party.left
    if not blind and party.name != "sweep" and parcel.changes:
        if parcel.changes[0].record.rev != world.job.rev:
            return party.left + 1
        return (party.left, "fresh")
    return (party.left, _contents(world, parcel))


def _contents(world: World, parcel: Parcel) -> Hashable:
    command = parcel.command
    as_of: int | None = getattr(command, "as_of", None)
    fresh = bool(parcel.changes) and parcel.changes[0].record.rev == world.job.rev
    return (
        command.operation,
        command.actor.role,
        command.actor.attempt,
        find_request(world, command) is not None,
        as_of and as_of - world.now,
        fresh,
    )


class Findings(NamedTuple):
    """How far a search came, and the shortest way to a broken promise if there is one."""

    states: int
    steps: int
    depth: int
    complete: bool
    """Whether nothing was left to explore at this depth."""
    seconds: float
    kinds: frozenset[str]
    """The labels of all steps taken: what the search has really tried."""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Tell it in a few lines."""
        text = (
            f"{self.states:,} states, {self.steps:,} steps, depth {self.depth}, "
            f"{self.seconds:.1f} s{', complete' if self.complete else ''}"
        )
        return "\n  ".join((text, *self.trace))


def explore(
    size: Size, guards: frozenset[str] = GUARDS, *, seconds: float | None = None
) -> Findings:
    """Search breadth first, so that the first broken promise has the shortest trace."""
    began = time.monotonic()
    model, blind = Model(size, guards), "rev" not in guards
    world = model.beginning()
    came_from: dict[Hashable, tuple[Hashable, str]] = {essence(world, blind=blind): (None, "")}
    frontier, steps, depth = [world], 0, 0
    kinds: set[str] = set()

    def findings(trace: tuple[str, ...] = ()) -> Findings:
        spent = time.monotonic() - began
        return Findings(len(came_from), steps, depth, not frontier, spent, frozenset(kinds), trace)

    while frontier and depth < size.depth:
        if seconds is not None and time.monotonic() - began > seconds:
            break
        reached: list[World] = []
        for world in frontier:
            here = essence(world, blind=blind)
            try:
                for label, after in model.steps(world):
                    steps += 1
                    kinds.add(label)
                    there = essence(after, blind=blind)
                    if there not in came_from:
                        came_from[there] = (here, label)
                        insist(label, promises.two_holders(holders(after)))
                        reached.append(after)
            except Broken as broken:
                return findings((*_way_to(came_from, here), str(broken)))
        frontier, depth = reached, depth + 1
    return findings()


def _way_to(came_from: dict[Hashable, tuple[Hashable, str]], state: Hashable) -> list[str]:
    way: list[str] = []
    while (step := came_from[state])[0] is not None:
        state = step[0]
        way.append(step[1])
    return way[::-1]


def main() -> None:
    """Search with sizes from the command line and say how far it came."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in Size()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--seconds", type=float, help="begin no deeper level after this long")
    parser.add_argument("--without", choices=sorted(GUARDS), help="switch off a guard of the store")
    given = vars(parser.parse_args())
    seconds, without = given.pop("seconds"), given.pop("without")
    print(explore(Size(**given), GUARDS - {without}, seconds=seconds))


if __name__ == "__main__":
    main()
