"""Commands by the clock: jobs in boxes beside the bare lines that do the same, and recovery.

Each is measured in turn with its bare counterpart, in one program: a ratio then says what Holdfast
adds, whatever else the machine does. Containers have a storage of their own.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from msgspec import Struct

from bench.cells import Cell, Finding, verify
from bench.contestants import Contestant
from bench.figures import percentile
from bench.places import Place
from bench.programs.boxes import IMAGE
from bench.protocol import Program, ProgramError, Reply, Unsupported, number
from tests.support.podman import PrivatePodman
from tests.support.unavailable import Unavailable

PROGRAM = Program("boxes", (sys.executable, "-m", "bench.programs.boxes"))
RUNNERS = {
    "podman": "podman run --rm",
    "sandbox": "bwrap in control groups",
    "process": "a plain process",
}
"""What each is compared with."""
LIMIT_SECONDS = 1200.0


class Scale(Struct, frozen=True, kw_only=True):
    """How much of everything."""

    samples: int = 40
    recovered: int = 50
    """Boxes that a worker leaves behind."""


QUICK = Scale(samples=8, recovered=10)


def cells(ours: Sequence[Contestant], scale: Scale) -> Iterator[Cell]:
    """List commands in each kind of box, and the recovery of containers."""
    for runner, bare in RUNNERS.items():
        for one in ours:
            yield _cell(f"{runner} vs {bare}", one, 1, run, task=runner, samples=scale.samples)
    for one in ours:
        variant = f"{scale.recovered} containers recovered"
        yield _cell(variant, one, scale.recovered, recover, task="podman")


def _cell(variant: str, one: Contestant, jobs: int, measure: Any, **more: Any) -> Cell:
    return Cell(
        scenario="commands", variant=variant, contestant=one, jobs=jobs, measure=measure, **more
    )


def run(cell: Cell, place: Place) -> list[Finding]:
    """Measure one command at a time, each right after its bare line."""
    with _directory(cell.task) as directory:
        reply = _ask("command", cell, place, directory, samples=cell.samples)
    verify(cell, place, None)
    jobs, bare, commits = (_times(reply, name) for name in ("ms", "bare_ms", "commit_ms"))
    over = median(jobs) - median(bare) - 2 * median(commits)
    values = {
        "p50": percentile(jobs, 0.5),
        "p99": percentile(jobs, 0.99),
        "bare_p50": percentile(bare, 0.5),
        "commit_p50": percentile(commits, 0.5),
        "of_bare": median(jobs) / median(bare),
        "over_ms": over,
    }
    return [Finding(values=values, jobs=cell.samples)]


def recover(cell: Cell, place: Place) -> list[Finding]:
    """Measure how soon another worker has what one that was killed has left behind."""
    with _directory(cell.task) as directory:
        reply = _ask("recover", cell, place, directory, jobs=cell.jobs)
    verify(cell, place, None)
    seconds = number("boxes", reply, "seconds")
    return [Finding(values={"recovery_seconds": seconds, "rate": cell.jobs / seconds})]


def _ask(verb: str, cell: Cell, place: Place, directory: Path, **more: Any) -> Reply:
    return PROGRAM.ask(
        verb,
        url=place.url,
        mode=cell.task,
        directory=str(directory),
        limit_seconds=LIMIT_SECONDS,
        **more,
    )


def _times(reply: Reply, name: str) -> list[float]:
    found = reply.get(name)
    if not isinstance(found, list) or not found:
        raise ProgramError(f"boxes gave no times {name!r} but {reply}")
    return [float(one) for one in found]


@contextmanager
def _directory(runner: str | None) -> Iterator[Path]:
    """Make a directory that boxes can reach; for containers with a storage and an image in it."""
    if runner == "podman":
        with _podman() as podman:
            yield podman.directory
        return
    directory = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
    directory.chmod(0o711)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def _podman() -> Iterator[PrivatePodman]:
    try:
        podman = PrivatePodman()
    except Unavailable as error:
        raise Unsupported(f"podman: {error}") from error
    with podman:
        podman.directory.chmod(0o711)
        podman.build_image(IMAGE)
        yield podman
