"""A monitor of containers that keeps the first bytes of their output and outlives its worker.

Podman can pass its monitor a limit only for keeping the last ones, and moves it out of the worker's
control group only in hierarchies with controllers; so it calls a script instead, which does both.
One script per box: Podman hands its monitor nothing of our environment.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from holdfast.runners.container.host_files import ensure_file

LIMIT_OPTION = "--log-global-size-max"
WRAPPER_FILE = "monitor"


def write_wrapper(
    directory: Path, conmon: str, log_bytes: int, groups: Sequence[Path] = ()
) -> Path:
    """Return the script for a limit, made if it is not there; it enters these groups first.

    In a group of its worker the monitor would be killed with it, by their service manager. What
    cannot be entered is left out: the container runs all the same.
    """
    enter = "".join(f"enter {shlex.quote(str(group))}\n" for group in groups)
    text = (
        '#!/bin/sh\nenter() { mkdir -p "$1" && echo $$ > "$1/cgroup.procs"; } 2> /dev/null\n'
        f'{enter}exec {shlex.quote(conmon)} {LIMIT_OPTION} {log_bytes} "$@"\n'
    )
    path = directory / WRAPPER_FILE
    ensure_file(path, text, 0o755)
    return path
