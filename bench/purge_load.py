"""`make purge-load`: `holdfast purge` removes many ended jobs beside a running load.

The load is that of a soak: a worker in a process of its own and a steady submitter. Exit code 1 if
an old job is left, a job of the load does not succeed, a batch is larger than allowed, or
`holdfast verify` finds a problem.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
from msgspec import Struct

from bench.contenders import new_job
from bench.soak import SETTINGS, report, verify
from bench.soak_app import app
from bench.soak_load import ROOT, Submitter, holdfast, worker
from holdfast.flow.purge import BATCH
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.record import Actor, Change, Job
from holdfast.lifecycle.states import LIVE, Link, Role, State
from holdfast.ports.models import Submitted
from holdfast.ports.store import Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.wiring import opened, read_address
from tests.support.postgres import PostgresCluster

OLD = "old"
"""The queue of the jobs that are purged. They were cancelled, so the load's own jobs, which
succeed, are kept by a term of their own."""
FILL = 1000
"""Old jobs that are made together; the last of them is a child of the first, and one has a key."""
WINDOW_SECONDS = 10.0
DRAIN_LIMIT_SECONDS = 600.0
CONTROL = Actor(Role.CONTROL, "purge-load")


class Waits(Struct, frozen=True, kw_only=True):
    """How long the load's submits took, in milliseconds."""

    submits: int
    p50: float
    p99: float
    longest: float


class PurgeLoad(Struct, frozen=True, kw_only=True):
    """A purge beside a load, and what came of it."""

    store: str
    jobs: int
    purged: int
    left: int
    seconds: float
    batches: int
    largest_batch: int
    load_submitted: int
    load_succeeded: int
    before: Waits
    """In the seconds before the purge."""
    beside: Waits
    """While the purge ran."""
    bytes_before: int
    bytes_after: int
    """SQLite: the file. PostgreSQL: the database, which keeps free space for later rows."""
    verified: bool

    @property
    def problems(self) -> list[str]:
        """Name what is not as it must be."""
        # SQLite keeps the job of the newest event, which may be one of these.
        kept = 1 if self.store == "sqlite" else 0
        found = {
            f"{self.left:,} old jobs are left": self.left > kept,
            f"{self.purged:,} of {self.jobs:,} jobs were purged": self.purged < self.jobs - kept,
            f"a batch had {self.largest_batch:,} jobs": self.largest_batch > BATCH,
            f"{self.load_succeeded:,} of {self.load_submitted:,} jobs of the load succeeded": (
                self.load_succeeded != self.load_submitted
            ),
            "the load submitted nothing beside the purge": not self.beside.submits,
            "holdfast verify found problems": not self.verified,
        }
        return [problem for problem, is_so in found.items() if is_so]


class TimedSubmitter(Submitter):
    """Notes how long each submit takes."""

    def __init__(self, rate: float) -> None:
        """Submit a number of jobs per second."""
        super().__init__(app, rate)
        self.waited: list[float] = []

    async def submit(self, jobs: int) -> None:
        """Submit a number of jobs together."""
        start = time.monotonic()
        await super().submit(jobs)
        self.waited.append(time.monotonic() - start)


async def purge_load(url: str, jobs: int, rate: float, calm_seconds: float = 20.0) -> PurgeLoad:
    """Run it on an empty store."""
    app.use(url)
    async with opened(read_address(url)) as store, app:
        await fill(store, jobs)
        submitter = TimedSubmitter(rate)
        async with worker(url):
            submitting = asyncio.create_task(submitter.run())
            try:
                report(f"load: {rate:,.0f} jobs/s, for {calm_seconds:g} s alone")
                await asyncio.sleep(calm_seconds)
                calm, size = len(submitter.waited), await size_of(url)
                start = time.monotonic()
                done = await purge(url, store, jobs)
                seconds = time.monotonic() - start
            finally:
                submitter.stopping = True
                await submitting
            report("draining what is left")
            await drained(store)
        entries = await batches(store)
        return PurgeLoad(
            store="postgres" if is_postgres(url) else "sqlite",
            jobs=jobs,
            purged=sum(done["purged"].values()),
            left=await jobs_in(store, OLD),
            seconds=seconds,
            batches=len(entries),
            largest_batch=max(entries, default=0),
            load_submitted=submitter.submitted,
            load_succeeded=await jobs_in(store, "default", State.SUCCEEDED),
            before=waits(submitter.waited[:calm]),
            beside=waits(submitter.waited[calm:]),
            bytes_before=size,
            bytes_after=await size_of(url),
            verified=await asyncio.to_thread(verify, url),
        )


async def fill(store: Store, jobs: int) -> None:
    """Make ended jobs: most alone, some with a key, some in a family."""
    for start in range(0, jobs, FILL):
        number = min(FILL, jobs - start)
        await end(store, await submitted(store, number, start))
        if (start + number) % (20 * FILL) == 0 or start + number == jobs:
            report(f"made {start + number:,} of {jobs:,} ended jobs", passing=start + number < jobs)


async def submitted(store: Store, number: int, start: int) -> list[Job]:
    """Submit a number of jobs."""
    first = new_job(queue=OLD, job_id=f"old-{start}")
    new = [first, *(new_job(queue=OLD) for _ in range(number - 2))]
    if number > 1:
        new.append(new_job(queue=OLD, parent_id=first.record.id, link_kind=Link.CHILD))
    outcomes = await store.submit(new)
    return [outcome.job for outcome in outcomes if isinstance(outcome, Submitted)]


async def end(store: Store, jobs: Sequence[Job]) -> None:
    """Cancel jobs."""
    decided = [decide(job, c.Cancel(actor=CONTROL)) for job in jobs]
    await store.commit([change for change in decided if isinstance(change, Change)])


async def purge(url: str, store: Store, jobs: int) -> dict[str, Any]:
    """Run `holdfast purge`, and show how far it is."""
    terms = ("--purge", "forever", "--purge-unsuccessful", "0s")
    process = await asyncio.create_subprocess_exec(
        *holdfast("purge", "--url", url, "--json", *terms),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    ending = asyncio.create_task(process.communicate())
    start = time.monotonic()
    try:
        while not (await asyncio.wait([ending], timeout=WINDOW_SECONDS))[0]:
            gone = jobs - await jobs_in(store, OLD)
            rate = gone / (time.monotonic() - start)
            live = sum(one.jobs for one in await store.counts() if one.state in LIVE)
            text = f"purged {gone:,} of {jobs:,} ({rate:,.0f}/s); {live:,} jobs of the load wait"
            report(text, passing=True)
        output, _ = await ending
    finally:
        if process.returncode is None:
            process.kill()
            await ending
    if process.returncode:
        raise RuntimeError(f"holdfast purge ended with code {process.returncode}")
    found: dict[str, Any] = msgspec.json.decode(output)
    return found


async def drained(store: Store) -> None:
    """Wait until no job is left that has not ended."""
    async with asyncio.timeout(DRAIN_LIMIT_SECONDS):
        while any(one.jobs for one in await store.counts() if one.state in LIVE):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def jobs_in(store: Store, queue: str, *states: State) -> int:
    """Count the jobs of a queue, in these states or in any."""
    found = [one for one in await store.counts() if one.queue == queue]
    return sum(one.jobs for one in found if not states or one.state in states)


async def batches(store: Store) -> list[int]:
    """Read how many jobs each transaction removed."""
    found: list[int] = []
    before: int | None = None
    while page := await store.purges(before=before, limit=1000):
        found += [entry.jobs for entry in page]
        before = page[-1].number
    return found


async def size_of(url: str) -> int:
    """Return the bytes of the store; of a SQLite file with what is still in its WAL."""
    if not is_postgres(url):
        connection = apsw.Connection(url, flags=apsw.SQLITE_OPEN_READONLY)
        size = connection.pragma("page_count") * connection.pragma("page_size")
        connection.close()
        return int(size)
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT pg_database_size(current_database())"))
    finally:
        await connection.close()


def is_postgres(url: str) -> bool:
    """Whether a url names a PostgreSQL database."""
    return read_address(url).engine == "postgres"


def waits(seconds: Sequence[float]) -> Waits:
    """Sum up how long submits took."""
    ordered = sorted(second * 1000 for second in seconds) or [0.0]
    return Waits(
        submits=len(seconds),
        p50=ordered[len(ordered) // 2],
        p99=ordered[len(ordered) * 99 // 100],
        longest=ordered[-1],
    )


def table(result: PurgeLoad) -> str:
    """Lay the figures out."""
    rate = result.purged / max(result.seconds, 1e-6)
    rows = [
        f"{result.store}: purged {result.purged:,} jobs in {result.seconds:,.0f} s ({rate:,.0f}/s),"
        f" {result.batches:,} batches of at most {result.largest_batch:,}",
        f"load: {result.load_succeeded:,} of {result.load_submitted:,} jobs succeeded",
        f"size: {result.bytes_before / 1e6:,.0f} MB before, {result.bytes_after / 1e6:,.0f} after",
    ]
    for name, one in (("before", result.before), ("beside", result.beside)):
        rows.append(
            f"a submit {name} the purge: p50 {one.p50:,.1f}, p99 {one.p99:,.1f}, "
            f"longest {one.longest:,.0f} ms, of {one.submits:,}"
        )
    rows.append(f"holdfast verify: {'passed' if result.verified else 'FAILED'}")
    return "\n".join([*rows, *(f"PROBLEM: {problem}" for problem in result.problems)])


@contextmanager
def place(store: str) -> Iterator[str]:
    """Have an empty store of a kind; yields its url."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="holdfast-purge-") as directory:
            yield str(Path(directory) / "jobs.db")
        return
    with PostgresCluster(SETTINGS) as cluster:
        url = cluster.create_database("purge")
        asyncio.run(migrate(url))
        yield url


def parsed(arguments: list[str] | None = None) -> Any:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.purge_load", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=200.0, help="jobs/s of the load")
    parser.add_argument("--store", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Purge beside a load, and print what came of it."""
    asked = parsed(arguments)
    with place(asked.store) as url:
        result = asyncio.run(purge_load(url, asked.jobs, asked.rate))
    if asked.out is not None:
        asked.out.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    print(table(result))
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
