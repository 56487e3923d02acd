"""Blobs by the clock: small ones beside a bare loop with the same syncs, and the memory of streams.

The store has no part in it. S3 is moto's server on this machine: what it takes is mostly its own.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from msgspec import Struct

from bench.cells import Cell, Finding
from bench.contestants import Contestant
from bench.places import Place
from bench.protocol import Program, ProgramError, number
from tests.support.s3 import CREDENTIALS, S3Server

PROGRAM = Program("blobs", (sys.executable, "-m", "bench.programs.blobs"))
DIRECTORY, S3 = "directory", "S3 (moto)"
LIMIT_SECONDS = 600.0


class Scale(Struct, frozen=True, kw_only=True):
    """How much of everything."""

    small: int = 1_000
    large_bytes: int = 100_000_000


QUICK = Scale(small=200, large_bytes=30_000_000)


def cells(ours: Sequence[Contestant], scale: Scale) -> Iterator[Cell]:
    """List small blobs in a directory, and a large one in a directory and on S3."""
    for one in ours:
        variant = f"{scale.small:,} small blobs vs a bare loop"
        yield _cell(variant, one, scale.small, put_small)
        for kind in (DIRECTORY, S3):
            variant = f"{scale.large_bytes // 1_000_000:,} MB in and out, {kind}"
            yield _cell(variant, one, 1, stream_large, task=kind, bytes=scale.large_bytes)


def _cell(variant: str, one: Contestant, jobs: int, measure: Any, **more: Any) -> Cell:
    return Cell(
        scenario="blobs", variant=variant, contestant=one, jobs=jobs, measure=measure, **more
    )


def put_small(cell: Cell, _: Place) -> list[Finding]:
    """Measure small blobs, each right after one of the bare loop."""
    with _place(DIRECTORY) as address:
        reply = PROGRAM.ask("small", url=address, jobs=cell.jobs, limit_seconds=LIMIT_SECONDS)
    times = {name: reply.get(name) for name in ("ms", "bare_ms")}
    if not all(isinstance(each, list) and len(each) == cell.jobs for each in times.values()):
        raise ProgramError(f"blobs gave no times but {reply}")
    ours, bare = (list(map(float, each or [])) for each in times.values())
    values = {"p50": median(ours), "bare_p50": median(bare), "of_bare": sum(ours) / sum(bare)}
    return [Finding(values=values)]


def stream_large(cell: Cell, _: Place) -> list[Finding]:
    """Measure by how much memory grows while a large blob is written and read."""
    with _place(cell.task or DIRECTORY) as address:
        reply = PROGRAM.ask("large", url=address, bytes=cell.bytes, limit_seconds=LIMIT_SECONDS)
    seconds, grown = (number("blobs", reply, name) for name in ("seconds", "grown"))
    values = {"rate_mb": 2 * cell.bytes / 1_000_000 / seconds, "grown_mb": grown / 1_000_000}
    return [Finding(values=values)]


@contextmanager
def _place(kind: str) -> Iterator[str]:
    """Make an empty place, which is gone afterwards."""
    if kind == DIRECTORY:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory:
            yield directory
        return
    with S3Server() as server:
        os.environ.update(CREDENTIALS)
        try:
            yield server.address(server.create_bucket())
        finally:
            for name in CREDENTIALS:
                os.environ.pop(name)
