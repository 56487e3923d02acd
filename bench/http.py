"""What a server serves, by the clock: submits, listeners, lists. Each on a fresh database.

The server is `holdfast serve` as anybody starts it; submits are compared with an empty POST to the
same framework, measured right before. Client and server share the machine.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench.cells import Cell, Finding, Values, verify
from bench.contestants import Contestant
from bench.places import Place
from bench.protocol import ROOT, STOP_SECONDS, Program, ProgramError, Reply, number

CONNECTIONS = 64
LISTENERS = 500
CLIENT = Program("http", (sys.executable, "-m", "bench.programs.http"))
EMPTY = (sys.executable, "-m", "bench.programs.empty")
BEGIN_SECONDS, STOCK_SECONDS = 60.0, 1800.0
PROVEN_JOBS = 100_000
"""More than these are not verified again: the growth does so."""


class Scale(Struct, frozen=True, kw_only=True):
    """How much of everything."""

    empties: int = 10_000
    """Empty POSTs that submits are compared with."""
    singles: int = 10_000
    batched: int = 100_000
    samples: int = 40
    """Events whose way is measured, and pages by each filter."""
    burst: int = 2_000
    """Events that are sent to all listeners at once."""
    listed: int = 1_000_000


QUICK = Scale(empties=2_000, singles=1_000, batched=5_000, samples=5, burst=200, listed=5_000)


def cells(ours: Sequence[Contestant], scale: Scale) -> Iterator[Cell]:
    """List what a server serves: submits, listeners, lists."""
    for mode, name, jobs in (
        ("single", "one by one", scale.singles),
        ("batch", "batches of 100", scale.batched),
    ):
        variant = f"{name}, {CONNECTIONS} connections"
        for one in ours:
            yield _cell(
                variant, one, jobs, submits, callers=CONNECTIONS, task=mode, samples=scale.empties
            )
    for one in ours:
        variant = f"events to {LISTENERS} listeners"
        yield _cell(variant, one, scale.burst, listeners, callers=LISTENERS, samples=scale.samples)
    for one in ours:
        variant = f"lists of {scale.listed:,} jobs"
        # To fill it takes long.
        yield _cell(variant, one, scale.listed, lists, samples=scale.samples, most_rounds=1)


def _cell(variant: str, one: Contestant, jobs: int, measure: Any, **more: Any) -> Cell:
    return Cell(
        scenario="http", variant=variant, contestant=one, jobs=jobs, measure=measure, **more
    )


def submits(cell: Cell, place: Place) -> list[Finding]:
    """Measure submits from many connections; `cell.task` is single or batches.

    Before them come `cell.samples` empty POSTs.
    """
    with serving(EMPTY) as url:
        empty = _rate(_asked("submit", url, cell, mode="empty", jobs=cell.samples))
    with _holdfast(cell.contestant, place) as url:
        reply = _asked("submit", url, cell, mode=cell.task, jobs=cell.jobs)
    verify(cell, place, int(number("http", reply, "written")))
    rate = _rate(reply)
    values = {"rate": rate, "empty_rate": empty, "share": rate / empty, **_spread(reply)}
    return [Finding(values=values)]


def listeners(cell: Cell, place: Place) -> list[Finding]:
    """Measure how soon events reach all listeners, and how many can be sent per second."""
    with _holdfast(cell.contestant, place) as url:
        reply = _asked("listen", url, cell, jobs=cell.jobs, samples=cell.samples)
    verify(cell, place, int(number("http", reply, "written")))
    return [Finding(values={"rate": _rate(reply), **_spread(reply)})]


def lists(cell: Cell, place: Place) -> list[Finding]:
    """Measure pages of jobs by all kinds of filters."""
    one = cell.contestant
    # It fills the store without a server: by the library that the server is of.
    client = Program("http", (one.argv[0], "-m", "bench.programs.http"), one.directory)
    client.ask("stock", url=place.url, jobs=cell.jobs, limit_seconds=STOCK_SECONDS)
    place.analyse()
    with _holdfast(cell.contestant, place) as url:
        reply = _asked("list", url, cell, samples=cell.samples)
    if cell.jobs <= PROVEN_JOBS:
        verify(cell, place, cell.jobs)
    worst = number("http", reply, "worst_p50")
    return [Finding(values={"rate": _rate(reply), "worst_p50": worst, **_spread(reply)})]


def _asked(verb: str, url: str, cell: Cell, **more: Any) -> Reply:
    return CLIENT.ask(verb, url=url, callers=cell.callers, **more)


def _rate(reply: Reply) -> float:
    return number("http", reply, "jobs") / number("http", reply, "seconds")


def _spread(reply: Reply) -> Values:
    return {name: number("http", reply, name) for name in ("p50", "p99", "most")}


@contextmanager
def _holdfast(one: Contestant, place: Place) -> Iterator[str]:
    subprocess.run(
        [*one.command_line, "migrate", "--url", place.url],
        cwd=one.directory,
        check=True,
        capture_output=True,
    )
    words = (*one.command_line, "serve", "--url", place.url, "--port")
    with serving(words, one.directory) as url:
        yield url


@contextmanager
def serving(command: Sequence[str], directory: Path = ROOT) -> Iterator[str]:
    """Run a server, whose last word is the port, and return its address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = int(free.getsockname()[1])
    words = [*command, str(port)]
    process = subprocess.Popen(
        words, cwd=directory, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        _await(process, port, words)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def _await(process: subprocess.Popen[bytes], port: int, words: Sequence[str]) -> None:
    limit = time.monotonic() + BEGIN_SECONDS
    while time.monotonic() < limit and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    process.kill()
    _, output = process.communicate()
    raise ProgramError(f"{' '.join(words[1:])} does not serve: {output.decode(errors='replace')}")
