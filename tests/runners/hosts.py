"""What tests of boxes use and see of the host: root trees, and control groups that were left."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def new_store() -> str:
    """Return the identity of a store that no other test uses."""
    return f"test-{secrets.token_hex(6)}"


def leftovers(store: str) -> list[str]:
    """Return the control groups of a store's boxes that exist, in any hierarchy."""
    hierarchies = (CGROUPS, *(each for each in CGROUPS.iterdir() if each.is_dir()))
    parents = (each / "holdfast" / store for each in hierarchies)
    return [
        str(each) for parent in parents if parent.exists() for each in (parent, *parent.glob("*/"))
    ]


def build_busybox_tree(root: Path) -> None:
    """Make a tree of busybox alone, with all its programs as links."""
    program = shutil.which("busybox")
    assert program is not None, "tests of boxes need busybox-static"
    (root / "bin").mkdir(parents=True)
    shutil.copy(program, root / "bin/busybox")
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
    for name in listed.stdout.split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
