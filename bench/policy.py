"""The policy by the clock: submits judged by 100 rules and 5 expressions, beside submits without.

One process, batches with and without a policy in turn, so that both meet the same disk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from statistics import median

from msgspec import Struct

from bench.cells import Cell, Finding
from bench.contestants import Contestant
from bench.places import Place
from bench.protocol import Program, ProgramError

PROGRAM = Program("policy", (sys.executable, "-m", "bench.programs.policy"))
VARIANT = "100 rules + 5 expressions vs none"
LIMIT_SECONDS = 600.0


class Scale(Struct, frozen=True, kw_only=True):
    """How much of everything."""

    jobs: int = 20_000


QUICK = Scale(jobs=4_000)


def cells(ours: Sequence[Contestant], scale: Scale) -> Iterator[Cell]:
    """List submits with and without a policy."""
    for one in ours:
        yield Cell(
            scenario="policy",
            variant=VARIANT,
            contestant=one,
            jobs=scale.jobs,
            measure=submit_judged,
        )


def submit_judged(cell: Cell, place: Place) -> list[Finding]:
    """Measure what a job of a bulk submit takes, with and without a policy."""
    place.set_up(cell.contestant.name, lambda: cell.program.ask("setup", url=place.url))
    reply = PROGRAM.ask("submit", url=place.url, jobs=cell.jobs, limit_seconds=LIMIT_SECONDS)
    times = {name: reply.get(name) for name in ("off_us", "with_us", "judge_us")}
    if not all(isinstance(each, list) and each for each in times.values()):
        raise ProgramError(f"policy gave no times but {reply}")
    off, judged, alone = (median(map(float, each or [])) for each in times.values())
    values = {"off_us": off, "with_us": judged, "more_us": judged - off, "judge_us": alone}
    return [Finding(values=values)]
