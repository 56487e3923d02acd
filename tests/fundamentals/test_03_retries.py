"""What fails is tried again: by the task's terms, or as the error says."""

from __future__ import annotations

import pytest

from holdfast import Backoff, Context, Holdfast, JobFailed, PermanentError, TransientError
from holdfast.testing import Kit


async def test_an_error_is_tried_again(app: Holdfast, kit: Kit) -> None:
    """Any exception. By default three more tries, each after a longer pause."""

    @app.task(retries=3, backoff=Backoff("10s", 2, "1m"))
    async def fetch(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ConnectionError("refused")
        return ctx.attempt

    before = kit.clock.now
    assert await (await fetch.submit()).result() == 3
    # Ten seconds, then twenty: the kit's clock jumped, nobody waited.
    assert (kit.clock.now - before).total_seconds() == 30


async def test_a_handler_may_know_better_when_to_try_again(app: Holdfast, kit: Kit) -> None:
    """`TransientError(retry_in=…)`: what a server says in its Retry-After."""

    @app.task
    async def fetch(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise TransientError("too many requests", retry_in="1h")

    before = kit.clock.now
    await (await fetch.submit()).result()
    assert (kit.clock.now - before).total_seconds() == 3600


async def test_what_no_try_will_mend_fails_at_once(app: Holdfast, kit: Kit) -> None:
    """`PermanentError` ends the job, whatever tries are left."""

    @app.task(retries=100)
    async def fetch() -> None:
        raise PermanentError("404")

    job = await fetch.submit()
    with pytest.raises(JobFailed):
        await job.result()
    assert job.record.attempt == 1


async def test_the_same_effect_may_come_twice(app: Holdfast, kit: Kit) -> None:
    """Attempts are at least once: one that died after its effect is followed by another.

    Make handlers idempotent, or put effects into steps (test_10_steps.py).
    """
    sent: list[str] = []

    @app.task
    async def send(address: str) -> None:
        sent.append(address)

    kit.crash_during("send")
    await (await send.submit("ada@example.org")).result()
    assert sent == ["ada@example.org", "ada@example.org"]
