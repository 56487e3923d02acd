"""A job may sleep for days. It holds no slot and no memory meanwhile, and survives restarts."""

from __future__ import annotations

from holdfast import Context, Holdfast
from holdfast.testing import Kit


async def test_a_sleeping_job_is_parked(app: Holdfast, kit: Kit) -> None:
    """After the sleep the handler runs from the top; what it did before is remembered."""
    mails: list[str] = []

    @app.task
    async def welcome(ctx: Context, name: str) -> None:
        await ctx.step("hello", mails.append, f"hello {name}")
        await ctx.sleep("3d")
        await ctx.step("tips", mails.append, f"tips for {name}")

    job = await welcome.submit("Ada")
    await kit.advance("2d")
    assert (await job.refresh()).state == "waiting"
    assert mails == ["hello Ada"]
    await kit.advance("1d")
    assert (await job.refresh()).state == "succeeded"
    assert mails == ["hello Ada", "tips for Ada"]
