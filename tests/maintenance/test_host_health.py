"""A host that runs commands is examined: its directory, its disk, and runners that may not work."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from holdfast.maintenance import host_health
from holdfast.maintenance.host_health import (
    RunnerCheck,
    examine_directory,
    examine_host,
    examine_runners,
)
from holdfast.stores.findings import Finding, FindingSeverity, fine, problem, warning

Usage = namedtuple("Usage", "total used free")
OK, WARNING, PROBLEM = FindingSeverity.OK, FindingSeverity.WARNING, FindingSeverity.PROBLEM


def verdicts(found: list[Finding]) -> list[tuple[str, FindingSeverity]]:
    """Return what was checked, and how it is."""
    return [(one.check, one.verdict) for one in found]


def working() -> list[Finding]:
    """Examine a runner that works."""
    return [fine("sandbox", "it works"), warning("sandbox limits", "none", "use root")]


async def missing() -> list[Finding]:
    """Examine a runner that is not there."""
    await asyncio.sleep(0)
    return [problem("podman", "it is not installed", "install podman")]


def broken() -> list[Finding]:
    """Fail to examine a runner."""
    raise OSError("exec format error")


async def hanging() -> list[Finding]:
    """Never answer."""
    await asyncio.Event().wait()
    return []


def test_a_directory_that_is_to_be_made_is_fine_and_is_not_made(tmp_path: Path) -> None:
    root = tmp_path / "state" / "holdfast"
    assert verdicts(examine_directory(root)) == [("commands", OK), ("commands disk", OK)]
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_directory_is_a_problem(tmp_path: Path) -> None:
    root = tmp_path / "holdfast"
    root.write_text("")
    assert verdicts(examine_directory(root / "store")) == [("commands", PROBLEM)]


def test_a_directory_that_this_user_cannot_write_to_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert verdicts(examine_directory(tmp_path))[0] == ("commands", WARNING)


def test_a_directory_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir(mode=0o700)
    assert verdicts(examine_directory(root))[0] == ("commands", OK)
    root.chmod(0o755)
    assert verdicts(examine_directory(root))[0] == ("commands", WARNING)


def test_a_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 0, 10**6))
    assert verdicts(examine_directory(tmp_path))[1] == ("commands disk", PROBLEM)


@pytest.mark.parametrize("other", [missing, broken, hanging])
async def test_a_runner_that_does_not_work_is_a_warning_beside_one_that_does(
    other: RunnerCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_health, "CHECK_SECONDS", 0.2)
    found = await examine_runners({"podman": other, "sandbox": working})
    assert verdicts(found) == [("podman", WARNING), ("sandbox", OK), ("sandbox limits", WARNING)]
    assert found[0].mend is not None


async def test_a_host_where_no_runner_works_has_a_problem() -> None:
    found = await examine_runners({"podman": missing, "sandbox": broken})
    assert verdicts(found) == [("podman", PROBLEM), ("sandbox", PROBLEM)]
    assert "exec format error" in found[1].text


async def test_a_host_is_examined_with_its_runners(tmp_path: Path) -> None:
    checks = [check for check, _ in verdicts(await examine_host(tmp_path, {"sandbox": working}))]
    assert checks == ["commands", "commands disk", "sandbox", "sandbox limits"]
