"""Verify: derive every job from its events and compare, column by column, key by key.

In bounded memory, each batch in one short snapshot, so that it can run beside live work without a
false alarm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeAlias

from msgspec import Struct

from holdfast.lifecycle.derive import derive, derive_status
from holdfast.lifecycle.holds import listed_holds
from holdfast.lifecycle.invariants import broken_rules
from holdfast.lifecycle.keys import derived_keys
from holdfast.lifecycle.log_checks import is_newer, log_problems
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.record import Job, JobId, LoggedEvent
from holdfast.lifecycle.states import KeyKind, Retention, State
from holdfast.maintenance.anchor import AnchorCheck, Anchored
from holdfast.ports.models import Count, LedgerEntry
from holdfast.ports.store import Store
from holdfast.queries.history import read_all_events

Progress = Callable[[int], None]
Summary: TypeAlias = Counter[tuple[str, str, State]]


class LedgerProblem(Struct, frozen=True):
    """What is wrong with one job, or with the ledger as a whole."""

    id: JobId | None
    text: str


class Verified(Struct, kw_only=True):
    """What was verified."""

    jobs: int = 0
    events: int = 0
    erased: int = 0
    """Bodies that retention erased: their digest is there, their content is not checkable."""
    problems: int = 0


async def verify(
    store: Store,
    *,
    on_problem: Callable[[LedgerProblem], None],
    progress: Progress | None = None,
    anchored: Iterator[Anchored] | None = None,
) -> Verified:
    """Check every job of a store, and its side tables; report problems as they are found.

    With an anchor, also that no sealed history was cut, changed or removed since it was made.
    """
    report = Verified()

    def found(id_: JobId | None, text: str) -> None:
        report.problems += 1
        on_problem(LedgerProblem(id_, text))

    for text in (*await store.dictionary_problems(), *await store.side_problems()):
        found(None, text)
    books = _Books(store)
    check = AnchorCheck(store, anchored or iter(()))
    started = await store.clock()
    counts = await store.counts()
    recount: Summary | None = Counter()
    async for entry in _entries(store):
        for id_, text in await check.check_entry(entry):
            found(id_, text)
        if entry.purged:
            for text in _purge_problems(entry):
                found(entry.id, text)
            continue
        report.jobs += 1
        report.events += len(entry.events)
        report.erased += sum(map(_is_erased, entry.events))
        problems, job = _judge_entry(entry)
        for text in (*problems, *await books.problems(entry)):
            found(entry.id, text)
        recount = _add_to_recount(recount, job, started.now)
        if progress is not None:
            progress(report.jobs)
    for id_, text in await check.rest():
        found(id_, text)
    if recount is not None and counts == await store.counts():
        for text in _summary_problems(counts, recount):
            found(None, text)
    return report


class _Books:
    """Whether the rules are there that jobs name as those that judged them at their birth."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: tuple[str | None, bool] = (None, True)
        """The last digest, and whether it is there: jobs that follow each other share it."""

    async def problems(self, entry: LedgerEntry) -> list[str]:
        """Return what is wrong with the rules that a job names."""
        rules = entry.events[0].facts.rules if entry.events else None
        if rules is None:
            return []
        if rules != self._seen[0]:
            self._seen = rules, await self._store.policy_book(rules) is not None
        return [] if self._seen[1] else [f"rev 1: was judged by rules {rules:.12} that are missing"]


def _add_to_recount(recount: Summary | None, job: Job | None, started: int) -> Summary | None:
    """Count one more job; None if the summaries cannot be judged, because something moved since."""
    if recount is None or job is None or job.updated_at >= started:
        return None
    recount[job.tenant, job.queue, job.state] += 1
    return recount


def _summary_problems(counts: list[Count], recount: Summary) -> list[str]:
    found: Summary = Counter()
    for one in counts:
        found[one.tenant, one.queue, one.state] += one.jobs
    return [
        f"the summaries count {found[key]} jobs {key[2]} in queue {key[1]!r} of tenant {key[0]!r}, "
        f"there are {recount[key]}"
        for key in sorted({*found, *recount}, key=str)
        if found[key] != recount[key]
    ]


async def _entries(store: Store) -> AsyncIterator[LedgerEntry]:
    async for batch in store.ledger():
        for entry in batch:
            yield entry


def entry_problems(entry: LedgerEntry) -> list[str]:
    """Return all that is wrong with one job, its log and its keys."""
    return _purge_problems(entry) if entry.purged else _judge_entry(entry)[0]


def _judge_entry(entry: LedgerEntry) -> tuple[list[str], Job | None]:
    """Return all that is wrong with one job, and the job as it should be, where that is known."""
    problems = [entry.unreadable] if entry.unreadable else []
    if entry.quarantined is not None:
        problems.append(
            f"is set aside ({entry.quarantined}); repair it, then run "
            f"`holdfast quarantine release {entry.id}`"
        )
    if not entry.events:
        return [*problems, _explain_no_events(entry)], entry.row
    problems += log_problems(entry.events)
    problems += _body_problems(entry.events)
    if entry.unreadable:
        return problems, None
    try:
        derived = derive(entry.events)
    except ValueError as error:
        return [*problems, str(error)], None
    if derived is None:
        return [*problems, "has events that make no job"], None
    if derived.retention is Retention.LIVE:
        erased = (event for event in entry.events if _is_erased(event))
        problems += [f"rev {event.rev}: the body is missing" for event in erased]
    if entry.row is None:
        return [*problems, "has events and no row"], derived
    if any(is_newer(event) for event in entry.events):
        # A newer version wrote parts that this one cannot judge (B27).
        return problems + _side_row_problems(entry, entry.row), entry.row
    problems += _list_differences(derived, entry.row)
    problems += [f"breaks the invariant {name}" for name in broken_rules(entry.row)]
    if entry.unclaimed:
        problems.append("has an owner, but no claim names it: a passed lease would not be noticed")
    return problems + _side_row_problems(entry, entry.row), derived


def _purge_problems(entry: LedgerEntry) -> list[str]:
    """Return what is left of a purged job; its `job_id` and `request_id` are never given again."""
    problems = []
    if entry.row is not None or entry.events or entry.unreadable:
        problems.append("was purged, and its row or events are there")
    left = [key for key in entry.keys if key.kind not in (KeyKind.JOB_ID, KeyKind.REQUEST_ID)]
    return problems + [f"was purged, and still holds its {key.kind} {key.key!r}" for key in left]


def _explain_no_events(entry: LedgerEntry) -> str:
    if entry.row is not None or entry.unreadable:
        return "has a row and no events"
    keys = ", ".join(f"{key.kind} {key.key!r}" for key in entry.keys)
    return f"has neither a row nor events, and still holds its {keys}"


def _body_problems(events: list[LoggedEvent]) -> list[str]:
    return [
        f"rev {event.rev}: the body is not the one that was written"
        for event in events
        if event.body is not None and event.digest != digest(event.body)
    ]


def _is_erased(event: LoggedEvent) -> bool:
    return event.body is None and event.digest is not None


def _list_differences(derived: Job, row: Job) -> list[str]:
    if derived == row:
        return []
    return [
        f"{name} is {getattr(row, name)!r}, its events make it {getattr(derived, name)!r}"
        for name in row.__struct_fields__
        if getattr(row, name) != getattr(derived, name)
    ]


def _side_row_problems(entry: LedgerEntry, row: Job) -> list[str]:
    """Compare the rows that a job is found by with its own row."""
    return _key_problems(entry, row) + _hold_problems(entry, row)


def _hold_problems(entry: LedgerEntry, row: Job) -> list[str]:
    wanted, found = listed_holds(row), entry.holds
    missing = [f"is not listed under its hold {hold!r}" for hold in sorted(wanted - found)]
    return missing + [f"is listed under the hold {hold!r}" for hold in sorted(found - wanted)]


def _key_problems(entry: LedgerEntry, row: Job) -> list[str]:
    held = {(row.tenant, key.kind, key.key, key.digest)
            for key in derived_keys(row, entry.events[0])}  # fmt: skip
    found = {(key.tenant, key.kind.code, key.key, key.digest) for key in entry.keys}
    missing = [f"does not hold its {_named(key)}" for key in sorted(held - found)]
    return missing + [f"holds a foreign {_named(key)}" for key in sorted(found - held)]


def _named(key: tuple[str, int, str, bytes]) -> str:
    return f"{KeyKind.of(key[1])} {key[2]!r}"


async def derived(store: Store, id: JobId) -> tuple[Job | None, State | None]:
    """Read one job by deriving it from its events (E6)."""
    events = await read_all_events(store, id)
    return derive(events), derive_status(events)
