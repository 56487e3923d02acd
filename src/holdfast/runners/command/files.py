"""The directories of a command's attempt, and the note on what made its box."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from holdfast.ports.box import Box

NOTE_FILE = "runner"
"""Names what made the box: after a restart with other settings it is still found there."""


PASSABLE = 0o711


class BoxNote(Struct, frozen=True):
    """What made a box, and under which epoch: a later one does not change its name."""

    maker: str
    epoch: int


def make_directories(box: Box, maker: str) -> None:
    """Make the directories of an attempt, and note what makes its box."""
    jobs, job = box.directory.parents[1], box.directory.parents[0]
    for directory in (jobs.parent, jobs, job, box.directory):
        make_passable(directory)
    box.work.mkdir(exist_ok=True)
    box.work.chmod(0o755)
    box.artifacts.mkdir(mode=0o700, exist_ok=True)
    write_whole(box.directory / NOTE_FILE, f"{maker} {box.epoch}".encode())


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file so that a reader sees all of it, or what was there before."""
    written = path.with_name(f"{path.name}.new")
    written.write_bytes(data)
    written.rename(path)


def make_passable(directory: Path) -> None:
    """Make a directory that a box's own user passes through, and that only its owner can list.

    Whatever the umask of the worker: a service may have a strict one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if directory.stat().st_mode & 0o777 != PASSABLE:
        directory.chmod(PASSABLE)


def read_note(directory: Path) -> BoxNote | None:
    """Return the note on the box of an attempt; None if nothing was made for it.

    Raise OSError where that is not known.
    """
    try:
        maker, _, epoch = (directory / NOTE_FILE).read_text().partition(" ")
    except FileNotFoundError:
        return None
    if not epoch.isdigit():
        raise OSError(f"{directory / NOTE_FILE} cannot be read: {os.strerror(5)}")
    return BoxNote(maker, int(epoch))
