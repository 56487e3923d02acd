"""What this host offers for boxes: programs, control groups, and whether they work here."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from msgspec import Struct

from holdfast.runners.cgroups import CONTROLLERS, Cgroups, find_cgroups
from holdfast.runners.local.bubblewrap import HOST_ENV, LAUNCH_TRIES, Option, bubblewrapped
from holdfast.stores.findings import Finding, fine, warning

CGROUP_PARENT = "holdfast"
"""The group below which each store has its own."""
TRIAL_SECONDS = 30.0


class Programs(Struct, frozen=True, kw_only=True):
    """Where the programs are that boxes are made with; None where one is not installed."""

    bwrap: str | None
    tini: str | None
    """Static, if there is one: a box may have no libraries."""
    setpriv: str | None


def find_programs() -> Programs:
    """Look for the programs where system programs are, whatever the worker's own PATH is."""

    def find(*names: str) -> str | None:
        found = (shutil.which(name, path=HOST_ENV["PATH"]) for name in names)
        return next((each for each in found if each), None)

    return Programs(bwrap=find("bwrap"), tini=find("tini-static", "tini"), setpriv=find("setpriv"))


def usable_cgroups(store: str) -> tuple[Cgroups | None, str]:
    """Return the control groups of a store's boxes if they can be made, else why not."""
    cgroups = find_cgroups(f"{CGROUP_PARENT}/{store}")
    if cgroups is None:
        return None, "no control groups are mounted"
    try:
        cgroups.check()
    except OSError as error:
        return None, f"control groups cannot be made: {error}"
    finally:
        cgroups.remove()
    return cgroups, ""


def trial(
    bwrap: str, options: Sequence[Option], command: Sequence[str], before: Sequence[str] = ()
) -> str | None:
    """Run a command that does nothing in bubblewrap; return why that fails, or None."""
    reason = None
    for _ in range(LAUNCH_TRIES):
        reason = _try_once(bwrap, options, command, before)
        if reason is None:
            break
    return reason


def _try_once(
    bwrap: str, options: Sequence[Option], command: Sequence[str], before: Sequence[str]
) -> str | None:
    with bubblewrapped(bwrap, options, command, before=before) as launch:
        assert launch.reports is not None
        with open(launch.reports, "rb"):
            try:
                ended = subprocess.run(
                    launch.argv,
                    pass_fds=launch.descriptors,
                    env=launch.env,
                    cwd=launch.cwd,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=TRIAL_SECONDS,
                    check=False,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
    if ended.returncode == 0:
        return None
    return ended.stderr.decode(errors="replace").strip() or f"exit code {ended.returncode}"


def examine_limits(check: str, cgroups: Cgroups | None, reason: str) -> Finding:
    """Report which limits boxes have here."""
    if cgroups is None:
        return warning(
            check,
            f"no limits of CPU, memory and processes: {reason}",
            "run the worker as root, or give its unit Delegate=yes",
        )
    missing = sorted(set(CONTROLLERS) - cgroups.controllers)
    if missing:
        return warning(
            check,
            f"no limits of {', '.join(missing)}: the host has no such controller for us",
            "enable these controllers of control groups on the host",
        )
    return fine(check, "CPU, memory and processes are limited by control groups")
