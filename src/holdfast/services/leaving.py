"""Leaving: what an owner that ends in order still holds is given back."""

from __future__ import annotations

import logging
from uuid import UUID

from holdfast.errors import NoSuchJob, Refused
from holdfast.flow.finish import after_shutdown
from holdfast.flow.perform import perform
from holdfast.lifecycle.job import Actor, Job
from holdfast.lifecycle.states import Role, State
from holdfast.ports import Store

log = logging.getLogger(__name__)


async def give_back_all(store: Store, owner: str) -> list[UUID]:
    """Release what an owner holds, or end it where it must not run again; tells which jobs."""
    given: list[UUID] = []
    for job in await store.owned(owner):
        if await give_back(store, job):
            given.append(job.id)
    return given


async def give_back(store: Store, job: Job) -> bool:
    """Release a job for its owner, or end it where it must not run again; whether that was done."""
    actor = Actor(Role.OWNER, job.owner or "", job.attempt)
    command = after_shutdown(job, actor, started=job.state is State.RUNNING)
    try:
        await perform(store, job.id, command)
    except (Refused, NoSuchJob) as error:
        # It was ended or lost meanwhile, or a sweep will end it.
        log.warning("job %s was not given back: %s", job.public_id, error)
        return False
    return True
