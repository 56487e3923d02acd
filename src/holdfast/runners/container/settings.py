"""What a host sets for its containers: programs, storage, limits of calls."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

from holdfast.errors import BadConfig
from holdfast.runners.container.seccomp import find_profile

PullPolicy = Literal["never", "missing"]
BOX_UID = 1000
"""The user that a command runs as, inside; outside it is `uid_base` more."""
_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
_LIBEXEC = ("/usr/local/libexec/podman", "/usr/libexec/podman", "/usr/lib/podman")
"""Where distributions keep what only Podman calls."""


class CallLimits(Struct, frozen=True, kw_only=True):
    """How long a call of Podman may take before it counts as trouble, in seconds."""

    create: float = 60.0
    start: float = 60.0
    look: float = 10.0
    remove: float = 20.0
    kill: float = 15.0
    """Until nothing of a killed box is left."""
    settle: float = 5.0
    """Until the exit code of an ended process is written down by its monitor."""


def host_ulimits() -> tuple[str, ...]:
    """Return limits that this process may set: without CAP_SYS_RESOURCE no more than its own.

    All, always: once a flag names one limit, Podman takes its built-in value for the others. No
    core is written: it would have the secrets of an agent, in a place that the host decides on.
    """
    return (
        "core=0:0",
        f"nofile={_within(resource.RLIMIT_NOFILE, 1024)}:{_within(resource.RLIMIT_NOFILE, 4096)}",
        f"nproc={_within(resource.RLIMIT_NPROC, 4096)}:{_within(resource.RLIMIT_NPROC, 4096)}",
    )


def _within(limit: int, wanted: int) -> int:
    hard = resource.getrlimit(limit)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def find_program(name: str) -> str | None:
    """Return the path of a program that Podman needs."""
    found = shutil.which(name)
    if found is None:
        found = shutil.which(name, path=":".join(_LIBEXEC))
    return found


def default_runtime() -> str | None:
    """Return runc where it is and controllers are version 1, which crun fails at; else None."""
    unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return "runc" if not unified and find_program("runc") else None


class PodmanSettings(Struct, frozen=True, kw_only=True):
    """How one host runs the containers of one store."""

    directory: Path
    """For files of our own: wrappers and traces. Kept across restarts of a worker."""
    host: str
    store: str
    image: str | None = None
    """For a box that names none."""
    pull: PullPolicy = "never"
    uid_base: int = 200_000
    """The first of the 65,536 users of the host that a box's users are."""
    cgroup_parent: str = "/holdfast"
    storage: tuple[str, ...] = ()
    """Options such as --root, --runroot and --tmpdir, for a storage of its own."""
    program: str = "podman"
    conmon: str = "conmon"
    init: str = "tini-static"
    runtime: str | None = field(default_factory=default_runtime)
    ulimits: tuple[str, ...] = field(default_factory=host_ulimits)
    host_profile: Path | None = field(default_factory=find_profile)
    """What the filter of system calls is made from; None: Podman's built-in one, as it is."""
    limits: CallLimits = CallLimits()

    def __post_init__(self) -> None:
        """Refuse names that would not stay one part of a path or of a label."""
        for name in (self.host, self.store):
            if not name or not _NAME.issuperset(name) or name.startswith("."):
                raise BadConfig(f"{name!r} cannot be the name of a host or store of boxes")

    @property
    def global_options(self) -> tuple[str, ...]:
        """What precedes every command of Podman.

        As flags and not in a `containers.conf`: a file would replace the host's own settings.
        """
        runtime = () if self.runtime is None else ("--runtime", self.runtime)
        managers = ("--cgroup-manager", "cgroupfs", "--events-backend", "file")
        return (*self.storage, *managers, *runtime)

    @property
    def box_cgroups(self) -> str:
        """The path of the control groups of this host's and store's boxes."""
        return f"{self.cgroup_parent}/{self.store}.{self.host}"
