"""Files of attempts on a host: needed until the end is on record and the outputs are kept."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import JobUnreadable
from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job, KeptOutput
from holdfast.lifecycle.states import LIVE, Kind, State
from holdfast.ports.host import AttemptFiles
from holdfast.ports.store import Store
from holdfast.queries.artifacts import NO_ARTIFACTS
from holdfast.queries.unneeded_files import GRACE, is_unneeded
from holdfast.testing.factories import CONTROL, owner_of
from holdfast.testing.store_actions import do, job_in, running_job

LOG = KeptOutput(digest="0" * 64, bytes=0)
NOW = 2 * GRACE


async def judged(store: Any, job: Job, *, attempt: int | None = None, age: int = 0) -> bool:
    """Whether the files of an attempt that were changed so long ago can be removed."""
    which = job.attempt if attempt is None else attempt
    files = AttemptFiles(job=job.id, attempt=which, changed_at=NOW - age)
    return await is_unneeded(store, files, now=NOW)


@pytest.mark.parametrize("state", sorted(LIVE))
async def test_files_of_a_job_that_has_not_ended_are_needed(store: Store, state: State) -> None:
    job = await job_in(store, state, kind=Kind.COMMAND)
    assert not await judged(store, job, age=10 * GRACE)


async def test_files_are_not_needed_once_the_outputs_are_kept(store: Store) -> None:
    job = await running_job(store, kind=Kind.COMMAND)
    end = c.Complete(actor=owner_of(job), exit_code=0, log=LOG, artifacts=NO_ARTIFACTS)
    ended = await do(store, job, end)
    assert await judged(store, ended)


async def test_files_whose_artifacts_were_not_kept_stay_for_a_day(store: Store) -> None:
    job = await running_job(store, kind=Kind.COMMAND)
    end = c.Fail(actor=owner_of(job), error_code="artifacts_too_large", exit_code=0, log=LOG)
    ended = await do(store, job, end)
    assert not await judged(store, ended, age=GRACE - 1)


async def test_files_of_an_attempt_that_never_ran_are_not_needed(store: Store) -> None:
    cancelled = await job_in(store, State.QUEUED, kind=Kind.COMMAND)
    ended = await do(store, cancelled, c.Cancel(actor=CONTROL))
    assert await judged(store, ended)
    running = await running_job(store, kind=Kind.COMMAND)
    assert await judged(store, running, attempt=running.attempt - 1)


async def test_files_without_kept_outputs_stay_for_a_day(store: Store) -> None:
    ended = await job_in(store, State.FAILED, kind=Kind.COMMAND)
    assert not await judged(store, ended, age=GRACE - 1)
    assert await judged(store, ended, age=GRACE)


async def test_files_of_another_attempt_or_of_no_job_stay_for_a_day(store: Store) -> None:
    running = await running_job(store, kind=Kind.COMMAND)
    other = running.attempt + 1
    assert not await judged(store, running, attempt=other, age=GRACE - 1)
    assert await judged(store, running, attempt=other, age=GRACE)
    for age in (GRACE - 1, GRACE):
        files = AttemptFiles(job=mint_id(), attempt=1, changed_at=NOW - age)
        assert await is_unneeded(store, files, now=NOW) is (age == GRACE)


class Damaged:
    """A store that cannot read a job."""

    async def get(self, ids: Any) -> Any:
        raise JobUnreadable("it is damaged")


async def test_files_of_a_damaged_job_are_needed(store: Store) -> None:
    job = await job_in(store, State.SUCCEEDED, kind=Kind.COMMAND)
    assert not await judged(Damaged(), job, age=10 * GRACE)
