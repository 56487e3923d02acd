"""A job may be due later. The kit's clock does not move by itself, and jumps when it drains."""

from __future__ import annotations

from datetime import timedelta

from holdfast import Holdfast
from holdfast.testing import Kit


async def test_a_job_is_run_after_a_delay(app: Holdfast, kit: Kit) -> None:
    """`delay`, or `run_at` with a datetime. `kit.advance` lets time pass."""
    ran_at = []

    @app.task
    async def remind() -> None:
        ran_at.append(kit.clock.now)

    due = kit.clock.now + timedelta(hours=1)
    job = await remind.options(delay="1h").submit()
    await kit.advance("59m")
    assert (await job.refresh()).state == "queued"
    await kit.advance("10m")
    assert ran_at == [due]


async def test_a_delayed_job_can_be_taken_back(app: Holdfast, kit: Kit) -> None:
    """Nobody runs it yet, so it is cancelled at once."""

    @app.task
    async def remind() -> None: ...

    job = await remind.options(delay="1h").submit()
    assert await job.cancel(reason="paid already") == "cancelled"
