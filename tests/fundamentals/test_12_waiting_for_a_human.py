"""A job may wait for somebody: parked until a signal comes, or its patience ends."""

from __future__ import annotations

import pytest

from holdfast import Context, Holdfast, Task, WaitTimeout
from holdfast.testing import Kit


@pytest.fixture
def pay_out(app: Holdfast) -> Task[[int], str]:
    """A job that a person has to approve."""

    @app.task
    async def pay_out(ctx: Context, amount: int) -> str:
        try:
            answer = await ctx.wait_for("approved", timeout="7d")
        except WaitTimeout:
            return "nobody answered"
        return f"{answer['by']} approved {amount}"

    return pay_out


async def test_a_signal_wakes_it(pay_out: Task[[int], str], kit: Kit) -> None:
    """From Python, or `holdfast signal JOB approved --payload '{"by": "ann"}'`."""
    job = await pay_out.submit(100)
    await kit.drain()
    assert (await job.refresh()).state == "waiting"
    await job.signal("approved", {"by": "ann"})
    assert await job.result() == "ann approved 100"


async def test_a_signal_that_comes_first_is_kept(pay_out: Task[[int], str], kit: Kit) -> None:
    """Signals are buffered, in order, and each is consumed once: nobody has to be quick."""
    job = await pay_out.submit(100)
    await job.signal("approved", {"by": "ann"})
    assert await job.result() == "ann approved 100"


async def test_patience_ends(pay_out: Task[[int], str], kit: Kit) -> None:
    """`WaitTimeout` is raised in the handler, which decides what that means."""
    job = await pay_out.submit(100)
    await kit.advance("8d")
    assert await job.result() == "nobody answered"
