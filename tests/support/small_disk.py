"""A file system that is soon full, for tests of what happens then."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.lifeline import Lifeline
from tests.support.unavailable import Unavailable


@contextlib.contextmanager
def small_disk(megabytes: int = 16) -> Iterator[Path]:
    """Mount an empty file system of that size and give its root; it is gone afterwards.

    ext4 over a loop device if that can be had, since it counts blocks and inodes like a real disk;
    otherwise a tmpfs, which fills up too but knows no fsync. Raises Unavailable if neither works.
    """
    if os.geteuid() != 0:
        raise Unavailable("only root may mount a small disk: run the test as root")
    with Lifeline(mounted="disk") as lifeline:
        mount_point = lifeline.directory / "disk"
        mount_point.mkdir()
        refusal = _mount_ext4(lifeline.directory / "image", mount_point, megabytes)
        if refusal is not None:
            refusal_too = _mount_tmpfs(mount_point, megabytes)
            if refusal_too is not None:
                raise Unavailable(f"no small disk: ext4: {refusal}; tmpfs: {refusal_too}")
        yield mount_point


def fill(disk: Path, *, leave_bytes: int = 0) -> Path:
    """Take all the space that is left except `leave_bytes`; removing the returned file frees it.

    The file system's own bookkeeping makes the amount left approximate.
    """
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while (room := shutil.disk_usage(disk).free - leave_bytes) > 0:
            file.write(bytes(min(room, 1 << 20)))
    return ballast


def _mount_ext4(image: Path, mount_point: Path, megabytes: int) -> str | None:
    """None if it worked, otherwise why not."""
    image.touch()
    os.truncate(image, megabytes << 20)
    # Nothing reserved for root: the tests often are root, and must meet the end all the same.
    return _refusal("mkfs.ext4", "-q", "-m", "0", str(image)) or _refusal(
        "mount", "-o", "loop", str(image), str(mount_point)
    )


def _mount_tmpfs(mount_point: Path, megabytes: int) -> str | None:
    return _refusal("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(mount_point))


def _refusal(program: str, *arguments: str) -> str | None:
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin")
    if path is None:
        return f"{program} is not installed"
    done = subprocess.run(
        [path, *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    return None if done.returncode == 0 else done.stderr.strip() or f"{program} failed"
