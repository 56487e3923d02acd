"""The small disk fills up and goes away."""

import errno
import os
from pathlib import Path

import pytest

from tests.support.small_disk import fill, small_disk
from tests.support.unavailable import Unavailable


def test_a_full_disk_says_so_and_works_again_once_there_is_room() -> None:
    try:
        with small_disk(megabytes=16) as disk:
            _fill_and_free(disk)
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert not disk.exists()


def _fill_and_free(disk: Path) -> None:
    ballast = fill(disk, leave_bytes=1 << 20)
    (disk / "fits").write_bytes(bytes(1 << 19))
    with pytest.raises(OSError, match="No space left") as refusal:
        (disk / "too_much").write_bytes(bytes(2 << 20))
    assert refusal.value.errno == errno.ENOSPC
    ballast.unlink()
    (disk / "too_much").write_bytes(bytes(2 << 20))


def test_without_root_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="root"), small_disk():
        pass
