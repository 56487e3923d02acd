"""The end of a worker's session: the jobs that it still holds are given back."""

from __future__ import annotations

import logging
from uuid import UUID

from holdfast.errors import NoSuchJob, Refused
from holdfast.flow.command import perform
from holdfast.flow.finish import end_after_shutdown
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.states import Role
from holdfast.ports.store import Store

log = logging.getLogger(__name__)


async def release_or_end_all(store: Store, owner: str) -> list[UUID]:
    """Release what an owner holds, or end it where it must not run again; return the jobs."""
    given: list[UUID] = []
    for job in await store.owned(owner):
        if await release_or_end(store, job):
            given.append(job.id)
    return given


async def release_or_end(store: Store, job: Job) -> bool:
    """Release a job for its owner, or end it where it must not run again; False if it could not."""
    actor = Actor(Role.OWNER, job.owner or "", job.attempt)
    command = end_after_shutdown(job, actor, started=job.running)
    try:
        await perform(store, job.id, command)
    except (Refused, NoSuchJob) as error:
        # It was ended or lost meanwhile, or a sweep will end it.
        log.warning("job %s could not be released: %s", job.public_id, error)
        return False
    return True
