"""Commands in boxes as a contender: jobs, each beside the bare program that does the same.

`python -m bench.programs.boxes VERB --url … --mode RUNNER --directory …`. The verbs: `command`
measures one at a time, in turn with the bare line; `recover` kills a worker with SIGKILL, and
measures until another one has taken over what it ran; `host` is that worker.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.programs.replies import Reply, Verb, reply_to
from holdfast import Holdfast, JobHandle
from holdfast.ids import mint_id
from holdfast.lifecycle.states import State
from holdfast.ports.box import Box
from holdfast.runners.cgroups import Cgroups, GroupLimits, find_cgroups
from holdfast.runners.command.options import Commands
from holdfast.runners.container.argv import create_arguments
from holdfast.runners.container.seccomp import write_profile
from holdfast.runners.container.settings import PodmanSettings, find_program
from holdfast.runners.local.boxes import LocalBoxes
from holdfast.runners.sandbox.boxes import SandboxBoxes
from holdfast.wiring import migrate, read_address

IMAGE = "localhost/holdfast-bench"
HOST = "bench"
COMMAND = ("/bin/true",)
LASTS = "sleep 600"
MEMORY_MB = 1024
WAIT_SECONDS = 300.0
LOOK_SECONDS = 0.02
REST_SECONDS = 0.7
"""Before each container: the one before it is removed by then, which takes a core."""

Bare = Callable[[], Awaitable[None]]
"""Runs the bare line once."""


async def command(given: argparse.Namespace) -> Reply:
    """Run commands one at a time, each right after the bare line."""
    await migrate(read_address(given.url))
    bare = BARE[given.mode](given)
    rest = REST_SECONDS if given.mode == "podman" else 0.0
    app = Holdfast(given.url)
    jobs: list[float] = []
    bares: list[float] = []
    async with app, app.worker(commands=commands(given, room=4)):
        commits = [await _timed(lambda: _submit_only(app)) for _ in range(given.samples)]
        for number in range(-1, given.samples):
            await asyncio.sleep(rest)
            bared = await _timed(bare)
            await asyncio.sleep(rest)
            took = await _run(app)
            if number >= 0:  # the first one of each finds nothing warm
                bares.append(bared)
                jobs.append(took)
    return {"ms": jobs, "bare_ms": bares, "commit_ms": commits}


async def _timed(work: Bare) -> float:
    start = time.perf_counter()
    await work()
    return (time.perf_counter() - start) * 1000


async def _submit_only(app: Holdfast) -> None:
    """Write one job in one commit: it waits for another day."""
    await app.submit_command(list(COMMAND), delay="1d", cpus=1, memory_gb=1)


async def _run(app: Holdfast) -> float:
    """Return how long a job took: from the record of its submit to that of its end.

    By the store's clock, because the submitter looks for the end only now and then.
    """
    job = await app.submit_command(list(COMMAND), cpus=1, memory_gb=1)
    if await job.wait(WAIT_SECONDS) is not State.SUCCEEDED:
        raise RuntimeError(f"a command ended as {job.state}: {job.record.error_code}")
    ended = (await job.refresh()).record
    assert ended.finished_at is not None
    return (ended.finished_at - ended.created_at) / 1000


def commands(given: argparse.Namespace, room: int) -> Commands:
    """Return how a worker is to run commands, in room for this many."""
    return Commands(
        runner=given.mode,
        image=IMAGE,
        cpus=room,
        memory_gb=room,
        directory=f"{Path(given.directory) / 'commands'}",
        host=HOST,
        storage=storage(given.directory) if given.mode == "podman" else (),
        on_shutdown="kill",
        grace_seconds=0.1,
    )


def storage(directory: str) -> tuple[str, ...]:
    """Return the options of the storage that the bench has made in a directory."""
    places = {"root": "root", "runroot": "run", "tmpdir": "tmp"}
    return tuple(f"--{option}={directory}/{place}" for option, place in places.items())


def _bare_podman(given: argparse.Namespace) -> Bare:
    """Return `podman run --rm` with the same image, command and options as a job's container."""
    place = Path(given.directory) / "bare"
    settings = PodmanSettings(
        directory=place,
        host=HOST,
        store="bare",
        image=IMAGE,
        storage=storage(given.directory),
        # Apart from those of jobs: the bench removes it with the directory.
        cgroup_parent=f"/{Path(given.directory).name}",
    )
    init = find_program(settings.init)
    assert init is not None
    place.mkdir()
    if settings.host_profile is not None:
        write_profile(settings.host_profile, place)

    async def run() -> None:
        box = _box(place)
        _, *arguments = create_arguments(box, settings, init)
        await _call(settings.program, *settings.global_options, "run", "--rm", *arguments)

    return run


def _bare_sandbox(given: argparse.Namespace) -> Bare:
    """Return the line that a sandbox is started by, with its control groups around it."""
    return _bare_line(given, SandboxBoxes.on_this_host("bench-bare"))


def _bare_line(given: argparse.Namespace, boxes: LocalBoxes) -> Bare:
    cgroups = find_cgroups("holdfast/bench-bare")
    assert cgroups is not None

    async def run() -> None:
        box = _box(Path(given.directory) / "bare")
        await boxes.ready(box)
        try:
            await asyncio.to_thread(_run_line, boxes, box, cgroups)
        finally:
            boxes.forget(box)

    return run


def _run_line(boxes: LocalBoxes, box: Box, cgroups: Cgroups) -> None:
    group = cgroups.group(f"{box.name}.1")
    group.make(GroupLimits(cpus=1, memory_bytes=MEMORY_MB << 20, pids=64))
    try:
        with boxes.launch(box, group.doors()) as launch:
            subprocess.run(
                launch.argv,
                pass_fds=launch.descriptors,
                env=launch.env,
                cwd=launch.cwd,
                check=True,
            )
    finally:
        group.remove()
        cgroups.remove()


def _bare_process(_: argparse.Namespace) -> Bare:
    """Return the plain program."""
    return lambda: _call(*COMMAND)


BARE: dict[str, Callable[[argparse.Namespace], Bare]] = {
    "podman": _bare_podman,
    "sandbox": _bare_sandbox,
    "process": _bare_process,
}


def _box(place: Path) -> Box:
    """Return a new box, with directories of its own."""
    job = mint_id()
    directory = place / str(job)
    box = Box(
        job=job,
        attempt=1,
        epoch=1,
        host=HOST,
        store="bare",
        type="worker",
        argv=COMMAND,
        image=None,
        cpus=1,
        memory_mb=MEMORY_MB,
        env={},
        work=directory / "work",
        work_writable=False,
        artifacts=directory / "artifacts",
        directory=directory,
    )
    for path in (box.directory, box.work, box.artifacts):
        path.mkdir(mode=0o711, parents=True, exist_ok=True)
    return box


async def _call(*words: str) -> None:
    # A thread and no event loop's child watcher: what a program without Holdfast would do.
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{words[0]} failed: {done.stderr.decode(errors='replace')[-500:]}")


async def host(given: argparse.Namespace) -> Reply:
    """Run commands until killed."""
    app = Holdfast(given.url)
    async with app, app.worker(commands=commands(given, room=given.jobs)):
        await asyncio.Event().wait()
    return {}


async def recover(given: argparse.Namespace) -> Reply:
    """Kill the worker of many boxes, and measure until a new one has taken all of them over."""
    await migrate(read_address(given.url))
    app = Holdfast(given.url)
    async with app:
        first = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.programs.boxes", "host", "--url", given.url),
            *("--mode", given.mode, "--jobs", str(given.jobs), "--directory", given.directory),
        )
        try:
            jobs = [await app.submit_command(LASTS, cpus=1, memory_gb=1) for _ in range(given.jobs)]
            await _until(lambda: _all_run(jobs), "the start of all commands")
        finally:
            first.kill()
            await first.wait()
        start = time.perf_counter()
        async with app.worker(commands=commands(given, room=given.jobs)) as worker:
            await _until(lambda: _all_owned(jobs, worker.name), "their recovery")
            seconds = time.perf_counter() - start
    return {"jobs": given.jobs, "seconds": seconds}


async def _all_run(jobs: list[JobHandle[Any]]) -> bool:
    return all([(await job.refresh()).record.running for job in jobs])


async def _all_owned(jobs: list[JobHandle[Any]], owner: str) -> bool:
    records = [(await job.refresh()).record for job in jobs]
    lost = [record for record in records if record.terminal]
    if lost:
        raise RuntimeError(f"{len(lost)} commands were lost: {lost[0].error_code}")
    return all(record.owner == owner for record in records)


async def _until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not await holds():  # noqa: ASYNC110  another process changes it
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError:
        raise RuntimeError(f"{what} took longer than {WAIT_SECONDS:.0f} s") from None


VERBS: dict[str, Verb] = {verb.__name__: verb for verb in (command, host, recover)}

if __name__ == "__main__":
    reply_to(VERBS)
