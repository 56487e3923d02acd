"""The options of bubblewrap that make a sandbox: what it isolates, and what it shows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.ports.box import HOST_NETWORK, Box, mounts_of, places_inside
from holdfast.runners.local.bubblewrap import Option, env_options

ISOLATION: tuple[Option, ...] = (
    *("--unshare-all", "--unshare-user", "--disable-userns"),
    *("--die-with-parent", "--new-session", "--as-pid-1"),
    *("--cap-drop", "ALL", "--hostname", "job", "--uid", "1000", "--gid", "1000"),
)
INIT = "/.init"
"""The first process: it forwards signals, collects orphans, and ends with a shell's codes."""
HOST_ROOT = Path("/")
HOST_DIRECTORIES = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr")
"""What a sandbox shows of the host, read-only, unless it has a root of its own."""
HOST_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "ssl/certs")
"""What programs need of the host's /etc; nothing of it is a secret."""
NETWORK_ETC = ("hosts", "nsswitch.conf", "resolv.conf", "services")
"""What programs need of it to use the network of the host, where that is allowed."""
PASSWD = b"""root:x:0:0:root:/nonexistent:/bin/false
job:x:1000:1000:job:/tmp:/bin/sh
nobody:x:65534:65534:nobody:/nonexistent:/bin/false
"""
GROUP = b"root:x:0:\njob:x:1000:\nnogroup:x:65534:\n"
OWN = ("artifacts", "dev", "proc", "run", "sys", "tmp", "work")
"""What is never taken from a root tree."""
ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"}
"""What a command has unless it is given another."""


def box_options(box: Box, root: Path, tini: str, filter: bytes | None) -> Iterator[Option]:
    """Return all options for a box."""
    yield from base_options(root, tini, filter, tmp_bytes=box.memory_mb * 1024 * 1024)
    yield from ("--bind" if box.work_writable else "--ro-bind", os.fspath(box.work), "/work")
    yield from ("--bind", os.fspath(box.artifacts), "/artifacts")
    for mount in mounts_of(box):
        yield from ("--bind" if mount.writable else "--ro-bind", os.fspath(mount.source))
        yield mount.target
    if box.network == HOST_NETWORK:
        yield "--share-net"
        for name in NETWORK_ETC:
            yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    # Last: until here, bubblewrap makes the places of mounts in it.
    yield from ("--remount-ro", "/", "--chdir", "/work")
    yield from env_options({**ENV, **box.env, **places_inside(box)})


def base_options(root: Path, tini: str, filter: bytes | None, tmp_bytes: int) -> Iterator[Option]:
    """Return the options that do not depend on a command and its directories."""
    yield from ISOLATION
    yield from _host_tree() if root == HOST_ROOT else _own_tree(root)
    yield from ("--proc", "/proc", "--dev", "/dev")
    yield from ("--perms", "1777", "--size", str(tmp_bytes), "--tmpfs", "/tmp")
    yield from ("--ro-bind", tini, INIT)
    if filter is not None:
        yield from ("--seccomp", filter)


def _host_tree() -> Iterator[Option]:
    for name in HOST_DIRECTORIES:
        yield from _shown(HOST_ROOT / name)
    for name in HOST_ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    yield from ("--ro-bind-data", PASSWD, "/etc/passwd", "--ro-bind-data", GROUP, "/etc/group")


def _own_tree(root: Path) -> Iterator[Option]:
    for path in sorted(root.iterdir()):
        if path.name not in OWN:
            yield from _shown(path)


def _shown(path: Path) -> Iterator[Option]:
    """Show a part of a tree at the top; a link stays one, as in systems with a merged /usr."""
    if path.is_symlink():
        yield from ("--symlink", os.readlink(path), f"/{path.name}")
    elif path.exists():
        yield from ("--ro-bind", os.fspath(path), f"/{path.name}")
