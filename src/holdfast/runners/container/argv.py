"""The arguments that a container is created with: pure, and checked against a golden file.

Nothing of a submitter's text is ever part of an option: it follows `--`, or is the value of an
option that has its own argument.
"""

from __future__ import annotations

import re

from holdfast.errors import BoxRefused
from holdfast.ports.box import LOG_FILE, Box, Mount, mounts_of, places_inside
from holdfast.runners.container.seccomp import PROFILE_FILE
from holdfast.runners.container.settings import BOX_UID, PodmanSettings

LABEL_PREFIX = "holdfast."
PID_FILE = "pid"
MONITOR_PID_FILE = "conmon.pid"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_USERS = 65_536
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMAGE = re.compile(
    r"(?:[a-z0-9][a-z0-9.-]*(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:(?:[._/]|__|-+)[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
    r"(?:@sha256:[0-9a-f]{64})?"
)
_IMAGE_LENGTH = 512


def create_arguments(box: Box, settings: PodmanSettings, init: str) -> list[str]:
    """Return the arguments of `podman create` for a box; `init` is the path of its first process.

    Raise `BoxRefused` if no container can be made of it.
    """
    image = chosen_image(box, settings)
    _check_text(box)
    return [
        "create",
        *("--name", box.name),
        *_labels(box),
        *_files(box),
        f"--pull={settings.pull}",
        *_isolation(box, settings),
        *_limits(box, settings),
        *("--init", "--init-path", init),
        *_mounts(box),
        *_environment(box),
        "--",
        image,
        *box.argv,
    ]


def cgroup_of(box: Box, settings: PodmanSettings) -> str:
    """Return the path of the control group that a box's own is made in.

    One per box, so that its processes can be found without Podman.
    """
    return f"{settings.box_cgroups}/{leaf_of(box)}"


def leaf_of(box: Box) -> str:
    """Return the name of what belongs to a box outside Podman: its control group, its trace."""
    return f"{box.name}.{box.epoch}"


def chosen_image(box: Box, settings: PodmanSettings) -> str:
    """Return the image of a box. Raise `BoxRefused` if it has none, or not by a valid name."""
    image = box.image or settings.image
    if image is None:
        raise BoxRefused(
            "the job names no image, and this host has no default image: submit it with an image, "
            "or start the host's worker with --command-image"
        )
    if len(image) > _IMAGE_LENGTH or _IMAGE.fullmatch(image) is None:
        raise BoxRefused(f"invalid image name {image[:200]!r}")
    return image


def _check_text(box: Box) -> None:
    if not box.argv:
        raise BoxRefused("the job has no command")
    if any("\0" in text for text in (*box.argv, *box.env.values())):
        raise BoxRefused("the command or its environment has a NUL character")
    for name in box.env:
        if _VARIABLE.fullmatch(name) is None:
            raise BoxRefused(f"invalid name of an environment variable: {name[:200]!r}")
    for path in (box.work, box.artifacts, box.directory, *box.exchanged):
        # They separate the parts of an option's value.
        if {":", ","}.intersection(str(path)) or not path.is_absolute():
            raise BoxRefused(f"a box needs absolute paths without ':' and ',', not {path}")


def _labels(box: Box) -> list[str]:
    labels = {
        "job": box.job,
        "attempt": box.attempt,
        "epoch": box.epoch,
        "host": box.host,
        "store": box.store,
        "type": box.type,
    }
    return [f"--label={LABEL_PREFIX}{name}={value}" for name, value in labels.items()]


def _files(box: Box) -> list[str]:
    return [
        *("--pidfile", f"{box.directory / PID_FILE}"),
        *("--conmon-pidfile", f"{box.directory / MONITOR_PID_FILE}"),
        *("--log-driver", "k8s-file"),
        *("--log-opt", f"path={box.directory / LOG_FILE}"),
    ]


def _isolation(box: Box, settings: PodmanSettings) -> list[str]:
    users = f"0:{settings.uid_base}:{_USERS}"
    return [
        "--read-only",
        "--read-only-tmpfs=false",
        *("--cap-drop", "all"),
        *("--security-opt", "no-new-privileges"),
        *_filter(settings),
        *("--uidmap", users),
        *("--gidmap", users),
        *("--user", f"{BOX_UID}:{BOX_UID}"),
        *("--network", box.network),
        *("--ipc", "private"),
        *("--hostname", "job"),
        # What an image asks for by itself, and what a service manager would hand down.
        *("--entrypoint", ""),
        *("--image-volume", "ignore"),
        "--no-healthcheck",
        *("--sdnotify", "ignore"),
        "--http-proxy=false",
    ]


def _filter(settings: PodmanSettings) -> list[str]:
    if settings.host_profile is None:
        return []
    return ["--security-opt", f"seccomp={settings.directory / PROFILE_FILE}"]


def _limits(box: Box, settings: PodmanSettings) -> list[str]:
    memory = f"{box.memory_mb}m"
    return [
        *("--memory", memory),
        *("--memory-swap", memory),
        *("--cpus", f"{box.cpus}"),
        *("--pids-limit", f"{box.pids}"),
        *(f"--ulimit={limit}" for limit in settings.ulimits),
        *("--cgroup-parent", cgroup_of(box, settings)),
    ]


def _mounts(box: Box) -> list[str]:
    work = "rw" if box.work_writable else "ro"
    # Without a copy of the image's /tmp, whose mode would replace ours. It counts as memory.
    tmp = f"/tmp:rw,size={max(1, box.memory_mb // 2)}m,mode=1777,nosuid,nodev,notmpcopyup"
    return [
        *("--tmpfs", tmp),
        *("--volume", f"{box.work}:/work:{work},nosuid,nodev"),
        *("--volume", f"{box.artifacts}:/artifacts:rw,nosuid,nodev"),
        *(f"--volume={_volume(mount)}" for mount in mounts_of(box)),
        *("--workdir", "/work"),
    ]


def _volume(mount: Mount) -> str:
    return f"{mount.source}:{mount.target}:{'rw' if mount.writable else 'ro'},nosuid,nodev"


def _environment(box: Box) -> list[str]:
    # Each with its value: a bare name would be taken from the worker's own environment.
    variables = {"PATH": DEFAULT_PATH, **box.env, **places_inside(box)}
    return ["--unsetenv-all", *(f"--env={name}={value}" for name, value in variables.items())]
