"""What can be wrong with a host that runs commands: its directory, its disk, its runners."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from pathlib import Path
from typing import TypeAlias

from msgspec.structs import replace

from holdfast.stores.findings import Finding, FindingSeverity, fine, judge_disk, problem, warning

Findings: TypeAlias = Sequence[Finding]
RunnerCheck: TypeAlias = Callable[[], Findings | Awaitable[Findings]]
"""Examines whether a runner works here. A plain function is called in a thread."""
CHECK = "commands"
CHECK_SECONDS = 30.0
"""How long one runner may take to answer: a container runtime may hang."""


async def examine_host(root: Path, runners: Mapping[str, RunnerCheck]) -> list[Finding]:
    """Examine the directory of commands and each runner, by its name."""
    return [
        *await asyncio.to_thread(examine_directory, root),
        *await examine_runners(runners),
    ]


def examine_directory(root: Path) -> list[Finding]:
    """Examine whether commands can keep their files in a directory, or in one that is to be made.

    Changes nothing: what is not there yet is made by the first worker.
    """
    existing = next(one for one in (root, *root.parents) if one.exists())
    fix = "set another --command-dir, or run the worker as a user that may write there"
    if not existing.is_dir():
        return [problem(CHECK, f"{existing} is not a directory", fix)]
    disk = judge_disk("commands disk", existing, "make room, or set another --command-dir")
    if not os.access(existing, os.W_OK | os.X_OK):
        return [warning(CHECK, f"this user cannot write to {existing}", fix), disk]
    if existing == root and stat.S_IMODE(root.stat().st_mode) & 0o066:
        text = f"other users of this host can read {root}, which has what commands print"
        return [warning(CHECK, text, f"run `chmod 711 {root}`"), disk]
    return [fine(CHECK, f"commands keep their files in {root}"), disk]


async def examine_runners(runners: Mapping[str, RunnerCheck]) -> list[Finding]:
    """Examine each runner. As long as one of them works, another that does not is a warning."""
    found = [await _examine_runner(name, check) for name, check in runners.items()]
    if not all(any(one.verdict is FindingSeverity.PROBLEM for one in each) for each in found):
        found = [[_soften(one) for one in each] for each in found]
    return [one for each in found for one in each]


async def _examine_runner(name: str, check: RunnerCheck) -> list[Finding]:
    fix = "see the worker's log, or choose another runner"
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            answer = await asyncio.to_thread(check)
            return list(await answer if isawaitable(answer) else answer)
    except TimeoutError:
        return [problem(name, f"it did not answer within {CHECK_SECONDS:g} s", fix)]
    except Exception as error:  # noqa: BLE001  an examination reports what it meets
        return [problem(name, f"it could not be examined: {error}", fix)]


def _soften(finding: Finding) -> Finding:
    if finding.verdict is not FindingSeverity.PROBLEM:
        return finding
    return replace(finding, verdict=FindingSeverity.WARNING)
