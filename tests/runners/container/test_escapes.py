"""A container has no way out: the probes that `tests/runners/test_escapes.py` has the control of.

A container takes long to start, so that one runs all probes of a group, each in a shell of its own.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from holdfast.runners.container.podman import Podman
from tests.runners.container.runs import run
from tests.runners.escape_probes import (
    GROUPS,
    PROBES,
    HostCanaries,
    Probe,
    host_canaries,
    is_denied,
    named,
)
from tests.support.podman import PrivatePodman, nothing_left

IMAGE = "localhost/holdfast-probes:test"
EACH = 'for probe in "$@"; do sh -c "$probe" </dev/null; echo $? >>/artifacts/codes; done'


class Tried(Struct, frozen=True):
    """What became of all probes."""

    codes: dict[str, int]
    intact: bool


@pytest.fixture(scope="module")
def tried(private_podman: PrivatePodman) -> Iterator[Tried]:
    """Run all probes, with a secret in the environment of the worker."""
    private_podman.build_image(IMAGE, files=perl_files())
    directory = private_podman.directory / "canaries"
    directory.mkdir()
    with (
        nothing_left(private_podman),
        host_canaries(directory) as canaries,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("OF_THE_WORKER", canaries.secret)
        codes = asyncio.run(try_all(private_podman, canaries))
        yield Tried(codes=codes, intact=canaries.are_intact())


async def try_all(private: PrivatePodman, canaries: HostCanaries) -> dict[str, int]:
    """Return the exit codes of all probes."""
    podman = Podman(private.settings)
    codes: dict[str, int] = {}
    for group in GROUPS.values():
        commands = [canaries.fill(probe.command) for probe in group]
        box = private.box("/bin/sh", "-c", EACH, "sh", *commands, image=IMAGE)
        await run(podman, box)
        found = (box.artifacts / "codes").read_text().split()
        codes |= zip((probe.name for probe in group), map(int, found), strict=True)
        await podman.remove(box.job, box.attempt)
    await podman.close()
    return codes


def perl_files() -> list[Path]:
    """Return the files of the host that make perl, and its sockets, in another root."""
    perl = shutil.which("perl")
    assert perl is not None, "probes of escapes need perl"
    modules = ["-MSocket", "-e", 'print "$_\\n" for values %INC, @DynaLoader::dl_shared_objects']
    libraries = [word for word in _output("ldd", perl).split() if word.startswith("/")]
    return [Path(each) for each in (perl, *libraries, *_output(perl, *modules).split())]


def _output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("probe", PROBES, ids=named)
def test_a_container_denies(probe: Probe, tried: Tried) -> None:
    assert is_denied(tried.codes[probe.name])


def test_the_host_is_as_before(tried: Tried) -> None:
    assert tried.intact
