"""How a command ends in a container, as it is observed (D4, D5)."""

from __future__ import annotations

import pytest

from holdfast.errors import BoxLost, BoxRefused
from holdfast.ports.box import LOG_FILE, TRUNCATED_FILE, BoxExit, BoxState, Sight
from holdfast.runners.container.podman import Podman
from tests.runners.container.runs import log_of, run
from tests.support.podman import PrivatePodman


@pytest.mark.req("D4")
async def test_a_program_that_is_not_found_exits_with_127_and_not_with_a_start_that_failed(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    assert await run(podman, private_podman.box("/no/such/program")) == BoxExit(code=127)


async def test_a_box_that_was_only_created_is_never_a_success(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("exit 0")
    await podman.prepare(box)
    assert await podman.look(box) == Sight(BoxState.CREATED)
    with pytest.raises(BoxLost):
        await podman.wait(box)


async def test_a_box_that_has_run_is_not_started_again(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("echo once")
    await run(podman, box)
    with pytest.raises(BoxRefused, match="it is exited"):
        await podman.start(box)
    assert log_of(box) == ["stdout F once"]


async def test_preparing_twice_leaves_the_same_box(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("exit 4")
    await podman.prepare(box)
    await Podman(private_podman.settings).prepare(box)
    await podman.start(box)
    assert await podman.wait(box) == BoxExit(code=4)


@pytest.mark.req("D5")
@pytest.mark.parametrize(
    ("script", "exit"),
    [
        ("tail /dev/zero", BoxExit(code=137, out_of_memory=True)),
        (
            "sh -c 'echo 1000 > /proc/self/oom_score_adj; tail /dev/zero'; exit 0",
            BoxExit(code=0, out_of_memory=True),
        ),
        (
            "sh -c 'echo 1000 > /proc/self/oom_score_adj; tail /dev/zero'; exit 3",
            BoxExit(code=3, out_of_memory=True),
        ),
        ("kill -9 $$", BoxExit(code=137)),
    ],
    ids=["whole box", "child, exit 0", "child, exit 3", "killed by itself"],
)
async def test_out_of_memory_is_the_runtimes_word(
    podman: Podman, private_podman: PrivatePodman, script: str, exit: BoxExit
) -> None:
    box = private_podman.shell(script, memory_mb=32)
    assert await run(podman, box) == exit
    assert await podman.look(box) == Sight(BoxState.EXITED, exit)


async def test_output_is_kept_by_line_with_its_stream(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("echo out; sleep 0.1; echo err >&2; sleep 0.1; printf last")
    await run(podman, box)
    assert log_of(box) == ["stdout F out", "stderr F err", "stdout P last"]
    assert not (box.directory / TRUNCATED_FILE).exists()


async def test_output_beyond_its_limit_is_dropped_and_the_command_goes_on(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    script = "echo first; yes 0123456789012345678901234567890 | head -c 30000000; exit 6"
    box = private_podman.shell(script, log_bytes=1_000_000)
    assert await run(podman, box) == BoxExit(code=6)
    kept = (box.directory / LOG_FILE).stat().st_size
    assert 1_000_000 <= kept < 1_100_000
    assert log_of(box)[0] == "stdout F first"
    assert (box.directory / TRUNCATED_FILE).exists()
