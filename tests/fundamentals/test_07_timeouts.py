"""Two limits: `timeout` is for one attempt, `deadline` for the whole job."""

from __future__ import annotations

import pytest

from holdfast import Context, Holdfast, JobTimedOut
from holdfast.testing import Faults, Kit

SLOW = Faults().delay("fetch", "10m", times=3)


@pytest.mark.holdfast(faults=SLOW)
async def test_an_attempt_that_takes_too_long_is_killed_and_tried_again(
    app: Holdfast, kit: Kit
) -> None:
    """A timeout is a failure like others. (The kit's plan lets the task take ten minutes.)"""

    @app.task(timeout="1m", retries=2)
    async def fetch() -> None: ...

    job = await fetch.submit()
    with pytest.raises(JobTimedOut):
        await job.result()
    assert job.record.attempt == 3


async def test_a_deadline_ends_the_job_wherever_it_stands(app: Holdfast, kit: Kit) -> None:
    """Waiting, backing off or running: past its deadline a job is of no use to anybody."""

    @app.task
    async def ask(ctx: Context) -> None:
        await ctx.wait_for("answer")

    job = await ask.options(deadline="1h").submit()
    await kit.advance("2h")
    with pytest.raises(JobTimedOut):
        await job.result()
