"""Podman that hangs, fails or is missing, and boxes that cannot be made: all by a named error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.errors import BoxRefused, RuntimeTrouble
from holdfast.ports.box import BoxExit, BoxState, Sight
from holdfast.runners.container import cli
from holdfast.runners.container.argv import leaf_of
from holdfast.runners.container.box_cgroup import hierarchies
from holdfast.runners.container.podman import Podman
from holdfast.runners.container.settings import CallLimits
from holdfast.runners.container.traces import Traces
from tests.runners.container.runs import log_of, processes, start, until, within_limit
from tests.support.podman import PrivatePodman

SHORT = CallLimits(create=0.5, start=0.5, look=0.5, remove=5.0, kill=3.0, settle=1.0)


class Hanging:
    """A Podman that hangs at some of its commands for as long as it is told."""

    def __init__(self, private: PrivatePodman, directory: Path) -> None:
        self._private = private
        self._flag = directory / "hangs"
        self._program = directory / "podman"
        self._program.write_text(
            "#!/bin/sh\n"
            f'case " $* " in *" $(cat {self._flag} 2>/dev/null || echo nothing) "*)\n'
            f"while [ -e {self._flag} ]; do sleep 0.05; done;; esac\n"
            'exec podman "$@"\n'
        )
        self._program.chmod(0o755)

    def boxes(self) -> Podman:
        return Podman(replace(self._private.settings, program=str(self._program), limits=SHORT))

    def hang_at(self, command: str) -> None:
        self._flag.write_text(command)

    def wake(self) -> None:
        self._flag.unlink(missing_ok=True)


@pytest.fixture
def hanging(private_podman: PrivatePodman, tmp_path: Path) -> Iterator[Hanging]:
    made = Hanging(private_podman, tmp_path)
    yield made
    made.wake()


async def test_a_create_that_hangs_is_trouble_and_may_be_repeated_once_it_is_done(
    podman: Podman, private_podman: PrivatePodman, hanging: Hanging
) -> None:
    box, boxes = private_podman.shell("echo ran; exit 5"), hanging.boxes()
    hanging.hang_at("create")
    with pytest.raises(RuntimeTrouble, match="podman create has not answered within"):
        await boxes.prepare(box)
    with pytest.raises(RuntimeTrouble, match="still creating or starting"):
        await podman.look(box)
    hanging.wake()
    await _call_ends(private_podman, leaf_of(box))
    await podman.prepare(box)
    await podman.start(box)
    assert await within_limit(podman.wait(box)) == BoxExit(code=5)
    assert log_of(box) == ["stdout F ran"]


async def test_a_start_that_hangs_is_neither_a_box_that_never_ran_nor_a_kill(
    podman: Podman, private_podman: PrivatePodman, hanging: Hanging
) -> None:
    box, boxes = private_podman.shell("echo ran; sleep 1000"), hanging.boxes()
    await podman.prepare(box)
    hanging.hang_at("start")
    with pytest.raises(RuntimeTrouble, match="podman start has not answered within"):
        await boxes.start(box)
    # Also another worker knows of the call, which may start the box at any time.
    with pytest.raises(RuntimeTrouble, match="still creating or starting"):
        await podman.look(box)
    with pytest.raises(RuntimeTrouble):
        await boxes.start(box)
    with pytest.raises(RuntimeTrouble):
        await boxes.kill(box)
    hanging.wake()
    await _call_ends(private_podman, leaf_of(box))
    assert await podman.look(box) == Sight(BoxState.RUNNING)
    assert log_of(box) == ["stdout F ran"]
    await podman.kill(box)


async def test_a_box_is_killed_although_podman_hangs(
    podman: Podman, private_podman: PrivatePodman, hanging: Hanging
) -> None:
    box, boxes = private_podman.shell("trap '' TERM; sleep 1000"), hanging.boxes()
    await start(podman, box)
    hanging.hang_at("container")
    with pytest.raises(RuntimeTrouble):
        await boxes.look(box)
    await boxes.kill(box)
    assert not processes(private_podman, box)
    hanging.wake()
    assert await within_limit(podman.wait(box)) == BoxExit(code=137)


async def test_a_listing_that_hangs_does_not_keep_looks_waiting(
    podman: Podman, private_podman: PrivatePodman, hanging: Hanging
) -> None:
    box, boxes = private_podman.shell("exit 0"), hanging.boxes()
    await podman.prepare(box)
    hanging.hang_at("ps")
    with pytest.raises(RuntimeTrouble, match="podman ps"):
        await boxes.list()
    assert await podman.look(box) == Sight(BoxState.CREATED)


async def test_calls_that_hang_are_limited_in_number(
    podman: Podman, private_podman: PrivatePodman, hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "ABANDONED_MOST", 3)
    boxes = hanging.boxes()
    hanging.hang_at("ps")
    answers = await asyncio.gather(*(boxes.list() for _ in range(3)), return_exceptions=True)
    assert all(isinstance(answer, RuntimeTrouble) for answer in answers)
    with pytest.raises(RuntimeTrouble, match="3 calls of podman hang"):
        await boxes.list()
    hanging.wake()
    await until(lambda: not private_podman.monitors(), "the end of the calls that hung")
    assert list(await boxes.list()) == []


async def test_a_podman_that_is_missing_is_trouble(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("exit 0")
    missing = Podman(replace(private_podman.settings, program="/no/such/podman"))
    for call in (missing.prepare(box), missing.look(box), missing.list(), missing.start(box)):
        with pytest.raises(RuntimeTrouble, match="cannot be started"):
            await call
    # What never was has no process: that needs no Podman.
    await missing.kill(box)


async def test_a_storage_that_cannot_be_written_is_trouble(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    storage = (*private_podman.settings.storage, "--root", "/dev/null/storage")
    broken = Podman(replace(private_podman.settings, storage=storage))
    box = private_podman.shell("exit 0")
    for call in (broken.prepare(box), broken.look(box), broken.list()):
        with pytest.raises(RuntimeTrouble):
            await call


async def test_a_missing_init_or_monitor_is_trouble(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("exit 0")
    with pytest.raises(RuntimeTrouble, match="no-init, is not installed"):
        await Podman(replace(private_podman.settings, init="no-init")).prepare(box)
    await podman.prepare(box)
    with pytest.raises(RuntimeTrouble, match="no-conmon, is not installed"):
        await Podman(replace(private_podman.settings, conmon="no-conmon")).start(box)


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("localhost/no-such-image:1", "this host has no image"),
        ("--privileged", "invalid image name"),
        ("-v=/:/host", "invalid image name"),
    ],
)
async def test_an_image_that_is_missing_or_hostile_is_refused(
    podman: Podman, private_podman: PrivatePodman, image: str, reason: str
) -> None:
    box = private_podman.shell("exit 0", image=image)
    with pytest.raises(BoxRefused, match=reason):
        await podman.prepare(box)
    assert await podman.look(box) == Sight(BoxState.ABSENT)


async def test_a_command_that_is_too_long_is_refused(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    with pytest.raises(BoxRefused, match="too long"):
        await podman.prepare(private_podman.shell("x" * 200_000))


async def test_a_start_that_podman_refuses_leaves_nothing_running(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("exit 0")
    await podman.prepare(box)
    box.work.rmdir()
    with pytest.raises(BoxRefused, match="cannot be started"):
        await podman.start(box)
    assert not processes(private_podman, box)
    assert await podman.look(box) == Sight(BoxState.CREATED)


async def test_the_directory_of_a_store_is_not_listed_by_other_users(
    private_podman: PrivatePodman, tmp_path: Path
) -> None:
    settings = replace(private_podman.settings, directory=tmp_path / "store" / "podman")
    await Podman(settings).close()
    assert (tmp_path / "store").stat().st_mode & 0o777 == 0o711


async def test_the_control_group_of_a_store_ends_with_its_last_box(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("exit 0")
    await podman.prepare(box)
    await podman.start(box)
    await podman.close()
    assert _groups(private_podman)
    await podman.wait(box)
    await podman.remove(box.job, box.attempt)
    await podman.close()
    assert not _groups(private_podman)


def _groups(private: PrivatePodman) -> list[Path]:
    places = (mount / private.settings.box_cgroups.lstrip("/") for mount in hierarchies())
    return [place for place in places if place.exists()]


async def _call_ends(private: PrivatePodman, leaf: str) -> None:
    traces = Traces(private.settings.directory / "traces")
    await until(lambda: not traces.has_call(leaf), "the end of the call that hung")
