"""How far a job is, as its handler reported it: a bar, numbers, a message and their age.

A report is any JSON. Shown as a bar are a fraction (0.4), a percentage (`{"percent": 40}`), and a
number beside a total (`{"done": 2, "of": 5}`); anything else is shown as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from holdfast.cli.showing import plain, short
from holdfast.flow.phrases import span
from holdfast.lifecycle.job import Job, JobId
from holdfast.operations import Operations, Progress

CELLS = 10
READS = 100
"""Jobs whose progress is read anew in one look."""
_TOTALS = ("total", "of")
_VALUES = ("done", "value", "current", "completed")
_MESSAGES = ("message", "text")


class Measure(Struct, frozen=True, kw_only=True):
    """What a report says, as far as it can be drawn."""

    fraction: float | None
    """From 0 to 1; None where there is nothing to measure it by."""
    text: str
    """The numbers and the message."""


def measure(value: Any) -> Measure:
    """Read a report."""
    if isinstance(value, float) and 0 <= value <= 1:
        return Measure(fraction=value, text="")
    if not isinstance(value, dict):
        return Measure(fraction=None, text=plain(json.dumps(value, ensure_ascii=False)))
    left = dict(value)
    total = _taken(left, _TOTALS)
    percent = _taken(left, ("percent",))
    numbers = [name for name, one in left.items() if _is_number(one)]
    # Whatever it counts: beside a total, the only other number is the one that is meant.
    done = _taken(left, numbers if total is not None and len(numbers) == 1 else _VALUES)
    message = next((str(left.pop(name)) for name in _MESSAGES if name in left), "")
    parts = []
    if done is not None:
        parts.append(f"{done:,}" if total is None else f"{done:,} of {total:,}")
    parts += [plain(message)] if message else []
    parts += [plain(json.dumps(left, ensure_ascii=False))] if left else []
    return Measure(fraction=_fraction(done, total, percent), text=", ".join(parts))


def bar(fraction: float) -> str:
    """Draw a bar with its percentage."""
    full = int(fraction * CELLS)
    return f"{'█' * full}{'░' * (CELLS - full)} {int(fraction * 100)} %"


def progress_text(progress: Progress, limit: int = 60) -> str:
    """Write a report in one line of bounded length."""
    found = measure(progress.value)
    parts = [] if found.fraction is None else [bar(found.fraction)]
    return "  ".join([*parts, short(found.text, limit)] if found.text else parts)


def progress_age(progress: Progress, now: int) -> str:
    """Tell when a report was made, and by which attempt."""
    return f"{span(max(0, now - progress.at))} ago, attempt {progress.attempt}"


class Reports:
    """Reads how far jobs are; a job that has not moved on is not read again."""

    def __init__(self) -> None:
        """Know of none."""
        self._known: dict[JobId, tuple[int, Progress | None]] = {}

    async def read(self, operations: Operations, jobs: Iterable[Job]) -> Mapping[JobId, Progress]:
        """Return the last report of each job that was started and has not ended."""
        live = [job for job in jobs if not job.terminal and job.attempt]
        known = {job.id: self._known.get(job.id, (0, None)) for job in live}
        for job in [one for one in live if known[one.id][0] != one.rev][:READS]:
            known[job.id] = (job.rev, await operations.progress(job.id))
        self._known = known
        return {id_: found for id_, (_, found) in known.items() if found is not None}


def _taken(left: dict[str, Any], names: Iterable[str]) -> float | None:
    """Remove the first of these that is a number, and return it."""
    for name in names:
        if _is_number(left.get(name)):
            found: float = left.pop(name)
            return found
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fraction(done: float | None, total: float | None, percent: float | None) -> float | None:
    if percent is not None:
        found = percent / 100
    elif done is not None and total is not None and total > 0:
        found = done / total
    else:
        return None
    return min(1.0, max(0.0, found))
