"""Steps, waits and compensations of handlers in processes of their own: over the pipe."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.errors import JobDeadLettered
from holdfast.lifecycle.linked import compensation_id
from holdfast.lifecycle.record import MISMATCH
from holdfast.lifecycle.states import State
from tests.worker import isolated
from tests.worker.eventually import waits_for
from tests.worker.isolated import noted, pids
from tests.worker.test_worker import LIMIT, types, until

BRISK: dict[str, Any] = {"concurrency": 2, "poll": "20ms", "tick": "50ms"}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Holdfast]:
    """The app that the processes load, open on a store."""
    isolated.app.use(str(tmp_path / "jobs.db"))
    async with isolated.app as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Where handlers tell what they did."""
    return str(tmp_path / "told")


@pytest.mark.parametrize("task", ["in_coroutine", "in_function"])
async def test_a_recorded_step_is_not_run_again(app: Holdfast, file: str, task: str) -> None:
    async with app.worker(**BRISK):
        job = await app.submit(task, file)
        assert await job.result(LIMIT) == ["first", "second"]
    assert noted(file) == ["first", "second"]
    assert os.getpid() not in pids(file)


async def test_a_process_that_dies_between_steps_repeats_none(app: Holdfast, file: str) -> None:
    async with app.worker(**BRISK):
        job = await isolated.dies_between.submit(file)
        assert await job.result(LIMIT) == ["one", "two"]
    assert noted(file) == ["one", "two"]
    assert len(pids(file)) == 2
    assert job.record.failures == 1


async def test_a_step_that_its_process_died_in_is_verified(app: Holdfast, file: str) -> None:
    async with app.worker(**BRISK):
        job = await isolated.dies_within.submit(file)
        assert await job.result(LIMIT) == "paid"
    assert noted(file) == ["paid"]
    assert [one for one in await types(job) if one.startswith("step")] == [
        *("step_started", "step_completed"),
    ]


@pytest.mark.req("E5")
@pytest.mark.parametrize("task", ["waits", "waits_in_function"])
async def test_a_wait_parks_the_job_and_frees_its_slot(app: Holdfast, file: str, task: str) -> None:
    async with app.worker(**BRISK | {"concurrency": 1}):
        job = await app.submit(task, file)
        while (await job.refresh()).record.wait_for != "go":
            await until(job, State.WAITING)
        other = await isolated.in_function.submit(f"{file}.other")
        assert await other.result(LIMIT) == ["first", "second"]
        await job.signal("go", {"by": "ann"})
        assert await job.result(LIMIT) == ["before", {"by": "ann"}, 3]
    assert noted(file) == ["begin", "begin", "before", "begin"]
    assert job.record.failures == 0


async def test_what_is_remembered_may_be_more_than_one_body(app: Holdfast) -> None:
    async with app.worker(**BRISK):
        job = await isolated.remembers_much.submit(700_000, 4)
        assert await job.result(LIMIT) == [700_000] * 4
    assert (job.record.attempt, (await types(job)).count("step_completed")) == (2, 4)


async def test_more_than_can_be_told_is_an_error_and_not_a_wait_without_end(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runners.process.protocol.TO_CHILD_LIMIT", 2_000_000)
    async with app.worker(**BRISK):
        job = await isolated.remembers_much.options(retries=1).submit(700_000, 4)
        with pytest.raises(JobDeadLettered, match="the limit is 2,000,000"):
            await job.result(LIMIT)


@pytest.mark.req("B28", "B32")
@pytest.mark.parametrize("size", [10, 700_000])
async def test_a_compensation_runs_where_its_task_does(app: Holdfast, file: str, size: int) -> None:
    async with app.worker(**BRISK):
        job = await isolated.undone.options(labels={"file": file}).submit(file, size)
        assert await job.wait(LIMIT) is State.FAILED
        undo = await app.get(compensation_id(job.record.id))
        assert await undo.result(LIMIT) is None
    assert [one[:15] for one in noted(file)[2:]] == [
        *("undo-bbbbbbbbbb", "undo-aaaaaaaaaa", "undo-all"),
    ]
    assert os.getpid() not in pids(file)
    assert (await types(job))[-1] == "compensated"


async def test_a_redrive_resumes_in_another_process(
    app: Holdfast, file: str, tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    async with app.worker(**BRISK):
        dead = await isolated.closed_shop.submit(file, str(gate))
        with pytest.raises(JobDeadLettered):
            await dead.result(LIMIT)
        gate.touch()
        again = await dead.redrive()
        charge, ship = (f"{dead.record.id}/{step}" for step in ("charge", "ship"))
        assert await again.result(LIMIT) == [charge, "child", ship]
    assert noted(file) == [charge, "child", ship]


async def test_a_step_mismatch_in_a_process_parks_the_job(
    app: Holdfast, file: str, tmp_path: Path
) -> None:
    gate = tmp_path / "renamed"
    async with app.worker(**BRISK):
        job = await isolated.renamed.submit(file, str(gate))
        await waits_for(job, "go")
        await job.signal("go")
        await waits_for(job, MISMATCH)
        assert "'charge'" in (await app.why(job.id)).text
        gate.unlink()
        await job.signal(MISMATCH)
        assert await job.result(LIMIT) == "charge"
    assert (noted(file), job.record.failures) == (["charge"], 0)
