"""Whether this host can run containers, for `holdfast doctor` and for the choice of a runner."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from holdfast.errors import RuntimeTrouble
from holdfast.runners.container.box_cgroup import hierarchies
from holdfast.runners.container.cli import PodmanCli
from holdfast.runners.container.conmon_wrapper import write_wrapper
from holdfast.runners.container.seccomp import HOST_PROFILES, write_profile
from holdfast.runners.container.settings import PodmanSettings, find_program
from holdfast.stores.findings import Finding, FindingSeverity, fine, problem, warning

_CHECK = "podman"
_OLDEST = 4
_SECONDS = 10.0
_INSTALL = "install podman, runc, conmon and tini"


async def is_usable(settings: PodmanSettings) -> bool:
    """Return whether containers can be run here."""
    findings = await examine(settings)
    return all(each.verdict is not FindingSeverity.PROBLEM for each in findings)


async def examine(settings: PodmanSettings) -> Sequence[Finding]:
    """Return what is right and wrong with Podman here; each problem with how to fix it."""
    if os.geteuid() != 0:
        fix = "run the worker as root, or choose the runner sandbox or process"
        return [problem(_CHECK, "containers with limits need root", fix)]
    if find_program(settings.program) is None:
        return [problem(_CHECK, f"{settings.program} is not installed", _INSTALL)]
    try:
        settings.directory.mkdir(parents=True, exist_ok=True)
        cli = PodmanCli(settings.program, settings.global_options, settings.directory)
        return [
            await _examine_version(cli),
            await _examine_monitor(settings),
            _examine_init(settings),
            _examine_cgroups(),
            _examine_filter(settings),
            await _examine_storage(cli),
            await _examine_image(cli, settings),
        ]
    except (OSError, RuntimeTrouble) as error:
        return [problem(_CHECK, f"podman does not work here: {error}", "see `podman info`")]


async def _examine_version(cli: PodmanCli) -> Finding:
    answer = await cli.look("--version", limit=_SECONDS)
    version = answer.output.decode(errors="replace").strip()
    found = re.search(r"\b(\d+)\.\d+", version)
    if found is None or int(found[1]) < _OLDEST:
        shown = version or answer.error
        return problem(_CHECK, f"{shown!r} is too old", f"install podman {_OLDEST} or later")
    return fine(_CHECK, version)


async def _examine_monitor(settings: PodmanSettings) -> Finding:
    """Try the wrapper itself: it must be executable where it is, and know the option."""
    conmon = find_program(settings.conmon)
    if conmon is None:
        return problem(_CHECK, f"{settings.conmon} is not installed", _INSTALL)
    wrapper = write_wrapper(settings.directory, conmon, 1)
    answer = await PodmanCli(str(wrapper), (), settings.directory).look("--version", limit=_SECONDS)
    wrapper.unlink()
    if not answer.ok:
        text = f"conmon cannot limit logs: {answer.error}"
        return problem(
            _CHECK, text, "install conmon 2.1 or later; allow execution in the state directory"
        )
    return fine(_CHECK, "conmon can limit logs")


def _examine_init(settings: PodmanSettings) -> Finding:
    if find_program(settings.init) is None:
        return problem(_CHECK, f"the init {settings.init} is not installed", "install tini")
    return fine(_CHECK, f"the init of containers is {settings.init}")


def _examine_cgroups() -> Finding:
    if not hierarchies():
        text = "no control groups are mounted: a kill could not be proven"
        return problem(_CHECK, text, "mount control groups at /sys/fs/cgroup")
    return fine(_CHECK, "control groups are mounted")


def _examine_filter(settings: PodmanSettings) -> Finding:
    if settings.host_profile is None:
        text = "no profile of system calls is on this host: commands may make namespaces"
        return warning(_CHECK, text, f"install the package that has {HOST_PROFILES[-1]}")
    write_profile(settings.host_profile, settings.directory)
    return fine(_CHECK, f"system calls are filtered, by {settings.host_profile} and more strictly")


async def _examine_storage(cli: PodmanCli) -> Finding:
    answer = await cli.look("info", "--format", "{{.Store.GraphRoot}}", limit=_SECONDS)
    root = answer.output.decode(errors="replace").strip()
    if not answer.ok or not os.access(root, os.W_OK):
        text = f"podman's storage cannot be used: {answer.error or root}"
        return problem(_CHECK, text, "make it writable, or set another with `podman --root`")
    return fine(_CHECK, f"podman's storage is {root}")


async def _examine_image(cli: PodmanCli, settings: PodmanSettings) -> Finding:
    if settings.image is None:
        text = "this host has no default image: a job must name one"
        return warning(_CHECK, text, "set a default image")
    answer = await cli.look("image", "exists", "--", settings.image, limit=_SECONDS)
    if not answer.ok and settings.pull == "never":
        text = f"the default image {settings.image} is not here"
        return problem(_CHECK, text, f"run `podman pull {settings.image}`")
    return fine(_CHECK, f"the default image is {settings.image}")
