"""The part of the demo about commands: success, failure, a time limit, the death of a worker."""

from __future__ import annotations

import asyncio
from typing import Any

from examples.demo import agents, shop
from examples.demo.boxes import TITLES, Boxes
from examples.demo.display import LIMIT_SECONDS, Display, reach
from examples.demo.workers import Workers
from holdfast import JobHandle
from holdfast.lifecycle.states import State

SMALL_OPTIONS = ("--cpus", "1", "--memory-gb", "1")
SLOW = "trap 'echo asked to stop, so it cleans up; exit 7' TERM; echo started; sleep 600 & wait"
BACKUP = "for part in 1 2 3 4 5 6; do echo part $part of 6; sleep 0.7; done"


async def run(display: Display, workers: Workers, boxes: Boxes) -> None:
    """Show each part."""
    display.chapter("7. Commands, each in a box of its own")
    display.write(f"Here they run in {TITLES[boxes.runner]}.")
    for trouble in boxes.troubles:
        display.write(f"No better one, because of {trouble}")
    worker = await workers.start(*boxes.options)
    await succeed(display)
    # It has as much time as the next command takes, so that nothing waits twice.
    slow = await shop.app.submit_command(SLOW, job_id="slow", deadline="6s", cpus=1, memory_gb=1)
    await fail(display)
    await time_out(display, slow)
    await agents.run(display)
    backup = await shop.app.submit_command(BACKUP, job_id="backup", cpus=1, memory_gb=1)
    await reach(backup, State.RUNNING)
    await asyncio.sleep(1.0)
    await workers.kill(worker)
    await orphan(display, workers, boxes, backup)


async def succeed(display: Display) -> None:
    """Run a command that succeeds."""
    shown = 'echo "uid $(id -u) on $(hostname)"'
    code = await display.command("run", *SMALL_OPTIONS, "--shell", shown)
    display.check(code == 0, "its output is shown as it comes, and the exit code is 0")


async def fail(display: Display) -> None:
    """Run a command that fails."""
    code = await display.command(
        "run", *SMALL_OPTIONS, "--shell", "echo no such branch >&2; exit 3"
    )
    display.check(code == 3, "a command that fails ends as failed, with its exit code: 3")


async def time_out(display: Display, slow: JobHandle[Any]) -> None:
    """Let a command run out of time."""
    display.chapter("8. A command that runs out of time")
    display.write("It gets SIGTERM, ten seconds to clean up, then SIGKILL for all its processes …")
    state = await slow.wait(LIMIT_SECONDS)
    await display.command("logs", slow.id)
    record = (await slow.refresh()).record
    display.check(
        state is State.TIMED_OUT and record.exit_code == 7,
        "timed out, whatever it exited with (7), once none of its processes was left",
    )


async def orphan(display: Display, workers: Workers, boxes: Boxes, backup: JobHandle[Any]) -> None:
    """Show what becomes of a command whose worker was killed."""
    display.chapter("10. A command whose worker dies")
    display.write("The worker of `backup` got kill -9 while its command ran. Another one starts …")
    await workers.start(*boxes.options)
    state = await backup.wait(LIMIT_SECONDS)
    record = (await backup.refresh()).record
    if boxes.survive:
        await display.command("logs", backup.id)
        adopted = [event for event in await backup.events() if event.type == "job_adopted"]
        display.check(
            state is State.SUCCEEDED and record.attempt == 1 and len(adopted) == 1,
            "its container continued; the new worker adopted it. It ran once, with a complete log",
        )
    else:
        await display.command("why", backup.id)
        display.check(
            state is State.FAILED and record.error_code == "container_lost_on_recovery",
            "its box died with the worker: it failed, and Holdfast does not run it twice",
        )
