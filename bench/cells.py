"""How each thing is measured: one contestant, one fresh database, the clock, and then the proof.

What is measured of Holdfast counts only if `holdfast verify` passes afterwards, and a drain only if
nothing is left. Before each stretch by the clock the engine is at rest (CHECKPOINT).
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TypeAlias

import msgspec
from msgspec import Struct

from bench.contestants import Contestant
from bench.figures import percentile
from bench.places import Place, Usage
from bench.protocol import Program, ProgramError, Reply, Running, limit_for, number

POLL_SECONDS = 0.3
WARM_UPS = 1
"""First latencies that do not count: the worker has only just started."""
VERIFY_JOBS_PER_SECOND = 2000
Values: TypeAlias = Mapping[str, float]


class NotProven(Exception):
    """Holdfast's own result does not stand: the bench fails."""


class Cell(Struct, frozen=True, kw_only=True):
    """One thing to measure of one contestant, in every round."""

    scenario: str
    variant: str
    contestant: Contestant
    jobs: int
    measure: Callable[[Cell, Place], list[Finding]]
    analysed: bool = False
    processes: int = 1
    bytes: int = 0
    callers: int = 1
    task: str | None = None
    """Which of Holdfast's handlers; None is the no-op that everybody has."""
    samples: int = 0
    rate: float = 0.0
    history: int = 0
    """Jobs that are to be finished before the measured ones."""
    most_rounds: int | None = None
    """In how many rounds it is measured at most, if it takes long."""

    @property
    def program(self) -> Program:
        """Whom to ask."""
        return self.contestant.program


class Finding(Struct, frozen=True, kw_only=True):
    """What one stretch gave; the scenario is the cell's if none is named."""

    values: Values
    scenario: str | None = None
    variant: str | None = None
    jobs: int | None = None


def submit(cell: Cell, place: Place) -> list[Finding]:
    """Measure a bulk submit alone."""
    _set_up(cell, place)
    values = fill(cell, place)
    verify(cell, place, cell.jobs)
    return [Finding(values=values)]


def single(cell: Cell, place: Place) -> list[Finding]:
    """Measure submits that each wait for their answer."""
    _set_up(cell, place)
    callers = None if cell.callers == 1 else cell.callers
    values = _by_the_clock(
        cell,
        place,
        lambda: cell.program.ask("single", url=place.url, jobs=cell.jobs, callers=callers),
    )
    verify(cell, place, cell.jobs)
    return [Finding(values=values)]


def drain(cell: Cell, place: Place) -> list[Finding]:
    """Fill, then drain; the fill is a bulk submit and counts as one."""
    _set_up(cell, place)
    empty = place.usage()
    filled = fill(cell, place)
    values = dict(_drain_what_is_there(cell, place))
    values["disk_bytes"] = (place.usage().disk_bytes - empty.disk_bytes) / cell.jobs
    prove_drained(cell, place, cell.jobs)
    return [*_filled(cell, filled), Finding(values=values)]


def _set_up(cell: Cell, place: Place) -> None:
    place.set_up(cell.contestant.name, lambda: cell.program.ask("setup", url=place.url))


def _filled(cell: Cell, values: Values) -> list[Finding]:
    """Count a fill once where it is comparable: by a peer's first mode, before one process."""
    if cell.scenario == "payload":
        return [Finding(variant=f"{cell.variant}, submit", values=values)]
    once = cell.contestant.first and cell.processes == 1 and not cell.analysed
    if cell.scenario == "drain" and once:
        size = cell.variant.partition(" ")[0]
        return [Finding(scenario="submit", variant=f"{size} jobs", values=values)]
    return []


def growth(cell: Cell, place: Place) -> list[Finding]:
    """Drain, then add a history of many more jobs, and drain a smaller backlog on top of it."""
    _set_up(cell, place)
    fill(cell, place)
    first = Finding(values=_drain_what_is_there(cell, place))
    if not cell.history:
        prove_drained(cell, place, cell.jobs)
        return [first]
    if cell.history > cell.jobs:
        _fill_and_drain(cell, place, cell.history - cell.jobs)
    # Else autovacuum, still busy with how the history was made, would be part of the measure.
    place.settle()
    backlog = msgspec.structs.replace(cell, jobs=cell.history // 10)
    fill(backlog, place)
    values = _drain_what_is_there(backlog, place)
    events = prove_drained(cell, place, cell.history + backlog.jobs)
    before = round(events * cell.history / (cell.history + backlog.jobs))
    name = f"{backlog.jobs:,} jobs on {before:,} events of history"
    return [first, Finding(variant=name, values=values, jobs=backlog.jobs)]


def _fill_and_drain(cell: Cell, place: Place, jobs: int) -> None:
    cell.program.ask("fill", url=place.url, jobs=jobs)
    cell.program.ask("drain", url=place.url, jobs=jobs, mode=cell.contestant.mode)


def fill(cell: Cell, place: Place) -> Values:
    """Submit in bulk."""
    return _by_the_clock(
        cell,
        place,
        lambda: cell.program.ask(
            "fill", url=place.url, jobs=cell.jobs, bytes=cell.bytes or None, mode=cell.task
        ),
    )


def _drain_what_is_there(cell: Cell, place: Place) -> Values:
    if cell.analysed:
        place.analyse()
    mode = cell.task or cell.contestant.mode
    return _by_the_clock(cell, place, lambda: _work(cell, place, mode))


def _work(cell: Cell, place: Place, mode: str | None) -> Reply:
    if cell.processes == 1:
        return cell.program.ask("drain", url=place.url, jobs=cell.jobs, mode=mode)
    with ExitStack() as stack:
        workers = []
        for _ in range(cell.processes):
            worker = cell.program.start(
                "drain", url=place.url, jobs=cell.jobs, mode=mode, shared=True
            )
            stack.callback(worker.kill)
            workers.append(worker)
        watched = _watch(cell, place, workers)
        return _together(cell, [worker.stop() for worker in workers], watched)


def _watch(cell: Cell, place: Place, workers: list[Running]) -> float:
    """Wait until nothing is left; return the seconds since the first was seen to be gone."""
    limit = time.monotonic() + limit_for(cell.jobs)
    start: float | None = None
    while time.monotonic() < limit:
        left = left_over(cell, place)
        now = time.monotonic()
        if start is None and left < cell.jobs:
            start = now
        if left == 0:
            return now - (start or now)
        if any(worker.ended for worker in workers):
            raise ProgramError(f"a worker of {cell.contestant.name} ended with {left} jobs left")
        time.sleep(POLL_SECONDS)
    raise ProgramError(f"{cell.contestant.name}: not drained within {limit_for(cell.jobs):.0f} s")


def _together(cell: Cell, replies: list[Reply], watched: float) -> Reply:
    """Sum up several workers; by their own clocks where they report them, which is exact."""
    name = cell.contestant.name
    seconds = watched
    if all("first" in one and "last" in one for one in replies):
        worked = [one for one in replies if one.get("jobs")]
        first = min(number(name, one, "first") for one in worked)
        seconds = max(number(name, one, "last") for one in worked) - first
    reply: Reply = {"jobs": cell.jobs, "seconds": seconds}
    for key, how in (("cpu", sum), ("rss", max)):
        if all(key in one for one in replies):
            reply[key] = how(number(name, one, key) for one in replies)
    return reply


def _by_the_clock(cell: Cell, place: Place, work: Callable[[], Reply]) -> Values:
    place.rest()
    before = place.usage()
    reply = work()
    return reckon(cell, reply, before, place.usage())


def reckon(cell: Cell, reply: Reply, before: Usage, after: Usage) -> dict[str, float]:
    """Reckon per second and per job."""
    name = cell.contestant.name
    jobs, seconds = number(name, reply, "jobs"), number(name, reply, "seconds")
    if jobs != cell.jobs or seconds <= 0:
        raise ProgramError(f"{name} should do {cell.jobs} jobs and replied {reply}")
    values = {"rate": jobs / seconds, "seconds": seconds}
    if "cpu" in reply:
        values["client_micros"] = number(name, reply, "cpu") / jobs * 1e6
    if before.cpu_seconds is not None and after.cpu_seconds is not None:
        values["server_micros"] = (after.cpu_seconds - before.cpu_seconds) / jobs * 1e6
    if before.wal_bytes is not None and after.wal_bytes is not None:
        values["wal_bytes"] = (after.wal_bytes - before.wal_bytes) / jobs
    for key in ("rss", "idle", "occupied", "sent_seconds"):
        if key in reply:
            values[key] = number(name, reply, key)
    return values


def latency(cell: Cell, place: Place) -> list[Finding]:
    """Measure from the start of a submit to the start of its handler."""
    _set_up(cell, place)
    place.rest()
    asked = cell.samples + WARM_UPS
    reply = cell.program.ask(
        "latency",
        url=place.url,
        samples=asked,
        rate=cell.rate or None,
        limit_seconds=limit_for(0) + cell.samples,
    )
    times = reply.get("ms")
    if not isinstance(times, list) or len(times) < asked:
        raise ProgramError(f"{cell.contestant.name} gave fewer than {asked} latencies")
    times = times[WARM_UPS:]
    values = {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99), "most": max(times)}
    if cell.rate:
        values |= {"asked_rate": cell.rate, "rate": number(cell.contestant.name, reply, "rate")}
    verify(cell, place, None)
    return [Finding(values=values, jobs=cell.samples)]


def signals(cell: Cell, place: Place) -> list[Finding]:
    """Measure from the first signal until all jobs that waited have ended."""
    _set_up(cell, place)
    values = _by_the_clock(
        cell,
        place,
        lambda: cell.program.ask("signals", url=place.url, jobs=cell.jobs, callers=cell.callers),
    )
    prove_drained(cell, place, cell.jobs)
    return [Finding(values=values)]


def left_over(cell: Cell, place: Place) -> int:
    """Ask how many jobs are not finished."""
    reply = cell.program.ask("left", url=place.url)
    return int(number(cell.contestant.name, reply, "left"))


def prove_drained(cell: Cell, place: Place, jobs: int) -> int:
    """Refuse a result that left a job behind; return how many events Holdfast wrote."""
    left = left_over(cell, place)
    if left:
        message = f"{cell.contestant.name} left {left:,} of {jobs:,} jobs"
        raise NotProven(message) if cell.contestant.ours else ProgramError(message)
    return verify(cell, place, jobs)


def verify(cell: Cell, place: Place, jobs: int | None) -> int:
    """Let `holdfast verify` judge what Holdfast wrote; return how many events it saw.

    `jobs` is how many there must be, if that is known.
    """
    if not cell.contestant.ours:
        return 0
    done = _holdfast_verify(cell, place, limit_for(0) + (jobs or 0) / VERIFY_JOBS_PER_SECOND)
    if done.returncode != 0:
        raise NotProven(
            f"holdfast verify failed after {cell.scenario}, {cell.variant}: "
            f"{(done.stdout + done.stderr)[-500:]}"
        )
    report = json.loads(done.stdout)
    if jobs is not None and report["jobs"] != jobs:
        raise NotProven(f"holdfast verify saw {report['jobs']:,} jobs of {jobs:,} submitted")
    return int(report["events"])


def _holdfast_verify(
    cell: Cell, place: Place, limit_seconds: float
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [*cell.contestant.command_line, "verify", "--url", place.url, "--json"],
            cwd=cell.contestant.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotProven(
            f"holdfast verify did not end within {limit_seconds:.0f} s "
            f"after {cell.scenario}, {cell.variant}"
        ) from error
