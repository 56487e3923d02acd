"""The log of a box: the format, the limit, and what happens when the disk is full."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from holdfast.ports.box import LOG_FILE, TRUNCATED_FILE
from holdfast.runners.spool import OutputLog


@pytest.fixture(autouse=True)
def _still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_042)


NOW = "2023-11-14T22:13:20.000000042+00:00"


def written(directory: Path) -> str:
    return (directory / LOG_FILE).read_text()


def test_whole_lines_and_pieces_are_told_apart(tmp_path: Path) -> None:
    log = OutputLog(tmp_path, 10_000)
    log.write("stdout", b"one\ntwo\n\nthr")
    log.write("stderr", b"oops\n")
    log.write("stdout", b"ee\n")
    log.write("stderr", b"left")
    log.close()
    assert written(tmp_path).splitlines() == [
        f"{NOW} stdout F one",
        f"{NOW} stdout F two",
        f"{NOW} stdout F ",
        f"{NOW} stdout P thr",
        f"{NOW} stderr F oops",
        f"{NOW} stdout F ee",
        f"{NOW} stderr P left",
        f"{NOW} stderr F ",
    ]


@pytest.mark.parametrize("limit", [0, 1, 49, 50, 51, 1000])
def test_the_file_is_never_larger_than_its_limit(tmp_path: Path, limit: int) -> None:
    log = OutputLog(tmp_path, limit)
    for number in range(100):
        log.write("stdout", f"{number}\n{number}\n".encode())
    log.close()
    lines = written(tmp_path).splitlines()
    assert len(written(tmp_path)) <= limit
    assert [line.split()[-1] for line in lines] == [str(each // 2) for each in range(len(lines))]
    assert (tmp_path / TRUNCATED_FILE).exists()


def test_a_log_is_continued_where_it_was_left(tmp_path: Path) -> None:
    for _ in range(2):
        log = OutputLog(tmp_path, 80)
        log.write("stdout", b"x\n")
        log.close()
    assert len(written(tmp_path).splitlines()) == 1
    assert (tmp_path / TRUNCATED_FILE).exists()


def test_a_full_disk_stops_the_log_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = OutputLog(tmp_path, 10_000)
    log.write("stdout", b"kept\n")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        log.write("stdout", b"lost\n")
    log.write("stdout", b"later\n")
    log.close()
    assert written(tmp_path) == f"{NOW} stdout F kept\n"
    assert (tmp_path / TRUNCATED_FILE).exists()


def test_a_log_does_not_follow_a_link(tmp_path: Path) -> None:
    (tmp_path / LOG_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        OutputLog(tmp_path, 100)
