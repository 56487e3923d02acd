"""The checker: what must be true of a ledger and of the outside effects once all is quiet again.

It judges from the events and from the resource, never from what a worker said of itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.states import TERMINAL, EventType
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.ports.models import LedgerEntry
from holdfast.ports.store import Store
from tests.support.resource import Effect, Resource

BY_OWNER = frozenset(
    {
        EventType.STARTED,
        EventType.LEASE_RENEWED,
        EventType.HEARTBEAT,
        EventType.PROGRESSED,
        EventType.SUCCEEDED,
        EventType.RETRYING,
        EventType.RELEASED,
    }
)
"""What only the one who holds a job may write."""
GRANTS = frozenset(
    {EventType.CLAIMED, EventType.STARTED, EventType.LEASE_RENEWED, EventType.HEARTBEAT}
)


async def assert_kept(
    store: Store, resource: Resource, acknowledged: Collection[str], *, steady_clock: bool = True
) -> None:
    """Fail with every broken promise that can be found; see `broken_promises`."""
    problems = await broken_promises(store, resource, acknowledged, steady_clock=steady_clock)
    assert problems == [], "\n".join(problems)


async def broken_promises(
    store: Store, resource: Resource, acknowledged: Collection[str], *, steady_clock: bool = True
) -> list[str]:
    """Tell what was lost, ended twice, or was written by an attempt that had lost its job.

    Without a `steady_clock` the times of events say nothing about leases.
    """
    unproven: list[LedgerProblem] = []
    await verify(store, on_problem=unproven.append)
    problems = [f"verify: {problem.id}: {problem.text}" for problem in unproven]
    effects = resource.all()
    seen: set[str] = set()
    async for batch in store.ledger():
        for entry in batch:
            if entry.row is None:
                problems.append(f"{entry.id}: there are events, and no row")
                continue
            name = entry.row.public_id
            seen.add(name)
            found = _of_one(entry.row, entry, effects.get(name, []), steady_clock)
            problems += [f"{name} ({entry.row.task}): {text}" for text in found]
    problems += [f"{name}: acknowledged and lost" for name in set(acknowledged) - seen]
    problems += [f"{name}: effects of no job" for name in effects.keys() - seen]
    return problems


def _of_one(
    row: Job, entry: LedgerEntry, effects: Sequence[Effect], steady_clock: bool
) -> Iterator[str]:
    if not row.terminal:
        yield f"is {row.state} at the end"
    yield from event_problems(entry.events, steady_clock=steady_clock)
    yield from _effect_problems(entry.events, effects)
    yield from _result_problems(entry.events, effects)


def event_problems(events: Sequence[LoggedEvent], *, steady_clock: bool = True) -> Iterator[str]:
    """Tell what is wrong with the life of one job, by its events alone."""
    yield from _outcome_problems(events)
    yield from _ownership_problems(events, steady_clock)


def _outcome_problems(events: Sequence[LoggedEvent]) -> Iterator[str]:
    endings = [event for event in events if _ends(event)]
    if len(endings) > 1:
        yield f"ended {len(endings)} times: {', '.join(event.type for event in endings)}"


def _ends(event: LoggedEvent) -> bool:
    return event.to_state in TERMINAL and event.from_state not in TERMINAL


def _ownership_problems(events: Sequence[LoggedEvent], steady_clock: bool) -> Iterator[str]:
    """Find writes by whoever did not hold the job, or whose lease had passed."""
    owner, attempt, lease = "", 0, 0
    for event in events:
        if event.type is EventType.CLAIMED:
            if event.attempt != attempt + 1:
                yield f"attempt {event.attempt} was handed out after attempt {attempt}"
            owner, attempt = event.actor, event.attempt
        elif event.type in BY_OWNER:
            if (event.actor, event.attempt) != (owner, attempt):
                yield (f"{event.type} by {event.actor}/{event.attempt}, held by {owner}/{attempt}")
            # A start is told late, with the commit that follows it.
            if steady_clock and event.type is not EventType.STARTED and event.at >= lease:
                yield f"{event.type} at {event.at}, after the lease had passed at {lease}"
        if event.type in GRANTS:
            lease = event.lease_expires_at or 0


def _effect_problems(events: Sequence[LoggedEvent], effects: Sequence[Effect]) -> Iterator[str]:
    claims = {event.attempt for event in events if event.type is EventType.CLAIMED}
    greatest = (0, 0)
    for effect in effects:
        if effect.attempt not in claims:
            yield f"attempt {effect.attempt} had an effect and was never claimed"
        if effect.accepted and effect.rank < greatest:
            yield f"the resource took {effect.rank} after {greatest}"
        greatest = max(greatest, effect.rank)
    begun = Counter(effect.rank for effect in effects if effect.what == "begin")
    for rank, times in begun.items():
        if times > 1:
            yield f"attempt {rank[1]} of epoch {rank[0]} was run {times} times"


def _result_problems(events: Sequence[LoggedEvent], effects: Sequence[Effect]) -> Iterator[str]:
    """Find an accepted result that is not that of the attempt which it is said to be of."""
    for event in events:
        if event.type is not EventType.SUCCEEDED:
            continue
        result = decode_body(event.body)
        if not isinstance(result, dict) or "attempt" not in result:
            continue
        if result["attempt"] != event.attempt:
            yield f"attempt {event.attempt} succeeded with the result of {result['attempt']}"
        done = {one.attempt for one in effects if one.what == "end" and one.accepted}
        if event.attempt not in done:
            yield f"attempt {event.attempt} succeeded, and the resource never took its effect"
        later = [one.attempt for one in effects if one.attempt > event.attempt]
        if later:
            yield f"attempt {event.attempt} succeeded though {max(later)} had begun"
