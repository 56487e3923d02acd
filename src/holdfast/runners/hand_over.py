"""Gives the directories of a box to the user that its command runs as."""

from __future__ import annotations

import os
from pathlib import Path


def hand_over(directory: Path, uid: int) -> None:
    """Make a uid the owner of a directory and all that is in it, links themselves included."""
    os.chown(directory, uid, uid, follow_symlinks=False)
    for _, directories, files, descriptor in os.fwalk(directory):
        for name in (*directories, *files):
            os.chown(name, uid, uid, dir_fd=descriptor, follow_symlinks=False)
