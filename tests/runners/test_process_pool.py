"""Processes are kept warm, bounded in number, replaced when worn out, and none is left over."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from holdfast.errors import HandlerDied
from tests.runners.worlds import children, descriptors, runs, world


async def test_a_process_is_kept_warm_and_its_loop_with_it() -> None:
    async with world(processes=4) as given:
        assert await given.run("pid") == await given.run("pid")
        assert await given.run("loop_number") == await given.run("loop_number")


async def test_many_jobs_share_few_processes() -> None:
    async with world(processes=4) as given:
        work = [given.run("add_async" if n % 2 else "add", a=n, b=n) for n in range(50)]
        assert await asyncio.gather(*work) == [2 * n for n in range(50)]

        pids = await asyncio.gather(*(given.run("pid") for _ in range(50)))
        assert 1 <= len(set(pids)) <= 4


async def test_a_process_is_replaced_after_so_many_jobs() -> None:
    async with world(jobs_per_process=2) as given:
        pids = [await given.run("pid") for _ in range(5)]
        assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]


async def test_a_process_that_grew_too_large_is_replaced() -> None:
    async with world(memory_growth_bytes=32 * 1024 * 1024) as given:
        small = await given.run("grow", size=1024)
        large = await given.run("grow", size=64 * 1024 * 1024)
        after = await given.run("pid")
        assert small == large != after


async def test_a_process_that_died_between_two_jobs_costs_no_job() -> None:
    async with world() as given:
        first = await given.run("pid")
        os.kill(first, signal.SIGKILL)
        # Not noticed yet: this loop has not run since.
        assert await given.run("pid") != first


async def test_a_process_that_died_between_two_jobs_is_let_go_at_once() -> None:
    async with world() as given:
        before = descriptors()
        os.kill(await given.run("pid"), signal.SIGKILL)
        async with asyncio.timeout(30):
            (process,) = given.runner._all
            await process.closed.wait()
        assert descriptors() == before


async def test_closing_leaves_no_process_and_no_descriptor() -> None:
    before = descriptors()
    async with world(processes=3, jobs_per_process=5) as given:
        pids = set(await asyncio.gather(*(given.run("pid") for _ in range(20))))
        with pytest.raises(HandlerDied):
            await given.run("die", how="exit_hard")
        busy = asyncio.create_task(given.run("hold"))
        pids |= set(await given.heard())
        while not given.runner._idle:
            pids.add(await given.run("pid"))
        given.runner._idle[0].process.kill()

    with pytest.raises(HandlerDied):
        await busy
    assert not [pid for pid in pids if runs(pid)]
    assert not pids & children()
    assert descriptors() == before


async def test_a_closed_runner_starts_nothing_any_more() -> None:
    async with world() as given:
        pass
    with pytest.raises(HandlerDied, match="closing"):
        await given.run("pid")


async def test_a_process_that_does_not_end_by_itself_is_ended() -> None:
    async with world(end_seconds=0.1) as given:
        pid = await given.run("refuse_to_exit")
    assert not runs(pid)


async def test_without_room_for_another_process_the_job_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    before = descriptors()
    async with world() as given:
        with pytest.raises(HandlerDied, match="no process could be started"):
            await given.run("pid")
    assert descriptors() == before
