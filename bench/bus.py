"""The bus by the clock: jobs over a bridge, beside a bare loop over the same server.

The bare loop relays the same packets with the same signatures, and keeps nothing.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from bench.cells import Cell, Finding
from bench.contestants import Contestant
from bench.places import Place
from bench.protocol import Program, number
from tests.support.nats import NatsServer

PROGRAM = Program("bus", (sys.executable, "-m", "bench.programs.bus"))
STREAMS, NO_STREAMS = "with JetStream", "without JetStream"
LIMIT_SECONDS = 600.0


class Scale(Struct, frozen=True, kw_only=True):
    """How much of everything."""

    jobs: int = 5_000


QUICK = Scale(jobs=2_000)


def cells(ours: Sequence[Contestant], scale: Scale) -> Iterator[Cell]:
    """List jobs over a bridge, on a server with streams and on one without."""
    for one in ours:
        for kind in (STREAMS, NO_STREAMS):
            yield Cell(
                scenario="bus",
                variant=f"signed jobs vs a bare loop, {kind}",
                contestant=one,
                jobs=scale.jobs,
                measure=carry,
                task=kind,
            )


def carry(cell: Cell, place: Place) -> list[Finding]:
    """Measure jobs from the packet of a client to the record of a worker's result."""
    place.set_up(cell.contestant.name, lambda: cell.program.ask("setup", url=place.url))
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory,
        NatsServer(Path(directory), jetstream=cell.task == STREAMS) as server,
    ):
        reply = PROGRAM.ask(
            "carry",
            url=place.url,
            directory=server.url,
            jobs=cell.jobs,
            limit_seconds=LIMIT_SECONDS,
        )
    ours, bare = (number("bus", reply, name) for name in ("seconds", "bare_seconds"))
    values = {"rate": cell.jobs / ours, "bare_rate": cell.jobs / bare, "of_bare": bare / ours}
    return [Finding(values=values)]
