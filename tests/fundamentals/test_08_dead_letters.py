"""What could not be done is not forgotten: it lies in the dead letters until somebody decides."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, JobDeadLettered
from holdfast.testing import Kit


async def test_a_job_whose_tries_are_used_up_is_a_dead_letter(app: Holdfast, kit: Kit) -> None:
    """The record keeps the last error. `holdfast dlq list` shows it."""

    @app.task(retries=1)
    async def send() -> None:
        raise ConnectionError("the mail server is down")

    job = await send.submit()
    with pytest.raises(JobDeadLettered, match="mail server"):
        await job.result()
    assert job.record.error_code == "exhausted_retries"


async def test_a_redrive_is_a_new_job_made_once(app: Holdfast, kit: Kit) -> None:
    """Once the cause is mended, submit the letter again. The dead job stays what it is."""
    server = {"up": False}

    @app.task(retries=0)
    async def send() -> str:
        if not server["up"]:
            raise ConnectionError("the mail server is down")
        return "sent"

    dead = await send.submit()
    await kit.drain()
    server["up"] = True
    again = await dead.redrive(reason="the server is back")
    assert await again.result() == "sent"
    assert (await dead.redrive()).id == again.id
    assert (await dead.refresh()).state == "dead_lettered"
