"""What must hold of a whole store at any time: every job is what its events say it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from holdfast.lifecycle.derive import derive
from holdfast.lifecycle.invariants import broken_rules
from holdfast.lifecycle.job import Job, LoggedEvent
from holdfast.lifecycle.ledger import log_problems
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.states import (
    KEYS_FREED_AT_CLEANED,
    KEYS_FREED_AT_END,
    KeyKind,
    Retention,
)
from holdfast.ports import Count, KeyRow, LedgerEntry, Store


async def assert_invariants(store: Store) -> None:
    """Derive every job again from its events and compare; recount the summaries."""
    entries = [entry async for batch in store.ledger() for entry in batch]
    problems = [f"{entry.id}: {text}" for entry in entries for text in entry_problems(entry)]
    rows = [entry.row for entry in entries if entry.row is not None]
    problems += _order_problems(entries)
    problems += _count_problems(rows, await store.counts())
    if await store.get([row.id for row in rows]) != rows:
        problems.append("get answers something else than the ledger")
    assert not problems, "\n".join(problems)


def entry_problems(entry: LedgerEntry) -> list[str]:
    """Say what is wrong with one job: its row, its log, its bodies, its keys."""
    if entry.unreadable or entry.row is None or not entry.events:
        return [entry.unreadable or f"{'no events' if entry.row else 'no row'}"]
    derived = derive(entry.events)
    assert derived is not None
    return [
        *_differences(entry.row, derived),
        *log_problems(entry.events),
        *(f"breaks {rule}" for rule in broken_rules(entry.row)),
        *_body_problems(entry.events),
        *_key_problems(entry.row, entry.events[0], entry.keys),
    ]


def _differences(row: Job, derived: Job) -> list[str]:
    return [
        f"{name} is {getattr(row, name)!r}, its events say {getattr(derived, name)!r}"
        for name in row.__struct_fields__
        if getattr(row, name) != getattr(derived, name)
    ]


def _body_problems(events: Iterable[LoggedEvent]) -> list[str]:
    return [
        f"rev {event.rev}: the digest is not of this body"
        for event in events
        if event.body is not None and event.digest != digest(event.body)
    ]


def _key_problems(row: Job, first: LoggedEvent, keys: Sequence[KeyRow]) -> list[str]:
    """Compare the keys a job holds with those it was given and whose term has not ended."""
    freed: Sequence[KeyKind] = KEYS_FREED_AT_END if row.terminal else ()
    if row.retention is Retention.CLEANED:
        freed = KEYS_FREED_AT_CLEANED
    due = {kind for kind in KeyKind if kind.code & row.key_kinds and kind not in freed}
    problems = []
    if due != {key.kind for key in keys} or len(due) != len(keys):
        held = ", ".join(sorted(key.kind for key in keys)) or "no key"
        problems.append(f"holds {held} instead of {', '.join(sorted(due)) or 'none'}")
    named = {KeyKind.JOB_ID: row.job_id, KeyKind.REQUEST_ID: first.request_id}
    for key in keys:
        if key.tenant != row.tenant or key.key != named.get(key.kind, key.key):
            problems.append(f"holds the {key.kind} {key.key!r} of another")
    return problems


def _order_problems(entries: Sequence[LedgerEntry]) -> list[str]:
    ids = [entry.id for entry in entries]
    return [] if ids == sorted(set(ids)) else ["the ledger is out of order, or repeats a job"]


def _count_problems(rows: Iterable[Job], counts: Iterable[Count]) -> list[str]:
    counted = {(count.tenant, count.queue, count.state): count.jobs for count in counts}
    recounted = Counter((row.tenant, row.queue, row.state) for row in rows)
    return [
        f"{place}: {counted.get(place, 0)} counted, {recounted[place]} there"
        for place in counted.keys() | recounted.keys()
        if counted.get(place, 0) != recounted[place]
    ]
