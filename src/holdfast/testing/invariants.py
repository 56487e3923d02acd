"""What must hold for a whole store at any time: every job is what its events make it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from holdfast.lifecycle.record import Job
from holdfast.maintenance.verify import entry_problems
from holdfast.ports.models import Count, LedgerEntry
from holdfast.ports.store import Store


async def assert_invariants(store: Store) -> None:
    """Derive every job again from its events and compare; recount the summaries."""
    entries = [entry async for batch in store.ledger() for entry in batch]
    problems = [f"{entry.id}: {text}" for entry in entries for text in entry_problems(entry)]
    rows = [entry.row for entry in entries if entry.row is not None]
    problems += _order_problems(entries)
    problems += _count_problems(rows, await store.counts())
    if await store.get([row.id for row in rows]) != rows:
        problems.append("get returns something else than the ledger")
    assert not problems, "\n".join(problems)


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
