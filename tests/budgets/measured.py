"""Measure each engine once: what so many no-op jobs cost it, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec import Struct

from bench.contenders import new_job, start_and_complete
from holdfast.lifecycle.record import Change
from holdfast.ports.models import ClaimRequest
from holdfast.stores.fold import fold
from holdfast.stores.postgres.migrate import migrate
from holdfast.stores.postgres.rows import commit_arrays, submit_arrays
from holdfast.stores.sqlite.migrate import migrate as sqlite_migrate
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.wiring import opened, read_address
from tests.budgets.calls import Calls, count_calls
from tests.budgets.file import Done, counting_disk, size_of, watch
from tests.budgets.server import Seen, Server
from tests.budgets.work import Work
from tests.support.postgres import PostgresCluster

JOBS = 20_000
CALLERS = 1_000
"""Who submit a job each, all at once."""
TRACED = 2_000
"""Jobs where each call of a function is counted, which takes its time."""
BATCH = 500

CLAIM, COMMIT, SUBMIT = "-- The one place where SQL", "-- A batch of comp", "-- Insert decided"
TICK = "-- Jobs whose deadline"
"""What a worker asks once in each of its rounds, however few jobs it meets meanwhile."""


class Measure(Struct, frozen=True):
    """A number, and what it was made of."""

    value: float
    detail: str = ""


Measured = dict[str, Measure]


def done(make: Callable[[], Awaitable[object]]) -> Callable[[], None]:
    """Make a plain call of a coroutine."""

    async def main() -> None:
        await make()

    return lambda: asyncio.run(main())


def on_postgres(cluster: PostgresCluster) -> Measured:
    """Count what the server saw."""
    work, server = _postgres_work(cluster, JOBS)
    submit, drain = server.watch(done(work.submit)), server.watch(done(work.drain))
    done(work.check)()
    # Two backends that insert at a time split pages and extend tables by how they happen to meet.
    ordered, server = _postgres_work(cluster, JOBS)
    in_turn = server.watch(done(lambda: ordered.submit_in_turn(BATCH)))
    single, server = _postgres_work(cluster, CALLERS)
    singles = server.watch(done(single.submit_one_by_one_at_once))
    return {
        **_of_server("submit", submit),
        **_of_server("drain", drain),
        "submit: bytes of WAL": _wal(in_turn),
        "submit: bytes on disk": _disk(in_turn),
        "submit: statements": _per_thousand(_beyond_rounds(submit), submit),
        "drain: claims": _per_thousand(drain.calls(CLAIM), drain),
        "drain: commits": _per_thousand(drain.calls(COMMIT), drain),
        "drain: other statements": _per_thousand(_beyond_rounds(drain, CLAIM, COMMIT), drain),
        "drain: share of HOT updates": Measure(
            drain.rows["jobs"].hot / drain.rows["jobs"].updated, _rows(drain)
        ),
        "1,000 callers: submits": Measure(singles.calls(SUBMIT), _statements(singles.statements)),
    }


def _postgres_work(cluster: PostgresCluster, jobs: int) -> tuple[Work, Server]:
    url = cluster.create_database()
    asyncio.run(migrate(url))
    return Work(url, jobs), Server.looking_at(cluster, url)


def _of_server(stage: str, seen: Seen) -> Measured:
    tables = seen.rows.values()
    return {
        f"{stage}: writing transactions": _per_thousand(seen.transactions, seen),
        f"{stage}: rows": Measure(sum(one.written for one in tables) / JOBS, _rows(seen)),
        f"{stage}: bytes of WAL": _wal(seen),
        f"{stage}: bytes on disk": _disk(seen),
    }


def _wal(seen: Seen) -> Measure:
    return Measure(seen.wal_bytes / JOBS, _rows(seen))


def _disk(seen: Seen) -> Measure:
    # Not of tables that stayed empty: their first pages are no cost of a job.
    sizes = (one.bytes for one in seen.rows.values() if one.written)
    return Measure(sum(sizes) / JOBS, _rows(seen))


def _per_thousand(number: int, seen: Seen | Done) -> Measure:
    return Measure(number * 1000 / JOBS, _statements(seen.statements))


def _beyond_rounds(seen: Seen, *besides: str) -> int:
    """Count statements but for these, and but for one of each in each round of a worker.

    How many rounds there are is the machine's affair; a statement per job or batch goes beyond.
    """
    rounds = seen.calls(TICK)
    return sum(
        max(calls - rounds, 0)
        for text, calls in seen.statements.items()
        if not text.startswith(besides or ("no statement",))
    )


def _statements(statements: dict[str, int]) -> str:
    often = sorted(statements.items(), key=lambda one: -one[1])[:12]
    return "; ".join(f"{calls} × {text[:90]}" for text, calls in often)


def _rows(seen: Seen) -> str:
    return "; ".join(f"{table}: {rows}" for table, rows in seen.rows.items() if rows.written)


def on_sqlite(directory: Path) -> Measured:
    """Count what SQLite did."""
    path = directory / "jobs.db"
    sqlite_migrate(str(path))
    with counting_disk() as disk:
        work = Work(str(path), JOBS, store=lambda: SqliteStore(path, vfs=disk.name))
        submit = _of_file("submit", watch(disk, done(work.submit)), path)
        drain = _of_file("drain", watch(disk, done(work.drain)), path)
        done(work.check)()
        many = directory / "callers.db"
        single = Work(str(many), CALLERS, store=lambda: SqliteStore(many, vfs=disk.name))
        done(single.open)()
        singles = watch(disk, done(single.submit_one_by_one_at_once))
    began = singles.calls("BEGIN IMMEDIATE")
    return submit | drain | {"1,000 callers: transactions": Measure(began)}


def _of_file(stage: str, seen: Done, path: Path) -> Measured:
    return {
        f"{stage}: writing transactions": _per_thousand(seen.calls("BEGIN IMMEDIATE"), seen),
        f"{stage}: syncs": _per_thousand(seen.syncs, seen),
        f"{stage}: rows": Measure(seen.rows / JOBS, _statements(seen.statements)),
        f"{stage}: steps": Measure(seen.steps / JOBS, _statements(seen.statements)),
        f"{stage}: rows scanned": Measure(seen.scanned / JOBS, _statements(seen.statements)),
        f"{stage}: bytes written": Measure(seen.written / JOBS),
        f"{stage}: bytes on disk": Measure(size_of(path) / JOBS),
    }


def in_python(cluster: PostgresCluster, directory: Path) -> Measured:
    """Count calls of functions: of each part on the hot path, and of all of it together."""
    url = cluster.create_database()
    asyncio.run(migrate(url))
    path = directory / "calls.db"
    sqlite_migrate(str(path))
    return (
        asyncio.run(_of_parts(directory / "parts.db"))
        | _of_path("postgres", url)
        | _of_path("sqlite", str(path))
    )


def _of_path(engine: str, url: str) -> Measured:
    work = Work(url, TRACED)
    submit, drain = count_calls(done(work.submit)), count_calls(done(work.drain))
    done(work.check)()
    return {
        f"{engine}: submit": _calls(submit, TRACED),
        f"{engine}: drain": _calls(drain, TRACED),
    }


async def _of_parts(path: Path) -> Measured:
    """Count the parts apart, on a batch that a worker would have claimed."""
    jobs = [new_job() for _ in range(BATCH)]
    async with opened(read_address(str(path))) as store:
        await store.submit(jobs)
        claimed = await store.claim(
            ClaimRequest(request_id="r", owner="worker-7f3a", queues=("mail",), limit=BATCH)
        )
    changes: list[Change] = []

    def decide() -> None:
        for one in claimed:
            changes.extend(start_and_complete(one.job, b"null", 1))

    decided = count_calls(decide)
    folds, _ = fold(changes)
    parts: Sequence[tuple[str, Callable[[], object]]] = (
        ("fold", lambda: fold(changes)),
        ("arrays of a commit", lambda: commit_arrays(folds, "r")),
        ("arrays of a submit", lambda: submit_arrays(jobs)),
    )
    return {
        "decide start and complete": _calls(decided, BATCH),
        **{name: _calls(count_calls(work), BATCH) for name, work in parts},
    }


def _calls(calls: Calls, jobs: int) -> Measure:
    return Measure(calls.per_job(jobs), calls.busiest(jobs))
