"""Whether the files of an attempt on a host are still needed, by the record of its job."""

from __future__ import annotations

from holdfast.errors import JobUnreadable
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.times import SECOND
from holdfast.ports.host import AttemptFiles
from holdfast.ports.store import Store
from holdfast.queries.outcomes import last_event

GRACE = 24 * 3600 * SECOND
"""How long files are left for people to look at whose outputs no end on record names."""


async def is_unneeded(store: Store, files: AttemptFiles, *, now: int) -> bool:
    """Return whether the files of an attempt can be removed; `now` is by the clock of the host.

    Those of a job that has not ended are needed, and so are those of a damaged one. Those of the
    attempt that ended a job are not, once its outputs are kept, nor those of attempts that never
    ran: a command runs once, so that all before its last did not. Any other go after a day.
    """
    try:
        [job] = await store.get([files.job])
    except JobUnreadable:
        return False
    if job is not None and files.attempt < job.attempt:
        return True
    if job is not None and files.attempt == job.attempt:
        if not job.terminal:
            return False
        if job.started_at is None or await _are_outputs_kept(store, job):
            return True
    return files.changed_at + GRACE <= now


async def _are_outputs_kept(store: Store, job: Job) -> bool:
    end = await last_event(store, job.id)
    if end is None:
        return False
    # Both are in the end of a run that was watched to its end, though there may be nothing in them.
    return end.facts.log is not None and end.facts.artifacts is not None
