"""How much of a worker's progress is kept: each report is an event, and a sender may send any."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from holdfast.errors import BadData
from holdfast.lifecycle.payload import check_text, encode_body
from holdfast.lifecycle.record import JobId
from holdfast.queries.error_reports import MESSAGE_LIMIT, writable

POINTER_LIMIT = 4096
MOST_ARTIFACTS = 100
STEP_LIMIT = 200
PROGRESS_BYTES = 16 * 1024
"""Bytes of JSON of one progress, pointers included."""
PERIOD_SECONDS = 1.0
AT_ONCE = 5
"""Reports on a job that may come at once; from then on, one per period."""
MOST_JOBS = 10_000


class ProgressPace:
    """Limits how often the progress of a job is written by this bridge."""

    def __init__(self) -> None:
        self._due: OrderedDict[JobId, tuple[float, object]] = OrderedDict()
        """When the next one of each job would come at an even pace, and the last that came."""

    def is_too_often(self, job: JobId, arrival: object) -> bool:
        """Return whether a report comes too soon; otherwise count it."""
        due, last = self._due.get(job, (0.0, None))
        if last is arrival:
            # It was not written, and is handled again.
            return False
        now = monotonic()
        if due - now > (AT_ONCE - 1) * PERIOD_SECONDS:
            return True
        self._due[job] = (max(due, now) + PERIOD_SECONDS, arrival)
        self._due.move_to_end(job)
        while len(self._due) > MOST_JOBS:
            self._due.popitem(last=False)
        return False


def keep_progress(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is kept of a progress; raise BadData if it has too many or too long pointers."""
    check_pointers(data.get("result_ptr"), data.get("artifact_ptrs", ()))
    kept = dict(data)
    for name, limit in (("message", MESSAGE_LIMIT), ("step_id", STEP_LIMIT)):
        if name in kept:
            kept[name] = writable(kept[name], limit)
    encode_body(kept, "progress", limit=PROGRESS_BYTES)
    return kept


def check_pointers(result_ptr: str | None, artifact_ptrs: Sequence[str]) -> None:
    """Raise BadData for more pointers than are kept, or for one that cannot be."""
    if len(artifact_ptrs) > MOST_ARTIFACTS:
        raise BadData(f"a report may have {MOST_ARTIFACTS} artifacts")
    for pointer in (result_ptr, *artifact_ptrs):
        if pointer is not None:
            check_text(pointer, "a pointer", limit=POINTER_LIMIT)
