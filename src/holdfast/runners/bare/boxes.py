"""The runner `process`: a command as a plain process of the host, as the worker's own user.

It isolates nothing: the command sees and may change all that the worker may. A pid namespace
makes its kill provable, where bubblewrap works; elsewhere a control group does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import RuntimeTrouble
from holdfast.ports.box import Box, mounts_of
from holdfast.runners.cgroups import Cgroups
from holdfast.runners.local.boxes import LocalBoxes
from holdfast.runners.local.bubblewrap import (
    HOST_ENV,
    Launch,
    Option,
    bubblewrapped,
    enter,
    env_options,
)
from holdfast.runners.local.host import (
    Programs,
    examine_limits,
    find_programs,
    trial,
    usable_cgroups,
)
from holdfast.stores.findings import Finding, fine, problem, warning

NAMESPACE: tuple[Option, ...] = (
    *("--dev-bind", "/", "/", "--unshare-pid", "--proc", "/proc"),
    *("--die-with-parent", "--new-session", "--as-pid-1"),
)
"""The whole host, with processes of its own: all of them end with the first."""


class BareBoxes(LocalBoxes):
    """Commands without isolation. A box's kill is proven by its pid namespace or its group."""

    name = "process"
    isolated = False

    def __init__(
        self,
        *,
        programs: Programs,
        cgroups: Cgroups | None,
        trouble: str | None = None,
        no_limits: str = "",
    ) -> None:
        """Take what the host has; `trouble` and `no_limits` are why a part is missing."""
        super().__init__(cgroups)
        self._programs = programs
        self._trouble = trouble
        self._no_limits = no_limits

    @classmethod
    def on_this_host(cls, store: str) -> BareBoxes:
        """Return what runs the boxes of a store here. Blocks for a moment: it tries what works."""
        programs = find_programs()
        cgroups, no_limits = usable_cgroups(store)
        return cls(
            programs=programs,
            cgroups=cgroups,
            trouble=_no_namespace(programs),
            no_limits=no_limits,
        )

    async def ready(self, box: Box) -> None:
        """Refuse a box that could not be killed with proof."""
        if not self.is_usable():
            raise RuntimeTrouble(f"no kill can be proven: {self._trouble}; {self._no_limits}")

    def is_usable(self) -> bool:
        """Return whether a box can be killed with proof here."""
        return self._trouble is None or self._cgroups is not None

    def examine(self) -> list[Finding]:
        """Report what the host has for this runner, and what it does not enforce."""
        return [
            warning(
                "process",
                "commands run without isolation, as the user of the worker",
                "use podman or sandbox for commands that are not your own",
            ),
            self._examine_kill(),
            examine_limits("process limits", self._cgroups, self._no_limits),
        ]

    def _examine_kill(self) -> Finding:
        check, fix = "process kill", "install bubblewrap and tini"
        if self._trouble is None:
            return fine(check, "a kill is proven by the pid namespace of bubblewrap")
        if self._cgroups is not None:
            return warning(check, f"proven by control groups alone: {self._trouble}", fix)
        return problem(check, f"no kill can be proven: {self._trouble}; {self._no_limits}", fix)

    @contextmanager
    def launch(self, box: Box, doors: Sequence[Path]) -> Iterator[Launch]:
        """Give the line; the command starts in its work directory."""
        env, cwd = _env(box), os.fspath(box.work)
        if self._trouble is not None:
            yield Launch(argv=enter(doors, box.argv), env=env, cwd=cwd)
            return
        assert self._programs.bwrap is not None
        assert self._programs.tini is not None
        options = (*NAMESPACE, "--chdir", cwd, *env_options(env))
        command = (self._programs.tini, "--", *box.argv)
        with bubblewrapped(self._programs.bwrap, options, command, doors=doors) as launch:
            yield launch


def _no_namespace(programs: Programs) -> str | None:
    if programs.bwrap is None or programs.tini is None:
        return "bubblewrap (bwrap) or tini is not installed"
    return trial(programs.bwrap, NAMESPACE, (programs.tini, "--", "/bin/true"))


def _env(box: Box) -> dict[str, str]:
    """Return exactly the box's environment, a PATH, and where its directories are.

    They are not mounted at /work and /artifacts, because there is no mount at all.
    """
    places = {"HOLDFAST_WORK": os.fspath(box.work), "HOLDFAST_ARTIFACTS": os.fspath(box.artifacts)}
    places |= {mount.variable: os.fspath(mount.source) for mount in mounts_of(box)}
    return {"PATH": HOST_ENV["PATH"], **box.env, **places}
