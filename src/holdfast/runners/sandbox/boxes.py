"""The runner `sandbox`: bubblewrap in control groups, under a uid of the box's own.

As root it enforces everything. As another user there is neither a uid of the box's own nor,
usually, a control group: `examine` reports it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.ports.box import Box
from holdfast.runners.cgroups import Cgroups
from holdfast.runners.hand_over import hand_over
from holdfast.runners.local.boxes import LocalBoxes
from holdfast.runners.local.bubblewrap import Launch, bubblewrapped
from holdfast.runners.local.host import (
    Programs,
    examine_limits,
    find_programs,
    trial,
    usable_cgroups,
)
from holdfast.runners.sandbox.options import HOST_ROOT, INIT, base_options, box_options
from holdfast.runners.sandbox.seccomp import build_filter
from holdfast.runners.sandbox.users import FIRST_UID, UidPool, check_reachable
from holdfast.stores.findings import Finding, fine, problem, warning

_TRIAL_BYTES = 1 << 20


class SandboxBoxes(LocalBoxes):
    """Commands in namespaces, with a root tree that they can read and directories of their own."""

    name = "sandbox"
    isolated = True

    def __init__(
        self,
        *,
        programs: Programs,
        cgroups: Cgroups | None,
        root: Path = HOST_ROOT,
        first_uid: int = FIRST_UID,
        trouble: str | None = None,
        no_limits: str = "",
    ) -> None:
        """Take what the host has; `trouble` and `no_limits` are why a part is missing."""
        super().__init__(cgroups)
        self._programs = programs
        self._root = root
        self._filter = build_filter()
        self._drops = os.geteuid() == 0
        self._uids = UidPool(first_uid)
        self._uid_of: dict[str, int] = {}
        self._trouble = trouble
        self._no_limits = no_limits

    @classmethod
    def on_this_host(
        cls, store: str, *, root: Path = HOST_ROOT, first_uid: int = FIRST_UID
    ) -> SandboxBoxes:
        """Return what runs the boxes of a store here. Blocks for a moment: it tries what works.

        `root` is the tree that commands see; the host's own shows its programs and libraries.
        """
        programs = find_programs()
        cgroups, no_limits = usable_cgroups(store)
        return cls(
            programs=programs,
            cgroups=cgroups,
            root=root,
            first_uid=first_uid,
            trouble=_no_sandbox(programs, root, first_uid),
            no_limits=no_limits,
        )

    def is_usable(self) -> bool:
        """Return whether a sandbox can be made here."""
        return self._trouble is None

    def examine(self) -> list[Finding]:
        """Report what the host has for this runner, and what it does not enforce."""
        if self._trouble is not None:
            fix = "install bubblewrap, tini-static and util-linux, and allow user namespaces"
            return [problem("sandbox", f"no sandbox can be made: {self._trouble}", fix)]
        return [
            fine("sandbox", "bubblewrap makes sandboxes here"),
            self._examine_user(),
            self._examine_filter(),
            examine_limits("sandbox limits", self._cgroups, self._no_limits),
        ]

    def _examine_user(self) -> Finding:
        if self._drops:
            return fine("sandbox user", "each box runs under a uid of its own")
        text = "all boxes run under the uid of the worker, and share what it may do"
        return warning("sandbox user", text, "run the worker as root to give each its own")

    def _examine_filter(self) -> Finding:
        if self._filter is not None:
            return fine("sandbox filter", "system calls are filtered")
        text = "system calls are not filtered: no filter is known for this machine"
        return warning("sandbox filter", text, "use podman, which brings a filter of its own")

    async def ready(self, box: Box) -> None:
        """Give a box a uid, and the uid the directories that its command writes to."""
        if not self._drops:
            return
        for path in (box.work, box.artifacts, *box.exchanged):
            check_reachable(path)
        uid = self._uid_of[box.name] = self._uids.take()
        writable = (box.artifacts, box.work) if box.work_writable else (box.artifacts,)
        for directory in (*writable, *box.exchanged):
            await asyncio.to_thread(hand_over, directory, uid)

    def forget(self, box: Box) -> None:
        """Take the uid back."""
        uid = self._uid_of.pop(box.name, None)
        if uid is not None:
            self._uids.give_back(uid)

    @contextmanager
    def launch(self, box: Box, doors: Sequence[Path]) -> Iterator[Launch]:
        """Give the line: groups first, which only root may enter, then the uid, then the rest."""
        assert self._programs.bwrap is not None
        assert self._programs.tini is not None
        with bubblewrapped(
            self._programs.bwrap,
            tuple(box_options(box, self._root, self._programs.tini, self._filter)),
            (INIT, "--", *box.argv),
            doors=doors,
            before=_dropped(self._programs, self._uid_of[box.name]) if self._drops else (),
        ) as launch:
            yield launch


def _dropped(programs: Programs, uid: int) -> tuple[str, ...]:
    """Return what runs the rest of a line under a uid.

    Bubblewrap alone would only rename the uid: started by root, a box would act as root on files.
    """
    assert programs.setpriv is not None
    return (programs.setpriv, "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--")


def _no_sandbox(programs: Programs, root: Path, first_uid: int) -> str | None:
    """Return why no sandbox can be made here, after a try."""
    if programs.bwrap is None or programs.tini is None:
        return "bubblewrap (bwrap) or tini is not installed"
    is_root = os.geteuid() == 0
    if is_root and programs.setpriv is None:
        return "setpriv is not installed, and root would stay root"
    options = tuple(base_options(root, programs.tini, build_filter(), _TRIAL_BYTES))
    before = _dropped(programs, first_uid) if is_root else ()
    return trial(programs.bwrap, options, (INIT, "--version"), before)
