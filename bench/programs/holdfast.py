"""Holdfast as a contender: the public API with the defaults that a user gets, nothing else.

`python -m bench.programs.holdfast VERB --url …`; the verbs are those of `bench.protocol`, and
`signals` and `load` beside them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version as version_of
from typing import Any

from bench.programs.replies import Reply, Stretch, Verb, noise, peak_memory_bytes, reply_to
from holdfast import Context, Holdfast, Task, __version__
from holdfast.lifecycle.states import EventType, State
from holdfast.wiring import migrate, read_address

CHUNK = 2000
"""Calls in one submit_many."""
STEPS = 10
"""Steps in a job of the mode `steps`."""
NAP_SECONDS = 0.01
SLEEPERS = 100
"""Concurrency in the mode `sleepers`."""
PAUSES_SECONDS = (0.01, 0.03)
"""Between two latencies, at random within these."""
LOAD_TURN_SECONDS = 0.02

app = Holdfast()


class Counted:
    """What handlers of this process did: how many ended, and when the first started."""

    def __init__(self) -> None:
        """Start at nothing."""
        self.ended = 0
        self.wanted = 0
        self.stretch: Stretch | None = None
        self.all_ended = asyncio.Event()

    def start(self) -> None:
        """Start the clock with the first."""
        if self.stretch is None:
            self.stretch = Stretch()

    def end(self) -> None:
        """Count one, and signal when it was the last."""
        self.ended += 1
        if self.ended == self.wanted:
            self.all_ended.set()


counted = Counted()


class Slots:
    """How many handlers run at once, on average, from the first start to the last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with none."""
        self._clock = clock
        self._running = 0
        self._first = self._since = 0.0
        self._busy_seconds = 0.0
        self.occupied = 0.0
        """The average up to the last start: as long as jobs were due."""

    def enter(self) -> None:
        """Note a start."""
        now = self._pass()
        self._first = self._first or now
        self._running += 1
        if now > self._first:
            self.occupied = self._busy_seconds / (now - self._first)

    def leave(self) -> None:
        """Note an end."""
        self._pass()
        self._running -= 1

    def _pass(self) -> float:
        now = self._clock()
        self._busy_seconds += self._running * (now - self._since)
        self._since = now
        return now


slots = Slots()


@app.task
async def noop(data: str) -> None:
    """Do nothing."""
    counted.start()
    counted.end()


@app.task
async def sleepers(data: str) -> None:
    """Wait for ten milliseconds."""
    counted.start()
    slots.enter()
    await asyncio.sleep(NAP_SECONDS)
    slots.leave()
    counted.end()


@app.task
async def steps(ctx: Context, data: str) -> None:
    """Do some steps that each are remembered."""
    counted.start()
    for number in range(STEPS):
        await ctx.step(f"step-{number}", _step)
    counted.end()


async def _step() -> int:
    return 1


@app.task
async def waits(ctx: Context, data: str) -> None:
    """Wait for a signal."""
    await ctx.wait_for("go", timeout="1h")


@app.task
async def probe(number: int) -> None:
    """Print when it started, on the clock that all processes of the machine share."""
    print(number, time.monotonic(), flush=True)


MODES: dict[str, Task[[str], None]] = {task.name: task for task in (noop, sleepers, steps, waits)}


async def version(_: argparse.Namespace) -> Reply:
    """Return what it is."""
    return {
        "version": __version__,
        "keeps": "the whole job: its row, every event, arguments and result",
        "settings": f"defaults: concurrency 20, no option given; filled by {CHUNK:,}, two at once; "
        f"asyncpg {version_of('asyncpg')}, apsw {version_of('apsw')}",
    }


async def setup(given: argparse.Namespace) -> Reply:
    """Make the schema."""
    await migrate(read_address(given.url))
    return {}


async def fill(given: argparse.Namespace) -> Reply:
    """Submit in bulk by two callers, as peers do."""
    task = MODES[given.mode]
    chunks = iter(range(0, given.jobs, CHUNK))

    async def call() -> None:
        for first in chunks:
            last = min(first + CHUNK, given.jobs)
            await task.submit_many([(payload(n, given.bytes),) for n in range(first, last)])

    async with app:
        await app.store()
        stretch = Stretch()
        await asyncio.gather(call(), call())
        return stretch.reply(given.jobs)


def payload(number: int, size: int) -> str:
    """Return an argument of about a number of bytes that is not the same twice."""
    return str(number) + _noise(size)[len(str(number)) :]


# Made once, as peers make theirs: what is measured is not how it is made.
_noise = cache(noise)


async def single(given: argparse.Namespace) -> Reply:
    """Submit one at a time, from as many callers as asked for."""

    async def call(numbers: range) -> None:
        for number in numbers:
            await noop.submit(str(number))

    async with app:
        await app.store()
        stretch = Stretch()
        async with asyncio.TaskGroup() as group:
            for caller in range(given.callers):
                group.create_task(call(range(caller, given.jobs, given.callers)))
        return stretch.reply(given.jobs)


async def drain(given: argparse.Namespace) -> Reply:
    """Work in this process until enough ends are durable, or until SIGTERM if shared."""
    if given.shared:
        return await _drain_shared()
    counted.wanted = given.jobs
    async with app.worker(concurrency=SLEEPERS) if given.mode == "sleepers" else app.worker():
        await counted.all_ended.wait()
        await _until(lambda: succeeded() >= given.jobs)
        assert counted.stretch is not None
        reply = counted.stretch.reply(given.jobs, rss=peak_memory_bytes())
    if given.mode == "sleepers":
        reply["idle"] = idle_share(given.jobs, reply["seconds"])
        reply["occupied"] = slots.occupied / SLEEPERS
    return reply


def idle_share(jobs: int, seconds: float) -> float:
    """Return the share of the slots' time that was not a nap: one that woke late was idle then."""
    return 1 - NAP_SECONDS * jobs / (SLEEPERS * seconds)


async def _drain_shared() -> Reply:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    last = 0.0
    async with app.worker():
        seen = 0
        while not stopped.is_set():
            if (now := succeeded()) > seen:
                seen, last = now, time.monotonic()
            await asyncio.sleep(0.01)
    start = counted.stretch.started if counted.stretch else 0.0
    cpu = counted.stretch.reply(0)["cpu"] if counted.stretch else 0.0
    return {"jobs": seen, "first": start, "last": last, "cpu": cpu, "rss": peak_memory_bytes()}


def succeeded() -> int:
    """Return how many successes of this process the store has acknowledged."""
    return sum(lane.events[EventType.SUCCEEDED.code] for lane in app.meters.lanes())


async def _until(done: Callable[[], bool]) -> None:
    while not done():  # noqa: ASYNC110  the worker counts, and rings no bell
        await asyncio.sleep(0.001)


async def left(_: argparse.Namespace) -> Reply:
    """Count the jobs that have not succeeded: one that ended in any other way is left, too."""
    async with app:
        return {"left": await _not_in(State.SUCCEEDED)}


async def _not_in(*states: State) -> int:
    counts = await (await app.store()).counts()
    return sum(count.jobs for count in counts if count.state not in states)


async def latency(given: argparse.Namespace) -> Reply:
    """Submit one job at a time to a worker in another process, which may have other load."""
    async with app, _other("serve", given) as worker:
        await app.store()
        if not given.rate:
            return {"ms": await _probe(worker, given.samples)}
        async with _other("load", given) as load:
            await _line(load)
            await asyncio.sleep(1.0)
            found = await _probe(worker, given.samples)
            load.terminate()
            answer = await _line(load)
        return {"ms": found, "rate": float(answer)}


async def _probe(worker: asyncio.subprocess.Process, samples: int) -> list[float]:
    found = []
    for number in range(samples):
        await asyncio.sleep(random.uniform(*PAUSES_SECONDS))
        start = time.monotonic()
        await probe.submit(number)
        answer, started = (await _line(worker)).split()
        assert int(answer) == number, f"job {answer} started instead of {number}"
        found.append((float(started) - start) * 1000)
    return found


@asynccontextmanager
async def _other(verb: str, given: argparse.Namespace) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a verb of this program in another process; its own lines are read from its stdout."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.programs.holdfast", verb),
        *("--url", given.url, "--rate", str(given.rate)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(60):
        line = await process.stdout.readline()
    if not line:
        raise RuntimeError("the other process ended without a word")
    return line.decode().strip()


async def serve(_: argparse.Namespace) -> Reply:
    """Work until SIGTERM."""
    await _drain_shared()
    return {}


async def load(given: argparse.Namespace) -> Reply:
    """Submit no-ops at a steady rate until SIGTERM.

    It prints a line after the first of them, for starting takes its time, and the rate that was
    reached at the end.
    """
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with app:
        await app.store()
        start, sent = time.monotonic(), 0
        while not stopped.is_set():
            due = int((time.monotonic() - start) * given.rate) - sent
            if due > 0:
                await noop.submit_many([(str(sent + n),) for n in range(due)])
                if not sent:
                    print("loading", flush=True)
                sent += due
            await asyncio.sleep(LOAD_TURN_SECONDS)
        print(sent / (time.monotonic() - start), flush=True)
    return {}


async def signals(given: argparse.Namespace) -> Reply:
    """Wake jobs that wait, each by a signal, while a worker in another process runs them."""
    async with app, _other("serve", given):
        handles = await waits.submit_many([(str(number),) for number in range(given.jobs)])
        await _until_store(lambda: _not_in(State.WAITING, State.SUCCEEDED))
        stretch = Stretch()

        async def send(mine: list[Any]) -> None:
            for handle in mine:
                await handle.signal("go")

        async with asyncio.TaskGroup() as group:
            for caller in range(given.callers):
                group.create_task(send(handles[caller :: given.callers]))
        sent = stretch.reply(given.jobs)["seconds"]
        await _until_store(lambda: _not_in(State.SUCCEEDED))
        return stretch.reply(given.jobs, sent_seconds=sent)


async def _until_store(rest: Callable[[], Awaitable[int]]) -> None:
    while await rest():  # noqa: ASYNC110  the store rings no bell, either
        await asyncio.sleep(0.02)


VERBS: dict[str, Verb] = {
    verb.__name__: verb
    for verb in (version, setup, fill, single, drain, left, latency, serve, load, signals)
}


def main() -> None:
    """Answer one verb on the store that `--url` names."""
    words = sys.argv[1:]
    if "--url" in words:
        app.use(words[words.index("--url") + 1])
    reply_to(VERBS, words)


if __name__ == "__main__":
    main()
