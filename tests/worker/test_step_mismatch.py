"""Code that does not have the recorded steps parks the job: it goes on when that code is back."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast import Context, Failure
from holdfast.app.app import Holdfast
from holdfast.errors import Refused, StepMismatch
from holdfast.lifecycle.record import MISMATCH
from holdfast.lifecycle.states import State
from holdfast.tasks.handles import JobHandle
from tests.worker.eventually import reaches_attempt, waits_for
from tests.worker.test_worker import LIMIT, types, until

BRISK: dict[str, Any] = {"poll": "20ms", "tick": "50ms"}


class Deployed:
    """The code of a task, in versions: which step it does second."""

    def __init__(self, app: Holdfast, **terms: Any) -> None:
        """Register the first version."""
        self.ran: list[str] = []
        self.second: str | None = "charge"
        self.fails = True

        @app.task(backoff="1ms", **terms)
        async def order(ctx: Context) -> list[str]:
            await ctx.step("reserve", self.ran.append, "reserve")
            if self.second is not None:
                await ctx.step(self.second, self.ran.append, self.second)
            if self.fails:
                self.fails, self.second = False, self.deploy
                raise OSError("the attempt dies here, and other code is deployed")
            return self.ran

        self.order = order
        self.deploy: str | None = "pay"


async def parked(job: JobHandle[Any]) -> JobHandle[Any]:
    """Wait until a job is parked by its worker."""

    return await waits_for(job, MISMATCH)


@pytest.mark.parametrize("deploy", ["pay", None], ids=["renamed", "removed"])
async def test_a_step_mismatch_parks_the_job_and_costs_no_try(
    app: Holdfast, deploy: str | None
) -> None:
    code = Deployed(app, retries=1)
    code.deploy = deploy
    async with app.worker(**BRISK):
        job = await parked(await code.order.submit())
        assert (job.state, job.record.failures, job.record.attempt) == (State.WAITING, 1, 2)
        told = await app.why(job.id)
        assert told.reason.code == "step_mismatch"
        assert "'charge'" in told.text
        assert f"holdfast signal {job.id} holdfast:step_mismatch" in (told.advice or "")
        code.second = "charge"
        await job.signal(MISMATCH)
        assert await job.result(LIMIT) == ["reserve", "charge"]
    assert code.ran == ["reserve", "charge"], "nothing was run twice, and nothing was left out"
    assert (await job.refresh()).record.failures == 1


async def test_a_parked_job_looks_again_by_itself(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.lifecycle.retry.RECHECK_FIRST", 1000)
    code = Deployed(app, retries=1)
    async with app.worker(**BRISK):
        job = await code.order.submit()
        await reaches_attempt(job, 5)
        code.second = "charge"
        assert await job.result(LIMIT) == ["reserve", "charge"]
    assert (await types(job)).count("waiting") >= 3


async def test_a_job_that_is_not_parked_takes_no_such_signal(app: Holdfast) -> None:
    @app.task
    async def waits(ctx: Context) -> Any:
        return await ctx.wait_for("go")

    async with app.worker(**BRISK):
        job = await waits.submit()
        await until(job, State.WAITING)
        with pytest.raises(Refused, match="was not suspended by its worker"):
            await job.signal(MISMATCH)
        await job.signal("go", 7)
        assert await job.result(LIMIT) == 7


async def test_a_parked_job_can_be_cancelled(app: Holdfast) -> None:
    code = Deployed(app, retries=1)
    async with app.worker(**BRISK):
        job = await parked(await code.order.submit())
        assert await job.cancel() is State.CANCELLED


async def test_a_handler_that_must_not_run_twice_is_parked_too(app: Holdfast) -> None:
    code = Deployed(app, retries=1, idempotent=False)
    async with app.worker(**BRISK):
        job = await code.order.submit()
        assert await job.wait(LIMIT) is State.FAILED
        retry = await job.retried_as()
        assert retry is not None
        await parked(retry)
        code.second = "charge"
        await retry.signal(MISMATCH)
        assert await job.result(LIMIT) == ["reserve", "charge"]
    assert code.ran == ["reserve", "charge"]


async def test_a_parked_job_is_reported_in_the_logs_and_to_hooks(
    app: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Failure] = []
    app.on_failure(seen.append)
    code = Deployed(app, retries=1)
    async with app.worker(**BRISK):
        job = await parked(await code.order.submit())

    failure = next(one for one in seen if one.outcome == "parked")
    assert (failure.code, failure.job_id) == ("step_mismatch", job.id)
    assert "'pay'" in failure.message
    assert isinstance(failure.error, StepMismatch)
    lines = [(one.levelno, one.getMessage()) for one in caplog.records]
    assert any(level == logging.WARNING and "is suspended" in line for level, line in lines)
    kept = await (await app.store()).logs(job.record.id)
    assert any(one.level == logging.WARNING and "'pay'" in one.message for one in kept)
