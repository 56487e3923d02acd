"""`make soak`: a steady load for a long time. Throughput, latency and sizes must stay flat.

A private PostgreSQL (fsync on), a worker with a user's defaults in its own process, and a submitter
at half of what a drain reaches here. In the middle another session holds an old snapshot for a
fifth of the time. Exit code 1 where something is not flat, or `holdfast verify` finds anything.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
from msgspec import Struct

from bench.soak_app import app
from bench.soak_load import ROOT, Pin, Submitter, holdfast, worker
from bench.soak_samples import ENDED, Sampler
from bench.soak_verdict import Verdict, Window, judge, kept_up
from holdfast.stores.postgres.migrate import migrate
from tests.support.postgres import PostgresCluster

RESULTS = ROOT / "bench" / "results" / "soak.json"
SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "4GB"}
"""All else is PostgreSQL's default: checkpoints and vacuums come as they do for a user."""
WINDOWS = 30
PINNED = (0.4, 0.6)
"""The share of the time in which a snapshot is held."""
CALIBRATION = 20_000
DRAIN_LIMIT_SECONDS = 600.0


class Soak(Struct, frozen=True, kw_only=True):
    """A soak, and what came of it."""

    machine: str
    settings: dict[str, str]
    calibrated: float | None
    """Jobs per second of a drain alone; none where the rate was given."""
    rate: float
    windows: list[Window]
    verdicts: list[Verdict]
    verified: bool

    @property
    def flat(self) -> bool:
        """Whether all is as it must be."""
        return self.verified and all(verdict.flat for verdict in self.verdicts)


async def soak(url: str, minutes: float, rate: float | None, count: int = WINDOWS) -> Soak:
    """Run it on an empty database."""
    await migrate(url)
    app.use(url)
    connection = await asyncpg.connect(url)
    try:
        async with app:
            calibrated = None if rate else await calibrate(url, connection)
            rate = rate or (calibrated or 0) / 2
            report(f"load: {rate:,.0f} jobs/s for {minutes:g} min, {count} windows")
            windows = await load(url, connection, minutes * 60, rate, count)
    finally:
        await connection.close()
    return Soak(
        machine=f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        settings=SETTINGS,
        calibrated=calibrated,
        rate=rate,
        windows=windows,
        verdicts=[*judge(windows), kept_up(windows, rate)],
        verified=await asyncio.to_thread(verify, url),
    )


async def calibrate(url: str, connection: asyncpg.Connection) -> float:
    """Return how many jobs per second a worker drains when no one submits."""
    submitter = Submitter(app, 0)
    for _ in range(CALIBRATION // 500):
        await submitter.submit(500)
    async with worker(url):
        await ended(connection, 1)
        ended_before, start = await connection.fetchval(ENDED), time.monotonic()
        await ended(connection, CALIBRATION)
        rate = (CALIBRATION - ended_before) / (time.monotonic() - start)
    report(f"calibrated: a drain of {CALIBRATION:,} jobs made {rate:,.0f} jobs/s; the load is half")
    return float(rate)


async def load(
    url: str, connection: asyncpg.Connection, seconds: float, rate: float, count: int
) -> list[Window]:
    """Submit steadily, and look at the end of each window; then let the rest drain."""
    submitter, pin = Submitter(app, rate), Pin(url)
    before = await connection.fetchval(ENDED)
    async with worker(url) as process:
        await submitter.submit(1)
        await ended(connection, before + 1)
        sampler = Sampler(connection, process.pid, before=before)
        await sampler.start(submitter.submitted)
        submitting = asyncio.create_task(submitter.run())
        try:
            windows = await watch(sampler, submitter, pin, seconds, count)
        finally:
            submitter.stopping = True
            await pin.let_go()
            await submitting
        report("draining what is left")
        await ended(connection, before + submitter.submitted)
    return windows


async def watch(
    sampler: Sampler, submitter: Submitter, pin: Pin, seconds: float, count: int
) -> list[Window]:
    """Look at each window as it ends."""
    windows: list[Window] = []
    start = time.monotonic()
    for number in range(count):
        if PINNED[0] <= number / count < PINNED[1]:
            if not pin.held:
                await pin.hold()
        else:
            await pin.let_go()
        await asyncio.sleep(start + seconds * (number + 1) / count - time.monotonic())
        windows.append(await sampler.window(submitter.submitted, pinned=pin.held))
        report(line(windows[-1]), passing=number + 1 < count)
    return windows


async def ended(connection: asyncpg.Connection, jobs: int) -> None:
    """Wait until a number of jobs have ended."""
    async with asyncio.timeout(DRAIN_LIMIT_SECONDS):
        while await connection.fetchval(ENDED) < jobs:  # noqa: ASYNC110  the server decides
            await asyncio.sleep(0.05)


def verify(url: str) -> bool:
    """Let `holdfast verify` look at every job."""
    report("verifying every job")
    return subprocess.run(holdfast("verify", "--url", url), cwd=ROOT, check=False).returncode == 0


def line(window: Window) -> str:
    """Return a window as one line."""
    return (
        f"{window.seconds:7.0f} s{' pinned' if window.pinned else '       '} "
        f"{window.throughput:8,.0f}/s  waiting {window.waiting:6,}  "
        f"p50 {window.p50_ms:7.1f}  p99 {window.p99_ms:7.1f} ms  "
        f"{window.bytes_per_job:6,.0f} B/job  WAL {window.wal_bytes_per_job:6,.0f}  "
        f"dead {window.dead_jobs + window.dead_claims:9,}  "
        f"CPU {window.server_micros_per_job:5,.0f} + {window.worker_micros_per_job:5,.0f} µs/job  "
        f"RSS {window.rss_bytes / 1e6:4.0f} MB"
    )


def report(text: str, *, passing: bool = False) -> None:
    """Report progress; on a terminal the next window overwrites a window's line."""
    over = passing and sys.stderr.isatty()
    print(text, file=sys.stderr, end="\r" if over else "\n", flush=True)


def table(result: Soak) -> str:
    """Lay the verdicts out."""
    rows = [f"{'measure':28}{'first third':>14}{'last third':>14}  {'may drift by':14} verdict"]
    for one in result.verdicts:
        output = "flat" if one.flat else "NOT FLAT"
        rows.append(
            f"{one.measure:28}{one.first:14,.2f}{one.last:14,.2f}  {one.tolerance:14} {output}"
        )
    rows.append(f"holdfast verify: {'passed' if result.verified else 'FAILED'}")
    rows.append("Finished jobs are kept, so sizes are judged by what each job adds to them.")
    return "\n".join(rows)


def parsed(arguments: list[str] | None = None) -> Any:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, help="jobs/s; without it half of a drain's")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Soak, print the verdicts, and write the figures down."""
    asked = parsed(arguments)
    with PostgresCluster(SETTINGS) as cluster:
        url = cluster.create_database("soak")
        result = asyncio.run(soak(url, asked.minutes, asked.rate))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    print(table(result))
    return 0 if result.flat else 1


if __name__ == "__main__":
    sys.exit(main())
