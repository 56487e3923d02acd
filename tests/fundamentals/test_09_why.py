"""A job that does not run says why: one typed reason first, then whatever else applies."""

from __future__ import annotations

from holdfast import Context, Holdfast
from holdfast.testing import Kit


async def test_nobody_serves_its_queue(app: Holdfast, kit: Kit) -> None:
    """The most common reason of all. On a terminal: `holdfast why JOB`."""

    @app.task(queue="mail")
    async def send() -> None: ...

    job = await send.submit()
    assert (await app.why(job)).reason.code == "no_worker"


async def test_what_a_person_did_comes_before_what_time_will_mend(app: Holdfast, kit: Kit) -> None:
    """Who paused the queue and why is told; that the job is not due either comes after."""

    @app.task
    async def send() -> None: ...

    await app.pause("default", reason="full disk")
    job = await send.options(delay="1h").submit()
    answer = await app.why(job)
    assert answer.reason.code == "queue_paused"
    assert "full disk" in answer.text
    assert "not_due" in [reason.code for reason in answer.also]


async def test_a_drain_tells_of_all_that_it_left(app: Holdfast, kit: Kit) -> None:
    """In tests the same reasons say what is still there."""

    @app.task
    async def ask(ctx: Context) -> None:
        await ctx.wait_for("answer")

    await ask.submit()
    [left] = (await kit.drain()).left
    assert left.reason.code == "waiting"
    assert "'answer'" in left.text
