"""What a sandbox is made of: the exact options of bubblewrap, and the filter of system calls."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from holdfast.errors import RuntimeTrouble
from holdfast.lifecycle.record import JobId
from holdfast.ports.box import Box
from holdfast.runners.denied_calls import DENIED
from holdfast.runners.local.bubblewrap import ENTER, bubblewrapped
from holdfast.runners.sandbox.options import GROUP, HOST_ROOT, PASSWD, box_options
from holdfast.runners.sandbox.seccomp import build_filter
from holdfast.runners.sandbox.users import UidPool

BOX = Box(
    job=JobId(UUID(int=1)),
    attempt=1,
    epoch=1,
    host="host",
    store="store",
    type="worker",
    argv=("make", "test"),
    image=None,
    cpus=2,
    memory_mb=4096,
    env={"TOKEN": "secret", "HOME": "/work"},
    work=Path("/jobs/1/work"),
    work_writable=False,
    artifacts=Path("/jobs/1/artifacts"),
    directory=Path("/jobs/1"),
)
GOLDEN = [
    *("--unshare-all", "--unshare-user", "--disable-userns"),
    *("--die-with-parent", "--new-session", "--as-pid-1"),
    *("--cap-drop", "ALL", "--hostname", "job", "--uid", "1000", "--gid", "1000"),
    *("--ro-bind", "ROOT/bin", "/bin", "--symlink", "bin", "/sbin"),
    *("--proc", "/proc", "--dev", "/dev"),
    *("--perms", "1777", "--size", "4294967296", "--tmpfs", "/tmp"),
    *("--ro-bind", "/usr/bin/tini-static", "/.init"),
    *("--seccomp", b"filter"),
    *("--ro-bind", "/jobs/1/work", "/work", "--bind", "/jobs/1/artifacts", "/artifacts"),
    *("--remount-ro", "/", "--chdir", "/work", "--clearenv"),
    *("--setenv", "PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    *("--setenv", "HOME", "/work", "--setenv", "TOKEN", "secret"),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("bin", "tmp", "proc", "sys", "dev", "work", "artifacts"):
        (tmp_path / name).mkdir()
    (tmp_path / "sbin").symlink_to("bin")
    return tmp_path


def options(box: Box, root: Path) -> list[str | bytes]:
    return list(box_options(box, root, "/usr/bin/tini-static", b"filter"))


def test_the_options_of_a_sandbox_are_exactly_these(root: Path) -> None:
    named = [
        each.replace(str(root), "ROOT") if isinstance(each, str) else each
        for each in options(BOX, root)
    ]
    assert named == GOLDEN


def test_the_work_of_an_agent_is_mounted_writable(root: Path) -> None:
    given = options(replace(BOX, work_writable=True), root)
    assert given[given.index("/jobs/1/work") - 1] == "--bind"


def test_the_host_shows_programs_and_made_up_users_and_nothing_else() -> None:
    given = options(BOX, HOST_ROOT)
    binds = {
        source
        for kind, source in pairwise(given)
        if isinstance(kind, str) and "bind" in kind and kind != "--bind"
    }
    assert {PASSWD, GROUP, "/usr"} <= binds
    allowed = ("/usr", "/bin", "/sbin", "/lib", "/etc/alternatives", "/etc/ld.so", "/etc/ssl/certs")
    others = {
        each
        for each in binds
        if isinstance(each, str) and not each.startswith((*allowed, "/etc/localtime", "/jobs"))
    }
    assert others == set()


def test_only_the_command_and_two_numbers_are_in_the_arguments() -> None:
    with bubblewrapped(
        "/usr/bin/bwrap",
        ("--setenv", "TOKEN", "secret"),
        ("/.init", "--", "make"),
        doors=[Path("/g")],
    ) as launch:
        assert launch.argv[:6] == ("/bin/sh", "-c", ENTER, "enter", "/g", "--")
        assert launch.argv[6:8] == ("/usr/bin/bwrap", "--args")
        assert launch.argv[9:] == ("--", "/.init", "--", "make")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_every_call_that_is_denied_is_in_the_filter(machine: str) -> None:
    program = build_filter(machine)
    assert program is not None
    steps = list(struct.iter_unpack("=HBBI", program))
    compared = {value for operation, _, _, value in steps if operation == 0x15}
    column = ["x86_64", "aarch64"].index(machine)
    assert {numbers[column] for numbers in DENIED.values()} <= compared
    assert steps[-1] == (0x06, 0, 0, 0x7FFF0000), "the rest is allowed"


def test_an_unknown_machine_has_no_filter() -> None:
    assert build_filter("pdp11") is None


def test_no_two_boxes_have_one_uid_at_a_time() -> None:
    pool = UidPool(first=7, count=3)
    taken = [pool.take() for _ in range(3)]
    assert sorted(taken) == [7, 8, 9]
    with pytest.raises(RuntimeTrouble, match="in use"):
        pool.take()
    pool.give_back(8)
    assert pool.take() == 8
