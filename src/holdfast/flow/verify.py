"""Proof: every job re-derived from its events and compared, column by column, key by key.

Streams in bounded memory, each batch one short snapshot, so that it can run beside live work
without a false alarm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeAlias

from msgspec import Struct

from holdfast.flow.anchor import AnchorCheck, Anchored
from holdfast.flow.history import all_events
from holdfast.lifecycle.derive import derive, derive_status
from holdfast.lifecycle.invariants import broken_rules
from holdfast.lifecycle.job import Job, JobId, LoggedEvent
from holdfast.lifecycle.ledger import is_newer, log_problems
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.states import KeyKind, Retention, State
from holdfast.lifecycle.submit import derived_keys
from holdfast.ports import Count, LedgerEntry, Store

Progress = Callable[[int], None]
Summary: TypeAlias = Counter[tuple[str, str, State]]


class Problem(Struct, frozen=True):
    """What is wrong with one job, or with none of them in particular."""

    id: JobId | None
    text: str


class Report(Struct, kw_only=True):
    """What a verification saw."""

    jobs: int = 0
    events: int = 0
    erased: int = 0
    """Bodies that retention erased: their digest is there, their content is not checkable."""
    problems: int = 0


async def verify(
    store: Store,
    *,
    on_problem: Callable[[Problem], None],
    progress: Progress | None = None,
    anchored: Iterator[Anchored] | None = None,
) -> Report:
    """Check every job of a store, and what is beside the ledger; tell problems as they are found.

    With an anchor, also that no sealed history was cut, changed or removed since it was made.
    """
    report = Report()

    def tell(id_: JobId | None, text: str) -> None:
        report.problems += 1
        on_problem(Problem(id_, text))

    for text in (*await store.dictionary_problems(), *await store.side_problems()):
        tell(None, text)
    check = AnchorCheck(store, anchored or iter(()))
    began = await store.clock()
    counts = await store.counts()
    recount: Summary | None = Counter()
    async for entry in _entries(store):
        for id_, text in await check.look(entry):
            tell(id_, text)
        if entry.purged:
            for text in _purge_problems(entry):
                tell(entry.id, text)
            continue
        report.jobs += 1
        report.events += len(entry.events)
        report.erased += sum(map(_is_erased, entry.events))
        problems, job = _judge(entry)
        for text in problems:
            tell(entry.id, text)
        recount = _recounted(recount, job, began.now)
        if progress is not None:
            progress(report.jobs)
    for id_, text in await check.rest():
        tell(id_, text)
    if recount is not None and counts == await store.counts():
        for text in _summary_problems(counts, recount):
            tell(None, text)
    return report


def _recounted(recount: Summary | None, job: Job | None, began: int) -> Summary | None:
    """Count one more job; None if the summaries cannot be judged, because something moved since."""
    if recount is None or job is None or job.updated_at >= began:
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
    """Say all that is wrong with one job, its log and its keys."""
    return _purge_problems(entry) if entry.purged else _judge(entry)[0]


def _judge(entry: LedgerEntry) -> tuple[list[str], Job | None]:
    """Say all that is wrong with one job, and give it as it should be, where that can be told."""
    problems = [entry.unreadable] if entry.unreadable else []
    if entry.quarantined is not None:
        problems.append(
            f"is set aside ({entry.quarantined}); repair it, then run "
            f"`holdfast quarantine release {entry.id}`"
        )
    if not entry.events:
        return [*problems, _without_events(entry)], entry.row
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
        problems += _missing_bodies(entry.events)
    if entry.row is None:
        return [*problems, "has events and no row"], derived
    if _is_newer(entry):
        return problems + _key_problems(entry, entry.row), entry.row
    problems += _difference(derived, entry.row)
    problems += [f"breaks the invariant {name}" for name in broken_rules(entry.row)]
    if entry.unclaimed:
        problems.append("is held, but no claim names it: nobody would notice a passed lease")
    return problems + _key_problems(entry, entry.row), derived


def _purge_problems(entry: LedgerEntry) -> list[str]:
    """Name what is left of a purged job; its `job_id` and `request_id` are never given again."""
    problems = []
    if entry.row is not None or entry.events or entry.unreadable:
        problems.append("was purged, and its row or events are there")
    left = [key for key in entry.keys if key.kind not in (KeyKind.JOB_ID, KeyKind.REQUEST_ID)]
    return problems + [f"was purged, and still holds its {key.kind} {key.key!r}" for key in left]


def _without_events(entry: LedgerEntry) -> str:
    if entry.row is not None or entry.unreadable:
        return "has a row and no events"
    keys = ", ".join(f"{key.kind} {key.key!r}" for key in entry.keys)
    return f"has neither a row nor events, and still holds its {keys}"


def _is_newer(entry: LedgerEntry) -> bool:
    """Whether a newer version wrote parts that this one cannot judge (B27)."""
    return any(is_newer(event) for event in entry.events)


def _body_problems(events: list[LoggedEvent]) -> list[str]:
    return [
        f"rev {event.rev}: the body is not the one that was written"
        for event in events
        if event.body is not None and event.digest != digest(event.body)
    ]


def _is_erased(event: LoggedEvent) -> bool:
    return event.body is None and event.digest is not None


def _missing_bodies(events: list[LoggedEvent]) -> list[str]:
    """Name bodies that are gone though nothing of this job was given up for cleaning."""
    return [f"rev {event.rev}: the body is missing" for event in events if _is_erased(event)]


def _difference(derived: Job, row: Job) -> list[str]:
    if derived == row:
        return []
    return [
        f"{name} is {getattr(row, name)!r}, its events say {getattr(derived, name)!r}"
        for name in row.__struct_fields__
        if getattr(row, name) != getattr(derived, name)
    ]


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
    events = await all_events(store, id)
    return derive(events), derive_status(events)
