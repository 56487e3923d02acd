"""Proof: every job re-derived from its events and compared, column by column, key by key.

Streams in bounded memory, each batch one short snapshot, so that it can run beside live work
without a false alarm.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from msgspec import Struct

from holdfast.lifecycle.derive import derive, derive_status
from holdfast.lifecycle.invariants import broken_rules
from holdfast.lifecycle.job import Job, JobId, LoggedEvent
from holdfast.lifecycle.ledger import log_problems
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.states import KeyKind, State
from holdfast.lifecycle.submit import derived_keys
from holdfast.ports import LedgerEntry, Store

Progress = Callable[[int], None]


class Problem(Struct, frozen=True):
    """What is wrong with one job."""

    id: JobId
    text: str


class Report(Struct, kw_only=True):
    """What a verification saw."""

    jobs: int = 0
    events: int = 0
    erased: int = 0
    """Bodies that retention erased: their digest is there, their content is not checkable."""
    problems: int = 0


async def verify(
    store: Store, *, on_problem: Callable[[Problem], None], progress: Progress | None = None
) -> Report:
    """Check every job of a store, telling each problem as it is found."""
    report = Report()
    async for entry in _entries(store):
        report.jobs += 1
        report.events += len(entry.events)
        report.erased += sum(event.body is None and event.digest is not None
                             for event in entry.events)  # fmt: skip
        for text in entry_problems(entry):
            report.problems += 1
            on_problem(Problem(entry.id, text))
        if progress is not None:
            progress(report.jobs)
    return report


async def _entries(store: Store) -> AsyncIterator[LedgerEntry]:
    async for batch in store.ledger():
        for entry in batch:
            yield entry


def entry_problems(entry: LedgerEntry) -> list[str]:
    """Say all that is wrong with one job, its log and its keys."""
    problems = [entry.unreadable] if entry.unreadable else []
    if not entry.events:
        return [*problems, "has a row and no events"]
    problems += log_problems(entry.events)
    problems += _body_problems(entry.events)
    if entry.unreadable:
        return problems
    try:
        derived = derive(entry.events)
    except ValueError as error:
        return [*problems, str(error)]
    if entry.row is None or derived is None:
        return [*problems, "has events and no row"]
    if not _is_newer(entry):
        problems += _difference(derived, entry.row)
        problems += [f"breaks the invariant {name}" for name in broken_rules(entry.row)]
    return problems + _key_problems(entry, entry.row)


def _is_newer(entry: LedgerEntry) -> bool:
    """Whether a newer version wrote parts that this one cannot judge (B27)."""
    return any(event.to_state is State.UNKNOWN for event in entry.events)


def _body_problems(events: list[LoggedEvent]) -> list[str]:
    return [
        f"rev {event.rev}: the body is not the one that was written"
        for event in events
        if event.body is not None and event.digest != digest(event.body)
    ]


def _difference(derived: Job, row: Job) -> list[str]:
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
    events: list[LoggedEvent] = []
    while page := await store.events(id, after=events[-1].rev if events else 0):
        events += page
    return derive(events), derive_status(events)
