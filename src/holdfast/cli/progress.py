"""How far a job is, as its handler reported it: a bar, numbers, a message and their age.

A report is any JSON. Shown as a bar are a fraction (0.4), a percentage (`{"percent": 40}`), and a
number beside a total (`{"done": 2, "of": 5}`); anything else is shown as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from holdfast.cli.output import plain, short
from holdfast.durations import micros
from holdfast.lifecycle.record import Job, JobId
from holdfast.operations.request import Operations
from holdfast.operations.requests import GetProgress
from holdfast.operations.views import ProgressView
from holdfast.queries.why.phrases import describe_span

CELLS = 10
READS = 100
"""Maximum jobs whose progress is read at a time."""
_TOTALS = ("total", "of")
_VALUES = ("done", "value", "current", "completed")
_MESSAGES = ("message", "text")


class Measure(Struct, frozen=True, kw_only=True):
    """What can be drawn of a report."""

    fraction: float | None
    """From 0 to 1; None if the report has no total to compare with."""
    text: str
    """The numbers and the message."""


def read_measure(value: Any) -> Measure:
    """Read a report."""
    if isinstance(value, float) and 0 <= value <= 1:
        return Measure(fraction=value, text="")
    if not isinstance(value, dict):
        return Measure(fraction=None, text=plain(json.dumps(value, ensure_ascii=False)))
    left = dict(value)
    total = _take_number(left, _TOTALS)
    percent = _take_number(left, ("percent",))
    numbers = [name for name, one in left.items() if _is_number(one)]
    # Beside a total, the only other number is the one that is meant, whatever it counts.
    done = _take_number(left, numbers if total is not None and len(numbers) == 1 else _VALUES)
    message = next((str(left.pop(name)) for name in _MESSAGES if name in left), "")
    parts = []
    if done is not None:
        parts.append(f"{done:,}" if total is None else f"{done:,} of {total:,}")
    parts += [plain(message)] if message else []
    parts += [plain(json.dumps(left, ensure_ascii=False))] if left else []
    return Measure(fraction=_compute_fraction(done, total, percent), text=", ".join(parts))


def bar(fraction: float) -> str:
    """Draw a bar with its percentage."""
    full = int(fraction * CELLS)
    return f"{'█' * full}{'░' * (CELLS - full)} {int(fraction * 100)} %"


def progress_text(progress: ProgressView, limit: int = 60) -> str:
    """Return a report as one line of bounded length."""
    found = read_measure(progress.value)
    parts = [] if found.fraction is None else [bar(found.fraction)]
    return "  ".join([*parts, short(found.text, limit)] if found.text else parts)


def progress_age(progress: ProgressView, now: int) -> str:
    """Return how long ago a report was made, and by which attempt."""
    at = now if progress.at is None else micros(progress.at)
    return f"{describe_span(max(0, now - at))} ago, attempt {progress.attempt}"


class ProgressReader:
    """Reads the progress of jobs; a job whose revision has not changed is not read again."""

    def __init__(self) -> None:
        self._known: dict[JobId, tuple[int, ProgressView | None]] = {}

    async def read(
        self, operations: Operations, jobs: Iterable[Job]
    ) -> Mapping[JobId, ProgressView]:
        """Return the last report of each job that has started and not ended."""
        live = [job for job in jobs if not job.terminal and job.attempt]
        known = {job.id: self._known.get(job.id, (0, None)) for job in live}
        for job in [one for one in live if known[one.id][0] != one.rev][:READS]:
            known[job.id] = (job.rev, await _read(operations, job.id))
        self._known = known
        return {id_: found for id_, (_, found) in known.items() if found is not None}


async def _read(operations: Operations, job: JobId) -> ProgressView | None:
    found = await operations.do(GetProgress(job=job))
    return None if found.at is None else found


def _take_number(left: dict[str, Any], names: Iterable[str]) -> float | None:
    """Remove the first of these that is a number, and return it."""
    for name in names:
        if _is_number(left.get(name)):
            found: float = left.pop(name)
            return found
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _compute_fraction(
    done: float | None, total: float | None, percent: float | None
) -> float | None:
    if percent is not None:
        found = percent / 100
    elif done is not None and total is not None and total > 0:
        found = done / total
    else:
        return None
    return min(1.0, max(0.0, found))
