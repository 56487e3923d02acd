"""What every Python peer's program shares: its command line, its clocks, its one line of JSON.

Runs in the peer's own environment, so the standard library is all that may be imported here.
"""

import argparse
import asyncio
import inspect
import json
import random
import resource
import signal
import threading
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib.metadata import version
from itertools import count
from typing import Any

Answer = dict[str, Any]
Verb = Callable[[argparse.Namespace], Answer | Coroutine[Any, Any, Answer]]

PATIENCE_SECONDS = 60.0
"""How long a worker may take to make durable what its handlers have ended, or to start one job."""


def main(
    *,
    package: str,
    keeps: str,
    settings: str,
    verbs: Mapping[str, Verb],
    run: Callable[[Any], Answer] = asyncio.run,
) -> None:
    """Do what the command line asks for, and print the answer."""

    def version_verb(_: argparse.Namespace) -> Answer:
        return {"version": version(package), "keeps": keeps, "settings": settings}

    known: dict[str, Verb] = {"version": version_verb, **verbs}
    arguments = _parser(package, list(known)).parse_args()
    answer = known[arguments.verb](arguments)
    print(json.dumps(run(answer) if inspect.iscoroutine(answer) else answer), flush=True)


def _parser(package: str, verbs: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=f"Drives {package} for the bench.")
    parser.add_argument("verb", choices=verbs)
    parser.add_argument("--url", help="the database")
    parser.add_argument("--jobs", type=int, default=1000, help="how many jobs")
    parser.add_argument("--bytes", type=int, default=0, help="size of a payload; tiny if not given")
    parser.add_argument("--callers", type=int, default=1, help="who submit at the same time")
    parser.add_argument("--mode", help="the worker's settings by name; the best if not given")
    parser.add_argument("--shared", action="store_true", help="drain until SIGTERM")
    parser.add_argument("--samples", type=int, default=100, help="how often latency is taken")
    return parser


def payload(size: int) -> dict[str, Any]:
    """What a job carries: next to nothing, or a number of bytes."""
    return {"data": noise(size)} if size else {"n": 1}


def noise(size: int) -> str:
    """Return text of a length that PostgreSQL cannot compress.

    Base64 of bytes that look random, but are the same for everybody: hashes of numbers.
    """
    hashes = (sha256(b"bench %d" % number).digest() for number in range(-(-size // 42)))
    return b64encode(b"".join(hashes)).decode()[:size]


def chunks(total: int, size: int) -> Iterator[int]:
    """Split `total` into pieces of `size` at most."""
    for start in range(0, total, size):
        yield min(size, total - start)


class Stopwatch:
    """Seconds and CPU seconds of this process since it was made."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self._cpu = time.process_time()

    def read(self, jobs: int) -> Answer:
        """Return what a number of jobs took."""
        return {
            "jobs": jobs,
            "seconds": time.monotonic() - self.started,
            "cpu": time.process_time() - self._cpu,
        }


class Progress:
    """Counts handlers as they start, from any thread; the clock runs from the first of them."""

    def __init__(self, jobs: int, on_last: Callable[[], object]) -> None:
        self._jobs = jobs
        self._on_last = on_last
        # Taking the next of a count is one step under the interpreter's lock.
        self._numbers = count(1)
        self._stopwatch = Stopwatch()
        self._seen = 0
        self._last = 0.0

    def start_one(self) -> None:
        """Note that a handler has started."""
        number = next(self._numbers)
        if number == 1:
            self._stopwatch = Stopwatch()
        self._seen = number
        if number == self._jobs:
            self._on_last()
        elif not self._jobs:
            self._last = time.monotonic()

    def read(self) -> Answer:
        """Return what the drain took until now, and its peak memory.

        Of several processes, also when its first and last handlers started, on the machine's clock.
        """
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        answer = {**self._stopwatch.read(self._seen), "rss": peak}
        if not self._jobs:
            answer |= {"first": self._stopwatch.started, "last": self._last}
        return answer


class Latencies:
    """Times from the start of a submit to the start of its handler, one job at a time."""

    def __init__(self, samples: int, *, pause_seconds: tuple[float, float] = (0.01, 0.03)) -> None:
        self._samples = samples
        self._pause_seconds = pause_seconds
        self._submitted = 0.0
        self._milliseconds: list[float] = []

    def pauses(self) -> Iterator[float]:
        """How long to rest before each sample."""
        for _ in range(self._samples):
            yield random.uniform(*self._pause_seconds)

    def submit_starts(self) -> None:
        """Start the clock of one job."""
        self._submitted = time.monotonic()

    def handler_starts(self) -> None:
        """Stop it."""
        self._milliseconds.append((time.monotonic() - self._submitted) * 1000)

    def read(self) -> Answer:
        """Return all of them."""
        return {"ms": self._milliseconds}


def patience(what: str) -> Iterator[None]:
    """Let a loop go on for a while, then give up."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        yield
    raise TimeoutError(f"waited {PATIENCE_SECONDS:.0f} s in vain for {what}")


async def by_chunks(jobs: int, size: int, submit: Callable[[int], Awaitable[object]]) -> Answer:
    """Submit by chunks, so that the client prepares one while the server writes another."""
    sizes = chunks(jobs, size)

    async def filler() -> None:
        for one in sizes:
            await submit(one)

    stopwatch = Stopwatch()
    await asyncio.gather(filler(), filler())
    return stopwatch.read(jobs)


async def by_callers(jobs: int, callers: int, submit: Callable[[], Awaitable[object]]) -> Answer:
    """Submit one by one, from several callers at the same time."""
    numbers = iter(range(jobs))

    async def caller() -> None:
        for _ in numbers:
            await submit()

    stopwatch = Stopwatch()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return stopwatch.read(jobs)


def by_threads(jobs: int, callers: int, submit: Callable[[], object]) -> Answer:
    """Submit one by one, from several threads at the same time."""
    numbers = count(1)

    def caller() -> None:
        while next(numbers) <= jobs:
            submit()

    stopwatch = Stopwatch()
    with ThreadPoolExecutor(callers) as threads:
        for done in [threads.submit(caller) for _ in range(callers)]:
            done.result()
    return stopwatch.read(jobs)


class Starts:
    """Lets a thread wait until a handler in another one starts, or until SIGTERM."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Wake who waits."""
        self._event.set()

    def wait(self) -> None:
        """Wait for one to start, and make ready for the next."""
        if not self._event.wait(PATIENCE_SECONDS):
            raise TimeoutError(f"no handler started within {PATIENCE_SECONDS:.0f} s")
        self._event.clear()

    def wait_for_the_last(self) -> None:
        """Wait as long as a drain may take."""
        signal.signal(signal.SIGTERM, lambda *_: self._event.set())
        self._event.wait()


async def over_by_signal() -> asyncio.Event:
    """Make an event that SIGTERM sets."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    return over
