"""A job is one call of a task. Once `submit` has returned, it survives any crash."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, JobFailed, PermanentError
from holdfast.testing import Kit


async def test_a_job_waits_for_a_worker(app: Holdfast, kit: Kit) -> None:
    """Submitting runs nothing. Here `kit.drain()` plays the worker; it runs all that is due."""

    @app.task
    async def work() -> str:
        return "done"

    job = await work.submit()
    assert job.state == "queued"
    await kit.drain()
    assert (await job.refresh()).state == "succeeded"
    assert await job.result() == "done"


async def test_an_error_of_the_handler_is_raised_where_the_result_is_asked_for(
    app: Holdfast, kit: Kit
) -> None:
    """`result` raises by how the job ended; the error carries type, message and traceback."""

    @app.task
    async def work() -> None:
        raise PermanentError("there is no such customer")

    job = await work.submit()
    with pytest.raises(JobFailed, match="no such customer") as raised:
        await job.result()
    assert raised.value.error_code == "permanent"


async def test_a_job_is_found_again_by_its_id(app: Holdfast, kit: Kit) -> None:
    """Keep the id, not the handle: another process can ask for the result tomorrow."""

    @app.task
    async def work() -> str:
        return "done"

    job_id = (await work.submit()).id
    assert await (await app.get(job_id)).result() == "done"


async def test_every_change_is_an_event(app: Holdfast, kit: Kit) -> None:
    """The history is complete: the state can always be derived from it, and is compared."""

    @app.task
    async def work() -> None: ...

    job = await work.submit()
    await kit.drain()
    history = [event.type for event in await job.events()]
    assert history == ["job_created", "job_claimed", "job_started", "job_succeeded"]
