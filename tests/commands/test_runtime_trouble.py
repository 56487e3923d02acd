"""Podman hangs, fails or is missing: its jobs end in time or wait, and nothing else notices."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import wiring
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import EventType, State
from holdfast.lifecycle.times import SECOND
from holdfast.operations.requests import GetJobInDialect
from holdfast.ports.box import Boxes
from holdfast.runners.bare.boxes import BareBoxes
from holdfast.runners.command.box_of import BoxPlace
from holdfast.runners.command.options import Commands
from holdfast.runners.container.argv import MONITOR_PID_FILE
from holdfast.runners.container.podman import Podman
from holdfast.runners.container.settings import CallLimits
from holdfast.tasks.handles import JobHandle
from tests.commands.support import (
    LIMIT_SECONDS,
    RUNS,
    CommandPlace,
    killed,
    processes_of,
    runs,
)
from tests.support.small_disk import fill, small_disk

pytestmark = [
    pytest.mark.parametrize("runner", ["podman"], indirect=True),
    pytest.mark.parametrize("store_url", ["sqlite"], indirect=True),
]
SHORT = CallLimits(create=1.0, start=1.0, look=1.0, remove=5.0, kill=3.0, settle=1.0)
ELSEWHERE = frozenset({"command", "runner:process"})
"""What a job needs that another runtime of the same worker runs."""


class TroubledPodman:
    """A Podman in front of the real one that hangs or fails at some of its commands."""

    def __init__(self, directory: Path) -> None:
        self.program = directory / "podman"
        self._hangs = directory / "hangs"
        self._fails = directory / "fails"
        self._lingers = directory / "lingers"
        self.calls = directory / "calls"
        self.program.write_text(
            "#!/bin/sh\n"
            f'echo "$*" >> {self.calls}\n'
            "is_in() { [ -s $1 ] && for word in $words; do grep -qx $word $1 && return 0; done;"
            " return 1; }\n"
            'words=$(printf "%s\\n" "$@" | grep -x "[a-z]*")\n'
            f"while is_in {self._hangs}; do sleep 0.05; done\n"
            f'if is_in {self._fails}; then echo "Error: no luck today" >&2; exit 125; fi\n'
            f'if is_in {self._lingers}; then podman "$@"; fi\n'
            f"while is_in {self._lingers}; do sleep 0.05; done\n"
            'exec podman "$@"\n'
        )
        self.program.chmod(0o755)

    def hang_at(self, *commands: str) -> None:
        """Hang at these commands from now on."""
        _write(self._hangs, commands)

    def fail_at(self, *commands: str) -> None:
        """Fail at these commands from now on."""
        _write(self._fails, commands)

    def linger_after(self, *commands: str) -> None:
        """Do what is asked from now on, and do not end."""
        _write(self._lingers, commands)

    def recover(self) -> None:
        """Work as it should from now on; what hung continues."""
        for file in (self._hangs, self._fails, self._lingers):
            file.unlink(missing_ok=True)

    def count(self, command: str, name: str = "") -> int:
        """Return how often a command was called, of one box or all."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return len([line for line in lines if f" {command} " in f" {line} " and name in line])


def _write(file: Path, commands: Sequence[str]) -> None:
    # At once: a program that starts meanwhile reads all or none.
    new = file.with_suffix(".new")
    new.write_text("".join(f"{command}\n" for command in commands))
    new.rename(file)


@pytest.fixture
def troubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TroubledPodman]:
    """Have the workers of this process call Podman through a program that causes trouble.

    Beside it they have plain processes, for jobs that ask for them.
    """
    made = TroubledPodman(tmp_path)
    use_podman(monkeypatch, program=str(made.program))
    yield made
    made.recover()


def use_podman(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    settings_of = wiring._podman_settings

    async def make_boxes(commands: Commands, place: BoxPlace) -> list[Boxes]:
        settings = replace(settings_of(commands, place), **{"limits": SHORT, **changes})
        return [Podman(settings), BareBoxes.on_this_host(place.store)]

    monkeypatch.setattr(wiring, "make_boxes", make_boxes)


async def others_run(place: CommandPlace) -> None:
    """Check that the worker runs jobs of another runtime meanwhile."""
    other = await place.submit("exit 0", needs=ELSEWHERE)
    assert (await place.ended(other)).state is State.SUCCEEDED


async def count_claims(place: CommandPlace, job: JobHandle[Any]) -> int:
    return len([one for one in await place.events(job) if one.type is EventType.CLAIMED])


async def reason_of_release(place: CommandPlace, job: JobHandle[Any]) -> str:
    [event] = [one for one in await place.events(job) if one.type is EventType.RELEASED]
    return event.reason or ""


async def happens(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():  # noqa: ASYNC110  another process's
            await asyncio.sleep(0.02)


def is_released(job: Job) -> bool:
    return job.state is State.STALLED


@pytest.mark.req("D14", "D18")
@pytest.mark.parametrize("trouble", ["hangs", "fails"])
async def test_a_box_that_cannot_be_created_waits_and_costs_nothing(
    place: CommandPlace,
    troubled: TroubledPodman,
    trouble: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with place.worker():
        if trouble == "hangs":
            troubled.hang_at("create")
        else:
            troubled.fail_at("create")
        job = await place.submit(RUNS + "exit 4")
        await happens(lambda: troubled.count("create") > 0)
        await others_run(place)
        released = await place.until(job, is_released)
        assert released.run_at is not None
        assert released.run_at - released.updated_at >= 4_000_000
        assert (released.failures, await count_claims(place, job)) == (0, 1)
        assert "this host cannot run it now" in await reason_of_release(place, job)
        assert f"job {job.id} is given back: this host cannot run it now" in caplog.text
        troubled.recover()
        ended = await place.ended(job)
        await place.cleared()
    assert (ended.state, ended.exit_code, ended.attempt) == (State.FAILED, 4, 2)
    assert await runs(place, job) == 1


@pytest.mark.req("D14")
async def test_a_start_that_hangs_is_not_repeated_and_counts_when_it_wakes(
    place: CommandPlace, troubled: TroubledPodman
) -> None:
    async with place.worker():
        troubled.hang_at("start")
        job = await place.submit(RUNS + "exit 4")
        await place.until(job, lambda record: record.running)
        await happens(lambda: troubled.count("start") > 0)
        await others_run(place)
        # Longer than the limit of the call, and than a pause: it is looked at, and not started.
        looks = troubled.count("inspect")
        await happens(lambda: troubled.count("inspect") > looks + 2)
        assert troubled.count("start") == 1
        troubled.recover()
        ended = await place.ended(job)
    assert (ended.state, ended.exit_code, ended.attempt) == (State.FAILED, 4, 1)
    assert (await runs(place, job), troubled.count("start")) == (1, 1)


@pytest.mark.req("D6")
async def test_a_job_whose_start_hangs_ends_at_its_time_limit_once_nothing_can_start(
    place: CommandPlace, troubled: TroubledPodman
) -> None:
    async with place.worker():
        troubled.hang_at("start")
        job = await place.submit(RUNS + "sleep 60", timeout_seconds=1)
        await place.until(job, lambda record: record.running)
        await happens(lambda: troubled.count("start") > 0)
        started = await place.read(job)
        await place.passed((started.timeout_at or 0) + 2 * SECOND)
        # Podman may start it at any moment: it is not over, and its lease is kept.
        record = await place.read(job)
        assert record.running
        assert (record.lease_expires_at or 0) >= (started.lease_expires_at or 0)
        await others_run(place)
        troubled.recover()
        ended = await place.ended(job)
    assert ended.state is State.TIMED_OUT
    assert troubled.count("start") == 1
    assert await runs(place, job) <= 1


@pytest.mark.req("D14")
async def test_a_start_that_fails_ends_the_job_with_podmans_words(
    place: CommandPlace, troubled: TroubledPodman
) -> None:
    async with place.worker():
        troubled.fail_at("start")
        job = await place.submit(RUNS + "exit 0")
        ended = await place.ended(job)
        await place.cleared()
    assert (ended.state, ended.error_code) == (State.FAILED, "box_refused")
    assert "no luck today" in await place.error(job)
    assert await runs(place, job) == 0


@pytest.mark.req("D14")
async def test_a_box_that_is_found_lost_is_dead_before_its_job_ends(
    place: CommandPlace, troubled: TroubledPodman
) -> None:
    async with place.worker():
        troubled.linger_after("start")
        job = await place.submit(RUNS + "echo ready; while :; do sleep 0.1; done")
        await place.running(job)
        # Its start is not confirmed; what is found afterwards has no monitor any more.
        os.kill(int((await place.files(job) / MONITOR_PID_FILE).read_text()), signal.SIGKILL)
        assert processes_of(job)
        ended = await place.ended(job)
        assert not processes_of(job)
        troubled.recover()
        await place.cleared()
    assert (ended.state, ended.error_code) == (State.FAILED, "container_lost")
    assert await runs(place, job) == 1


@pytest.mark.req("D7")
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
async def test_a_job_is_cancelled_though_podman_answers_nothing(
    place: CommandPlace, troubled: TroubledPodman, hard: bool
) -> None:
    async with place.worker():
        job = await place.submit(RUNS + "trap '' TERM; echo ready; while :; do sleep 0.1; done")
        await place.running(job)
        troubled.hang_at("container", "inspect", "kill", "stop", "rm", "ps")
        await job.cancel(hard=hard)
        ended = await place.ended(job)
        await others_run(place)
        troubled.recover()
        await place.cleared()
    # Its end was seen by its control group; its code is known to Podman alone.
    assert ended.state is State.CANCELLED
    assert ended.exit_code in (None, 137)


@pytest.mark.req("D7")
async def test_a_job_is_cancelled_while_its_create_hangs(
    place: CommandPlace, troubled: TroubledPodman, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = replace(SHORT, create=10 * LIMIT_SECONDS)
    use_podman(monkeypatch, program=str(troubled.program), limits=patient)
    async with place.worker():
        troubled.hang_at("create")
        job = await place.submit(RUNS + "exit 0")
        await happens(lambda: troubled.count("create") > 0)
        await job.cancel(hard=True)
        ended = await place.ended(job)
        troubled.recover()
        await place.cleared()
    assert (ended.state, ended.exit_code) == (State.CANCELLED, None)
    assert await runs(place, job) == 0


@pytest.mark.req("D14", "D18")
async def test_what_cannot_be_looked_at_is_left_alone_and_keeps_its_room(
    place: CommandPlace, troubled: TroubledPodman
) -> None:
    job = await place.submit(RUNS + "echo ready; sleep 2; exit 4", cpus=3)
    process = place.start_worker()
    await place.running(job)
    await killed(process)
    before = await place.read(job)
    troubled.hang_at("container", "inspect")
    small = await place.submit("exit 0", cpus=1, needs=ELSEWHERE)
    large = await place.submit("exit 0", cpus=2, needs=ELSEWHERE)
    async with place.worker():
        assert (await place.ended(small)).state is State.SUCCEEDED
        looks = troubled.count("inspect")
        await happens(lambda: troubled.count("inspect") > looks)
        assert (await place.read(large)).attempt == 0
        assert (await place.read(job)).rev == before.rev
        troubled.recover()
        ended = await place.ended(job)
        assert (await place.ended(large)).state is State.SUCCEEDED
    assert (ended.state, ended.exit_code) == (State.FAILED, 4)
    assert await runs(place, job) == 1


async def test_a_podman_that_is_missing_keeps_its_jobs_waiting_and_nothing_else(
    place: CommandPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_podman(monkeypatch, program="/no/such/podman")
    job = await place.submit(RUNS + "exit 0")
    async with place.worker():
        released = await place.until(job, is_released)
        await others_run(place)
        assert await count_claims(place, job) == 1
        assert released.failures == 0
    monkeypatch.undo()
    async with place.worker():
        assert (await place.ended(job)).state is State.SUCCEEDED


async def test_a_storage_that_cannot_be_written_keeps_its_jobs_waiting(
    place: CommandPlace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    storage = (*place.commands.storage, "--root", str(tmp_path / "file" / "root"))
    use_podman(monkeypatch, storage=storage)
    job = await place.submit(RUNS + "exit 0")
    async with place.worker():
        await place.until(job, is_released)
        await others_run(place)
    monkeypatch.undo()
    async with place.worker():
        assert (await place.ended(job)).state is State.SUCCEEDED


@pytest.mark.req("D17")
@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("localhost/no-such-image:1", "this host has no image"),
        ("--privileged", "invalid image name"),
        ("-v /:/host", "invalid image name"),
        ("--volume=/:/host", "invalid image name"),
    ],
)
async def test_an_image_that_is_missing_or_hostile_ends_the_job_with_the_reason(
    place: CommandPlace, image: str, words: str
) -> None:
    async with place.worker():
        job = await place.submit(RUNS + "exit 0", image=image)
        ended = await place.ended(job)
        await place.cleared()
    assert (ended.state, ended.error_code) == (State.DEAD_LETTERED, "dependency_unavailable")
    assert words in await place.error(job)
    operations = await place.app.operations()
    shown = await operations.do(GetJobInDialect(job=job.record.id, dialect="D"))
    assert (shown.document["status"], shown.document["exit_code"]) == ("failed", None)
    assert (await count_claims(place, job), await runs(place, job)) == (1, 0)


async def test_a_full_disk_is_told_and_waited_for(place: CommandPlace) -> None:
    with small_disk() as disk:
        disk.chmod(0o711)
        async with place.worker(directory=str(disk)):
            await place.ended(await place.submit("exit 0"))
            ballast = [fill(disk), *_use_up_inodes(disk)]
            job = await place.submit("exit 5")
            released = await place.until(job, is_released)
            assert "No space left on device" in await reason_of_release(place, job)
            assert (released.attempt, released.failures) == (1, 0)
            for file in ballast:
                file.unlink()
            ended = await place.ended(job)
            await place.cleared()
    assert (ended.state, ended.exit_code) == (State.FAILED, 5)


def _use_up_inodes(disk: Path) -> list[Path]:
    used: list[Path] = []
    with suppress(OSError):
        while True:
            file = disk / f"file-{len(used)}"
            file.touch()
            used.append(file)
    return used
