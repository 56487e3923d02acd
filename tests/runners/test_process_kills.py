"""A process and all that it started die when they must: by cancel, with the worker, on trouble."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import HandlerDied, RemoteError
from tests.runners.worlds import children, failure, runs, world
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


@pytest.mark.req("B13")
@pytest.mark.parametrize("task", ["hold", "hold_async"])
async def test_cancelling_kills_the_process_and_what_it_started_before_it_returns(
    task: str,
) -> None:
    async with world() as given:
        running = asyncio.create_task(given.run(task))
        pid, grandchild = await given.heard()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert not runs(grandchild)
        assert pid not in children()
        assert await given.run("add", a=1, b=2) == 3


async def test_cancelling_again_does_not_cut_the_kill_short() -> None:
    async with world() as given:
        running = asyncio.create_task(given.run("hold"))
        pid, grandchild = await given.heard()
        running.cancel()
        while not running.done():
            await asyncio.sleep(0)
            running.cancel()

        assert running.cancelled()
        assert not runs(grandchild)
        assert pid not in children()


async def test_a_stopped_process_is_killed_too() -> None:
    async with world() as given:
        running = asyncio.create_task(given.run("hold"))
        pid, grandchild = await given.heard()
        os.killpg(pid, signal.SIGSTOP)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not runs(pid)
        assert not runs(grandchild)


async def test_a_process_can_be_killed_while_it_starts() -> None:
    before = children()
    async with world("tests.runners.endless_import:app") as given:
        running = asyncio.create_task(given.run("pid"))
        await asyncio.sleep(0)
        (pid,) = children() - before
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert pid not in children()


async def test_closing_does_not_wait_for_a_start() -> None:
    async with world("tests.runners.endless_import:app") as given:
        running = asyncio.create_task(given.run("pid"))
        await asyncio.sleep(0)
    with pytest.raises(HandlerDied):
        await running


@pytest.mark.parametrize("then", ["fail", "obey"])
async def test_what_a_failed_or_cancelled_handler_started_is_dead_before_it_is_told(
    then: str,
) -> None:
    async with world() as given:
        ctx = given.context()
        running = asyncio.create_task(given.run("leave", ctx, what="process", then=then))
        pid, grandchild = await given.heard()
        ctx.cancelled.set("cancel")
        await asyncio.wait({running})

        assert isinstance(running.exception(), RemoteError if then == "fail" else type(None))
        assert not runs(grandchild)
        assert not runs(pid)


async def test_a_failed_handler_leaves_no_thread_and_no_task_to_the_next() -> None:
    async with world() as given:
        await failure(given, "leave", what="thread", then="fail")
        await failure(given, "leave_a_task")
        await failure(given, "leave", what="nothing", then="fail")
        pids = [(await given.heard())[0] for _ in range(3)]

        assert len(set(pids)) == 3
        assert [runs(pid) for pid in pids] == [False, False, True]


async def test_what_a_handler_leaves_on_success_stays_until_its_process_ends() -> None:
    async with world() as given:
        grandchild = await given.run("leave", what="process", then="return")
        pid, _ = await given.heard()

        assert runs(grandchild)
        assert await given.run("pid") == pid
    assert not runs(grandchild)


@contextmanager
def lone_worker(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A worker's process, and the pids of its child, of a grandchild, and of a copy of itself."""
    command = [sys.executable, "-m", "tests.runners.lone_worker", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        yield process, [int(word) for word in process.stdout.readline().split()]
        process.kill()


def test_a_worker_that_is_killed_takes_its_processes_and_theirs_along() -> None:
    with lone_worker() as (worker, (child, grandchild, _)):
        assert runs(child)
        assert runs(grandchild)
        worker.kill()
        wait_until(lambda: not runs(child) and not runs(grandchild), "their end")


def test_a_copy_of_the_worker_does_not_keep_its_processes_alive() -> None:
    with lone_worker("fork") as (worker, (child, grandchild, copy)):
        worker.kill()
        try:
            wait_until(lambda: not runs(child) and not runs(grandchild), "their end")
            assert runs(copy)
        finally:
            os.kill(copy, signal.SIGKILL)


async def test_a_process_whose_channel_is_closed_in_the_middle_of_a_job_ends_its_group() -> None:
    async with world() as given:
        running = asyncio.create_task(given.run("leave", what="process", then="obey"))
        pid, grandchild = await given.heard()
        (process,) = given.runner._all
        process.process.channel.shutdown(socket.SHUT_WR)

        with pytest.raises(HandlerDied, match="was ended by SIGKILL"):
            await running
        assert not runs(pid)
        assert not runs(grandchild)


def test_a_process_whose_worker_is_already_gone_ends_at_once() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = str(theirs.fileno())
        done = subprocess.run(
            [sys.executable, "-m", "holdfast.runners.process.child_main", "1", channel, channel],
            pass_fds=[theirs.fileno()],
            check=False,
            timeout=30,
        )
    assert done.returncode == 1
