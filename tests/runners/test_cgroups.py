"""Control groups: which ones a host has, and what is written to them in both versions."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.errors import RuntimeTrouble
from holdfast.runners.cgroups import Cgroups, GroupLimits, find_cgroups, read_members
from tests.runners.hosts import new_store

LIMITS = GroupLimits(cpus=2, memory_bytes=64 << 20, pids=32)
ROUNDS = 200
V2_FILES = ("memory.max", "memory.swap.max", "cpu.max", "pids.max", "cgroup.procs", "cgroup.kill")


def mounted(tmp_path: Path, *lines: str) -> Cgroups | None:
    file = tmp_path / "mountinfo"
    file.write_text("".join(f"{line}\n" for line in ("1 1 8:1 / / rw - ext4 /dev/root rw", *lines)))
    return find_cgroups("holdfast/store", file)


@pytest.fixture
def version_2(tmp_path: Path) -> Path:
    """A tree that looks like version 2, with plain files where the kernel's would be."""
    root = tmp_path / "cgroup"
    group = root / "holdfast/store/box"
    group.mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids")
    for directory in (root, root / "holdfast", root / "holdfast/store"):
        (directory / "cgroup.subtree_control").touch()
    for name in V2_FILES:
        (group / name).touch()
    return root


def test_a_host_without_control_groups_has_none(tmp_path: Path) -> None:
    assert mounted(tmp_path) is None


def test_version_2_has_all_in_one_tree(tmp_path: Path, version_2: Path) -> None:
    cgroups = mounted(tmp_path, f"2 1 0:2 / {version_2} rw - cgroup2 cgroup2 rw,nsdelegate")
    assert cgroups is not None
    assert cgroups.controllers == {"cpu", "memory", "pids"}
    group = cgroups.group("box")
    group.make(LIMITS)
    directory = version_2 / "holdfast/store/box"
    assert [(directory / name).read_text() for name in V2_FILES[:4]] == [
        str(64 << 20),
        "0",
        "200000 100000",
        "32",
    ]
    handed = (version_2 / "holdfast/cgroup.subtree_control").read_text()
    assert handed == "+cpu +memory +pids"
    assert group.doors() == [directory / "cgroup.procs"]
    group.kill()
    assert (directory / "cgroup.kill").read_text() == "1"


def test_version_2_reports_who_ran_out_of_memory(tmp_path: Path, version_2: Path) -> None:
    cgroups = mounted(tmp_path, f"2 1 0:2 / {version_2} rw - cgroup2 cgroup2 rw")
    assert cgroups is not None
    events = version_2 / "holdfast/store/box/memory.events"
    events.write_text("low 0\nhigh 0\nmax 17\noom 1\noom_kill 0\noom_group_kill 0\n")
    assert not cgroups.group("box").ran_out_of_memory()
    events.write_text("low 0\nhigh 0\nmax 17\noom 1\noom_kill 2\noom_group_kill 0\n")
    assert cgroups.group("box").ran_out_of_memory()


def test_a_group_with_processes_is_not_empty(tmp_path: Path, version_2: Path) -> None:
    cgroups = mounted(tmp_path, f"2 1 0:2 / {version_2} rw - cgroup2 cgroup2 rw")
    assert cgroups is not None
    procs = version_2 / "holdfast/store/box/cgroup.procs"
    procs.write_text("17\n18\n")
    assert not cgroups.group("box").is_empty()
    procs.write_text("")
    assert cgroups.group("box").is_empty()
    assert cgroups.names() == {"box"}


def test_version_1_has_a_tree_per_controller_and_the_unified_one(tmp_path: Path) -> None:
    unified = tmp_path / "unified"
    unified.mkdir()
    (unified / "cgroup.controllers").touch()
    cgroups = mounted(
        tmp_path,
        "2 1 0:2 / /g/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
        "3 1 0:3 / /g/memory rw - cgroup cgroup rw,memory",
        "4 1 0:4 / /g/systemd rw - cgroup cgroup rw,xattr,name=systemd",
        f"5 1 0:5 / {unified} rw - cgroup2 cgroup2 rw",
    )
    assert cgroups is not None
    assert cgroups.controllers == {"cpu", "memory"}
    assert [str(door.parent.parent) for door in cgroups.group("box").doors()] == [
        "/g/cpu,cpuacct/holdfast/store",
        "/g/memory/holdfast/store",
        f"{unified}/holdfast/store",
    ]


async def test_a_group_of_this_host_can_be_made_twice_and_removed_twice() -> None:
    cgroups = find_cgroups(f"holdfast/{new_store()}")
    assert cgroups is not None
    group = cgroups.group("box")
    for _ in range(2):
        group.make(LIMITS)
    assert cgroups.names() == {"box"}
    assert await group.emptied(5)
    for _ in range(2):
        await group.removed()
    assert cgroups.names() == set()
    cgroups.remove()


def test_processes_that_cannot_be_read_are_not_taken_for_none(tmp_path: Path) -> None:
    assert read_members(tmp_path / "gone" / "cgroup.procs") == []
    unreadable = tmp_path / "cgroup.procs"
    unreadable.mkdir()
    with pytest.raises(RuntimeTrouble, match="cannot be read"):
        read_members(unreadable)


async def test_workers_that_remove_the_parent_do_not_keep_others_from_making_groups() -> None:
    """Worker beside worker: each makes its group, removes it, and the parent if that is empty."""
    store = new_store()

    def make_and_remove(name: str) -> None:
        for _ in range(ROUNDS):
            cgroups = find_cgroups(f"holdfast/{store}")
            assert cgroups is not None
            group = cgroups.group(name)
            group.make(LIMITS)
            group.remove()
            cgroups.remove()

    await asyncio.gather(
        *(asyncio.to_thread(make_and_remove, name) for name in ("one", "two", "three"))
    )
