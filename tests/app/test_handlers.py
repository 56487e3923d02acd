"""From submit to the handler and back, through a real worker."""

from __future__ import annotations

import pytest

from holdfast import Context, Holdfast, JobDeadLettered, JobFailed, PermanentError, ValidationError
from holdfast.tasks.context import current_context


async def correlations(app: Holdfast, task: str) -> list[str | None]:
    """Tell under which correlation the jobs of a task were submitted."""
    return [
        (await job.events())[0].correlation_id async for job in app.jobs(task=task)
    ]  # fmt: skip


@pytest.mark.req("B23")
async def test_handlers_submit_jobs_that_belong_to_the_same_story(app: Holdfast) -> None:
    @app.task
    def leaf(by: str) -> str:
        return f"leaf by {by}"

    @app.task
    async def on_the_loop(ctx: Context) -> str:
        assert current_context.get() is ctx
        return (await leaf.options(parent=ctx).submit("loop")).id

    @app.task
    def in_a_thread(ctx: Context) -> str:
        assert current_context.get() is ctx
        return leaf.submit_sync("thread").id

    async with app.worker():
        first = await on_the_loop.options(correlation_id="story").submit()
        second = await in_a_thread.options(correlation_id="story").submit()
        child = await app.get(await first.result("30s"))
        other = await app.get(await second.result("30s"))
        assert await child.result("30s") == "leaf by loop"
        assert await other.result("30s") == "leaf by thread"
    assert await correlations(app, "leaf") == ["story", "story"]
    assert (child.record.parent_id, other.record.parent_id) == (first.record.id, None)


async def test_what_a_handler_raises_is_what_its_caller_learns(app: Holdfast) -> None:
    @app.task
    def refuse(kind: str) -> None:
        raise (PermanentError if kind == "permanent" else ValidationError)(f"{kind} trouble")

    async with app.worker():
        with pytest.raises(JobFailed, match="permanent trouble") as caught:
            await (await refuse.submit("permanent")).result("30s")
        assert caught.value.traceback is not None
        assert "in refuse" in caught.value.traceback
        with pytest.raises(JobDeadLettered, match="input trouble"):
            await (await refuse.submit("input")).result("30s")


async def test_a_stored_body_that_no_longer_fits_ends_in_the_dead_letters(app: Holdfast) -> None:
    @app.task
    def count(n: int) -> int:
        return n

    foreign = Holdfast(app.url)
    job = await foreign.named("count").submit(n="many")
    async with app.worker():
        with pytest.raises(JobDeadLettered, match=r"invalid arguments of count\(\): n: "):
            await (await app.get(job.id)).result("30s")
    await foreign.close()


async def test_a_result_that_is_not_what_it_says_is_no_success(app: Holdfast) -> None:
    @app.task(retries=0)
    def lie() -> int:
        return "three"  # type: ignore[return-value]

    async with app.worker():
        with pytest.raises((JobFailed, JobDeadLettered), match=r"result of lie\(\)"):
            await (await lie.submit()).result("30s")
