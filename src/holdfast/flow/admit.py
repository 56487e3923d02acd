"""Admit: let pending jobs into their queues once the upload that they name is finalized (D3).

A job whose upload is gone ends instead: nothing could start it. The records show what is to be
done, so any number may do it, and whatever one leaves undone the next finds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.errors import UploadExpired
from holdfast.flow.batch import Choose, CountedSweep, carry_out
from holdfast.flow.finish import error_body
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.command_spec import KINDS
from holdfast.lifecycle.holds import UNADMITTED, awaited_upload, upload_hold
from holdfast.lifecycle.record import Actor, Change, Job, JobId
from holdfast.lifecycle.retry import UPLOAD_EXPIRED
from holdfast.lifecycle.states import Role
from holdfast.ports.store import Store
from holdfast.ports.uploads import OVER, READABLE, Upload, is_upload_id

BATCH = 500


class AdmitSweep(CountedSweep, kw_only=True):
    """What one pass over some pending jobs did."""

    admitted: int = 0
    ended: int = 0
    """Jobs whose upload is gone."""
    next: JobId | None = None
    """The job after which the next pass starts; None means from the first."""

    @property
    def written(self) -> int:
        """How many jobs it moved."""
        return self.admitted + self.ended

    def on_written(self, change: Change) -> None:
        """Count a job by what became of it."""
        if c.written_by(change.event, c.Admit):
            self.admitted += 1
        else:
            self.ended += 1


async def admit_pending(
    store: Store, name: str, *, after: JobId | None = None, limit: int = BATCH
) -> AdmitSweep:
    """Look at the next pending jobs by id, and move those whose upload allows or demands it."""
    sweep = AdmitSweep()
    jobs = await store.pending(after=after, limit=limit)
    if len(jobs) == limit:
        sweep.next = jobs[-1].id
    await _move(store, name, jobs, sweep)
    return sweep


async def admit_held(store: Store, upload: str, name: str) -> AdmitSweep:
    """Move all jobs that wait for one upload."""
    sweep = AdmitSweep()
    after: JobId | None = None
    while jobs := await store.held(upload_hold(upload), after=after, limit=BATCH):
        after = jobs[-1].id
        await _move(store, name, [job for job in jobs if job.state in UNADMITTED], sweep)
    return sweep


async def _move(store: Store, name: str, jobs: Sequence[Job], sweep: AdmitSweep) -> None:
    """Move those of some pending jobs whose upload is finalized, or gone."""
    if not jobs:
        return
    named = await _find_named(store, jobs, sweep)
    uploads = await _look_up(store, named.values())
    await carry_out(store, jobs, _choose_by_upload(named, uploads, name), sweep)


async def _find_named(store: Store, jobs: Sequence[Job], sweep: AdmitSweep) -> dict[JobId, str]:
    """Return the uploads that jobs name: by their hold, else by their first event.

    A person may have lifted the hold; the files are missing all the same.
    """
    named: dict[JobId, str] = {}
    for job in jobs:
        upload = awaited_upload(job)
        if upload is None and job.kind in KINDS.values():
            with sweep.spare_others(job.id):
                [first] = await store.events(job.id, limit=1)
                upload = None if first.created is None else first.created.files_id
        if upload is not None:
            named[job.id] = upload
    return named


async def _look_up(store: Store, ids: Iterable[str]) -> dict[str, Upload]:
    wanted = sorted(set(filter(is_upload_id, ids)))
    found = await store.look_up_uploads(wanted) if wanted else []
    return {one.id: one for one in found if one is not None}


def _choose_by_upload(named: dict[JobId, str], uploads: dict[str, Upload], name: str) -> Choose:
    actor = Actor(Role.SCHEDULER, name)

    async def choose(job: Job) -> Sequence[c.Command]:
        if job.id not in named:
            return ()
        id_ = named[job.id]
        upload = uploads.get(id_)
        if upload is None or upload.tenant != job.tenant or upload.state in OVER:
            return (_end(id_, upload, actor),)
        if upload.state in READABLE:
            return (c.Admit(actor=actor, lifts=upload_hold(id_)),)
        return ()

    return choose


def _end(id_: str, upload: Upload | None, actor: Actor) -> c.DeadLetter:
    """Return the end of a job whose upload will never be finalized."""
    state = "is not there" if upload is None else f"is {upload.state}"
    error = UploadExpired(f"upload {id_} {state}; upload the files again, and submit a new job")
    return c.DeadLetter(
        actor=actor, stage="fetch", error_code=UPLOAD_EXPIRED, body=error_body(error)
    )
