"""The host's lock: one process at a time has it, whatever happens to its file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runners.command.host_lock import LOCK_FILE, HostLock
from tests.support.small_disk import small_disk

HOLDER = """
import sys, time
from pathlib import Path
from holdfast.runners.command.host_lock import HostLock
lock = HostLock(Path(sys.argv[1]))
print(lock.take(), flush=True)
sys.stdin.read()
"""


def start_holder(root: Path) -> subprocess.Popen[bytes]:
    """Start a process that takes the lock and holds it until its input ends."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"None\n"
    return holder


@pytest.fixture
def lock(tmp_path: Path) -> HostLock:
    return HostLock(tmp_path / "commands")


@pytest.mark.req("D16")
def test_one_at_a_time_has_the_lock(lock: HostLock, tmp_path: Path) -> None:
    other = HostLock(tmp_path / "commands")
    assert lock.take() is None
    assert lock.take() is None
    assert other.take() == "another worker of this host runs commands"
    lock.release()
    assert other.take() is None
    other.release()


@pytest.mark.req("D16")
def test_the_lock_is_free_once_its_holder_is_killed(lock: HostLock, tmp_path: Path) -> None:
    with start_holder(tmp_path / "commands") as holder:
        assert lock.take() is not None
        holder.kill()
    assert lock.take() is None
    lock.release()


@pytest.mark.req("D16")
@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_a_holder_keeps_the_lock_though_its_file_is_gone(tmp_path: Path, replaced: bool) -> None:
    root = tmp_path / "commands"
    first, second = HostLock(root), HostLock(root)
    assert first.take() is None
    (root / LOCK_FILE).unlink()
    if replaced:
        (root / LOCK_FILE).touch()
    assert "its lock file was removed" in (second.take() or "")
    assert first.take() is None
    assert second.take() == "another worker of this host runs commands"
    first.release()
    assert second.take() is None
    second.release()


def test_a_lock_file_that_was_removed_is_not_free_between_two_looks(tmp_path: Path) -> None:
    """A worker that lets go for a moment, to take it anew, may lose its host to another."""
    root = tmp_path / "commands"
    first = HostLock(root)
    assert first.take() is None
    with pytest.MonkeyPatch.context() as patch:
        seen: list[str | None] = []
        opened = os.open

        def open_beside(*arguments: object, **more: object) -> int:
            patch.undo()
            seen.append(HostLock(root).take())
            return opened(*arguments, **more)  # type: ignore[arg-type]

        (root / LOCK_FILE).unlink()
        patch.setattr(os, "open", open_beside)
        assert first.take() is None
    first.release()
    [refusal] = seen
    assert "another worker of this host runs commands; its lock file was removed" in (refusal or "")


def test_a_program_that_the_holder_starts_does_not_hold_the_lock(tmp_path: Path) -> None:
    root = tmp_path / "commands"
    first = HostLock(root)
    assert first.take() is None
    with subprocess.Popen(["sleep", "60"], close_fds=False) as child:
        first.release()
        second = HostLock(root)
        assert second.take() is None
        second.release()
        child.kill()


def test_a_link_in_place_of_the_lock_file_is_not_followed(lock: HostLock, tmp_path: Path) -> None:
    root = tmp_path / "commands"
    root.mkdir()
    (root / LOCK_FILE).symlink_to(tmp_path / "elsewhere")
    assert "cannot be opened" in (lock.take() or "")
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_that_cannot_be_written_is_the_reason() -> None:
    with small_disk() as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=30)
        assert "Read-only file system" in (HostLock(disk / "commands").take() or "")
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True, timeout=30)
        lock = HostLock(disk / "commands")
        assert lock.take() is None
        lock.release()
