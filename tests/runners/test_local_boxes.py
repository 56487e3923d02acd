"""Boxes that are children of the worker: they die with it, cost little, and fail in known ways."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from msgspec import json
from msgspec.structs import replace

from holdfast.errors import BoxLost, BoxRefused, RuntimeTrouble
from holdfast.ports.box import LOG_FILE, BoxExit, BoxState
from holdfast.runners.bare.boxes import BareBoxes
from holdfast.runners.local.boxes import LocalBoxes
from holdfast.runners.local.bubblewrap import LAUNCH_TRIES
from holdfast.runners.local.host import Programs, find_programs, usable_cgroups
from holdfast.runners.sandbox.boxes import SandboxBoxes
from holdfast.testing import BoxBench
from holdfast.testing.box_contract import LIMIT_SECONDS, RUN_ON, STARTED, BoxTrial
from tests.runners.hosts import leftovers, new_store
from tests.runners.lone_boxes import KINDS
from tests.runners.worlds import children

FIREHOSE_BYTES = int(os.environ.get("HOLDFAST_FIREHOSE_BYTES", "200000000"))
"""How much a firehose writes; set it to 10 GB for the whole of it."""
MEGABYTE = 1024 * 1024
NOBODY = 65534


@pytest_asyncio.fixture(params=sorted(KINDS))
async def bench(request: pytest.FixtureRequest, reachable: Path) -> AsyncIterator[BoxBench]:
    store = new_store()
    boxes = KINDS[request.param].on_this_host(store)
    yield BoxBench(boxes=boxes, directory=reachable)
    await boxes.close()
    assert not leftovers(store)


def trial(bench: BoxBench, command: str, **fields: object) -> BoxTrial:
    return BoxTrial(bench.boxes, replace(bench.box(command), **fields))


@pytest.mark.req("D7")
@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_a_box_dies_with_its_worker_and_the_next_one_finds_what_is_left(
    kind: str, reachable: Path
) -> None:
    store = new_store()
    boxes = KINDS[kind].on_this_host(store)
    made = BoxTrial(boxes, BoxBench(boxes=boxes, directory=reachable).box(f"{STARTED}{RUN_ON}"))
    file = reachable / "box.json"
    file.write_bytes(json.encode(made.box, enc_hook=str))
    worker = start_worker(kind, store, file)
    try:
        await made.wrote("started")
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    async with asyncio.timeout(LIMIT_SECONDS):
        while made.is_alive():  # noqa: ASYNC110  a pipe
            await asyncio.sleep(0.005)
    assert await made.state() == BoxState.LOST
    assert await made.is_listed()
    with pytest.raises(BoxLost):
        await made.exit()
    with pytest.raises(BoxRefused):
        await made.start()
    await boxes.remove(made.box.job, made.box.attempt)
    assert not await made.is_listed()
    await boxes.close()
    assert not leftovers(store)


async def test_a_box_costs_one_process_and_no_thread(bench: BoxBench) -> None:
    made = [trial(bench, f"{STARTED}{RUN_ON}") for _ in range(5)]
    for each in made:
        await each.boxes.prepare(each.box)
    before, threads = children(), threading.active_count()
    for each in made:
        await each.started()
    waits = [asyncio.create_task(each.exit()) for each in made]
    await asyncio.sleep(0)
    assert len(children() - before) == len(made)
    assert threading.active_count() == threads
    for each in made:
        await each.kill()
    assert {exit.code for exit in await asyncio.gather(*waits)} == {137}
    assert not children() - before


async def test_a_firehose_costs_no_memory(bench: BoxBench) -> None:
    made = trial(bench, f"yes | head -c {FIREHOSE_BYTES}; exit 7")
    used = memory_peak(since_now=True)
    async with asyncio.timeout(FIREHOSE_BYTES / (5 * MEGABYTE)):
        await made.start()
        assert await bench.boxes.wait(made.box) == BoxExit(code=7)
    assert memory_peak() - used < 32 * MEGABYTE
    size = (made.box.directory / LOG_FILE).stat().st_size
    assert made.box.log_bytes * 0.99 < size <= made.box.log_bytes


async def test_a_line_of_100_megabytes_costs_no_memory(bench: BoxBench) -> None:
    made = trial(bench, "head -c 100000000 /dev/zero | tr '\\0' x")
    used = memory_peak(since_now=True)
    assert await made.run() == BoxExit(code=0)
    assert memory_peak() - used < 32 * MEGABYTE
    assert (made.box.directory / LOG_FILE).stat().st_size <= made.box.log_bytes


async def test_a_box_has_no_more_processes_than_its_limit(bench: BoxBench) -> None:
    spawn = "for i in $(seq 100); do sleep 1000 & done; echo all"
    made = trial(bench, spawn, pids=32)
    await made.run()
    assert made.output("stdout") == b""
    assert (await trial(bench, "sleep 0 & wait; echo all", pids=32).run()).code == 0


async def test_a_box_gets_the_processors_it_was_given(bench: BoxBench) -> None:
    made = trial(bench, f"{STARTED}{RUN_ON}", cpus=3)
    await made.started()
    files = [each / name for each in groups(made) for name in ("cpu.cfs_quota_us", "cpu.max")]
    assert [file.read_text().split()[0] for file in files if file.exists()] == ["300000"]
    await made.kill()


async def test_a_box_whose_group_is_gone_is_refused_at_its_start(bench: BoxBench) -> None:
    made = trial(bench, STARTED)
    await bench.boxes.prepare(made.box)
    for directory in groups(made):
        directory.rmdir()
    with pytest.raises(BoxRefused, match=r"cgroup\.procs"):
        await bench.boxes.start(made.box)
    assert made.lines() == []


async def test_a_box_that_was_never_prepared_is_refused(bench: BoxBench) -> None:
    made = trial(bench, STARTED)
    with pytest.raises(BoxRefused, match="not prepared"):
        await bench.boxes.start(made.box)


async def test_boxes_under_way_are_killed_by_close(bench: BoxBench) -> None:
    made = [trial(bench, f"{STARTED}{RUN_ON}") for _ in range(3)]
    for each in made:
        await each.started()
    await bench.boxes.close()
    assert not any(each.is_alive() for each in made)


async def test_a_kill_reaches_a_box_that_is_just_being_made(bench: BoxBench) -> None:
    for _ in range(5):
        made = trial(bench, f"{STARTED}{RUN_ON}")
        await bench.boxes.prepare(made.box)
        starting = asyncio.create_task(bench.boxes.start(made.box))
        await asyncio.sleep(0)
        await made.kill()
        await asyncio.wait([starting])
        assert not made.is_alive()
        assert await made.state() in (BoxState.EXITED, BoxState.LOST, BoxState.ABSENT)


async def test_the_environment_is_not_in_any_argument(bench: BoxBench) -> None:
    made = trial(bench, f"{STARTED}{RUN_ON}", env={"TOKEN": "very-secret", "PATH": "/usr/bin:/bin"})
    before = children()
    await made.started()
    lines = [command_line(pid) for pid in children() - before]
    assert lines
    assert not any(b"very-secret" in line for line in lines)
    await made.kill()


async def test_the_environment_does_not_reach_what_runs_before_the_command(
    bench: BoxBench,
) -> None:
    loader = "/no/such/library.so"
    made = trial(bench, "exec true", env={"LD_PRELOAD": loader, "PATH": "/usr/bin:/bin"})
    assert await made.run() == BoxExit(code=0)
    complaints = made.output("stderr").decode().count(loader)
    assert complaints == 2, "of the shell and of true: not of sh, setpriv and bwrap before them"


@pytest.mark.parametrize("failures", [1, LAUNCH_TRIES - 1])
async def test_a_mount_that_vanishes_while_a_box_is_made_does_not_lose_it(
    failures: int, reachable: Path
) -> None:
    boxes = boxes_of_failing_bubblewrap(reachable, failures)
    bench = BoxBench(boxes=boxes, directory=reachable)
    made = trial(bench, "echo ran; exit 3")
    assert await made.run() == BoxExit(code=3)
    assert made.output("stdout") == b"ran"
    await boxes.close()


async def test_a_box_that_can_never_be_made_is_lost(reachable: Path) -> None:
    boxes = boxes_of_failing_bubblewrap(reachable, LAUNCH_TRIES)
    made = trial(BoxBench(boxes=boxes, directory=reachable), "exit 0")
    with pytest.raises(BoxLost, match="vanished"):
        await made.run()
    assert made.output("stdout") == b""
    await boxes.close()


@pytest.mark.parametrize("stop", ["kill", "terminate"])
async def test_a_box_that_was_stopped_while_it_was_made_is_not_made_again(
    stop: str, reachable: Path
) -> None:
    boxes = boxes_of_failing_bubblewrap(reachable, 1)
    made = trial(BoxBench(boxes=boxes, directory=reachable), "echo ran")
    await boxes.prepare(made.box)
    await boxes.start(made.box)
    await getattr(boxes, stop)(made.box)
    with suppress(BoxLost):
        assert (await boxes.wait(made.box)).code == 128 + signal.SIGKILL
    assert made.output("stdout") == b""
    assert (reachable / "count").read_text() == "\n"
    await boxes.close()


async def test_a_directory_that_is_gone_at_the_start_is_no_success(reachable: Path) -> None:
    bench = BoxBench(boxes=SandboxBoxes.on_this_host(new_store()), directory=reachable)
    made = trial(bench, "exit 0")
    await bench.boxes.prepare(made.box)
    (made.box.artifacts / "alive").unlink()
    made.box.artifacts.rmdir()
    with pytest.raises((BoxLost, BoxRefused), match="artifacts"):
        await made.run()
    assert await made.state() == BoxState.LOST
    await bench.boxes.close()


async def test_a_directory_out_of_reach_is_refused_with_what_to_do(reachable: Path) -> None:
    bench = BoxBench(boxes=SandboxBoxes.on_this_host(new_store()), directory=reachable)
    made = trial(bench, "exit 0")
    await asyncio.to_thread(reachable.chmod, 0o700)
    with pytest.raises(RuntimeTrouble, match=rf"chmod o\+x {reachable}"):
        await bench.boxes.prepare(made.box)
    assert await made.state() == BoxState.ABSENT
    assert not await made.is_listed()
    await bench.boxes.close()


async def test_what_a_sandbox_writes_belongs_to_a_user_of_its_own(reachable: Path) -> None:
    bench = BoxBench(boxes=SandboxBoxes.on_this_host(new_store()), directory=reachable)
    owners = set()
    for _ in range(2):
        made = trial(bench, "id -u; touch /artifacts/made", work_writable=True)
        await made.run()
        assert made.output("stdout") == b"1000"
        owners.add((made.box.artifacts / "made").stat().st_uid)
    assert len(owners) == 2
    assert min(owners) >= 250_000
    await bench.boxes.close()


async def test_only_memory_and_artifacts_can_be_written_in_a_sandbox(reachable: Path) -> None:
    bench = BoxBench(boxes=SandboxBoxes.on_this_host(new_store()), directory=reachable)
    places = "/ /usr /usr/bin /etc /proc /dev /dev/shm /tmp /work /artifacts"
    made = trial(bench, f"for p in {places}; do touch $p/x 2>/dev/null && echo $p; done")
    await made.run()
    assert made.output("stdout").split() == [b"/dev", b"/dev/shm", b"/tmp", b"/artifacts"]
    await bench.boxes.close()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_without_root_boxes_work_and_report_what_is_not_enforced(
    kind: str, reachable: Path
) -> None:
    async def run() -> None:
        boxes = KINDS[kind].on_this_host(new_store())
        assert boxes.is_usable()
        bench = BoxBench(boxes=boxes, directory=reachable / "mine")
        made = trial(bench, f"trap '' TERM; {STARTED} (setsid sleep 1000 &) ; {RUN_ON}")
        await made.started()
        await made.kill()
        assert not made.is_alive()
        assert await trial(bench, "exit 3").run() == BoxExit(code=3)
        texts = " ".join(each.text for each in boxes.examine())
        assert "no limits of CPU, memory and processes" in texts
        if boxes.isolated:
            assert "under the uid of the worker" in texts
        await boxes.close()

    (reachable / "mine").mkdir()
    os.chown(reachable / "mine", NOBODY, NOBODY)
    run_as(NOBODY, run)


async def test_a_sandbox_reports_that_it_isolates() -> None:
    boxes = SandboxBoxes.on_this_host(new_store())
    assert boxes.is_usable()
    assert {each.verdict for each in boxes.examine()} == {"ok"}


async def test_a_host_without_programs_is_reported_with_what_to_install() -> None:
    programs = Programs(bwrap=None, tini=None, setpriv=None)
    sandbox = SandboxBoxes(programs=programs, cgroups=None, trouble="bubblewrap is not installed")
    bare = BareBoxes(programs=programs, cgroups=None, trouble="bubblewrap is not installed")
    for boxes in (sandbox, bare):
        assert not boxes.is_usable()
        problems = [each for each in boxes.examine() if each.verdict == "problem"]
        assert [each.mend for each in problems if "install bubblewrap" in str(each.mend)]


async def test_what_could_not_be_killed_with_proof_is_not_prepared(reachable: Path) -> None:
    boxes = BareBoxes(programs=find_programs(), cgroups=None, trouble="no bubblewrap")
    made = trial(BoxBench(boxes=boxes, directory=reachable), STARTED)
    with pytest.raises(RuntimeTrouble, match="no kill can be proven: no bubblewrap"):
        await boxes.prepare(made.box)
    assert await made.state() == BoxState.ABSENT


async def test_the_runner_of_plain_processes_reports_that_it_isolates_nothing() -> None:
    boxes = BareBoxes.on_this_host(new_store())
    assert boxes.is_usable()
    found = {each.check: each for each in boxes.examine()}
    assert "without isolation" in found["process"].text
    assert found["process kill"].verdict == found["process limits"].verdict == "ok"


def groups(made: BoxTrial) -> list[Path]:
    """Return the directories of a box's control group."""
    assert isinstance(made.boxes, LocalBoxes)
    group = made.boxes._boxes[made.box.name].group
    assert group is not None
    return [door.parent for door in group.doors()]


def run_as(uid: int, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in a child of another user; fail with what it fails with."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        failure = "it ended early"
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            asyncio.run(run())
            failure = ""
        except BaseException:  # noqa: BLE001  the parent reports it
            failure = traceback.format_exc()
        finally:
            os.write(write, failure.encode())
            os._exit(0)
    os.close(write)
    with open(read) as failures:
        failed = failures.read()
    os.waitpid(child, 0)
    assert not failed, failed


def boxes_of_failing_bubblewrap(directory: Path, failures: int) -> BareBoxes:
    """Return boxes whose bubblewrap fails so often as it does when a mount is suddenly gone."""
    programs = find_programs()
    count, script = directory / "count", directory / "bwrap"
    script.write_text(
        f"#!/bin/sh\necho >> {count}\n"
        f'if [ "$(wc -l < {count})" -le {failures} ]; then\n'
        f'  exec {programs.bwrap} --bind {directory}/vanished /vanished "$@"\nfi\n'
        f'exec {programs.bwrap} "$@"\n'
    )
    script.chmod(0o755)
    cgroups, no_limits = usable_cgroups(new_store())
    programs = replace(programs, bwrap=str(script))
    return BareBoxes(programs=programs, cgroups=cgroups, no_limits=no_limits)


def start_worker(kind: str, store: str, file: Path) -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "tests.runners.lone_boxes", kind, store, str(file)]
    return subprocess.Popen(line)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def memory_peak(*, since_now: bool = False) -> int:
    """Return the most memory that this process has had, since the last time it was asked to."""
    if since_now:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


async def test_an_exit_that_other_code_took_is_lost_and_not_a_success(reachable: Path) -> None:
    cgroups, _ = usable_cgroups(new_store())
    boxes = BareBoxes(programs=find_programs(), cgroups=cgroups, trouble="no bubblewrap")
    bench = BoxBench(boxes=boxes, directory=reachable)
    made = trial(bench, "exit 3")
    before = children()
    await made.start()
    (pid,) = children() - before
    os.waitpid(pid, 0)  # noqa: ASYNC222  before the loop can see it
    with pytest.raises(BoxLost):
        await made.exit()
    await boxes.close()
