"""Notices between the processes of a SQLite file, and signals to its writer's thread."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.errors import StoreBroken
from holdfast.stores.sqlite.notices import Notices
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.sqlite.wakeup import LOOK_SECONDS

LONG = 60.0
"""Longer than a test may take."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "jobs.db-turn"
    file.touch()
    return str(file)


@pytest.fixture
def mine(path: str) -> Iterator[Notices]:
    mine = Notices(path)
    yield mine
    mine.close()


@pytest.fixture
def others(path: str) -> Iterator[Notices]:
    others = Notices(path)
    yield others
    others.close()


def test_a_signal_ends_the_next_wait_and_only_that(mine: Notices) -> None:
    mine.signal()
    assert mine.wait(LONG)
    assert not mine.wait(0)


def test_a_notice_ends_the_wait_of_another_process_and_is_no_signal(
    mine: Notices, others: Notices
) -> None:
    others.send()
    assert not mine.wait(LONG)
    mine.signal()
    assert mine.wait(LONG), "the notice was read"


def test_a_notice_that_comes_with_a_signal_is_not_missed(mine: Notices, others: Notices) -> None:
    others.send()
    mine.signal()
    # What was signalled waits in a queue, and is found in any case; a look has to be asked for.
    assert not mine.wait(LONG)


def test_a_write_to_the_file_is_no_notice(mine: Notices, path: str) -> None:
    with open(path, "r+b") as file:
        assert not mine.wait(LONG), "opening it is one"
        file.write(b"turn")
        file.flush()
        assert not mine._poll.poll(0)
    assert not mine._poll.poll(0)


def test_a_notice_to_a_file_that_is_gone_is_lost_without_an_error(
    others: Notices, path: str
) -> None:
    Path(path).unlink()
    others.send()


def test_where_nothing_can_be_watched_only_signals_arrive(
    monkeypatch: pytest.MonkeyPatch, others: Notices, path: str
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    blind = Notices(path)
    others.send()
    assert not blind.are_watched
    assert not blind.wait(0)
    blind.signal()
    assert blind.wait(LONG)
    blind.close()


def test_notices_arrive_by_a_file_that_has_replaced_the_watched_one(
    mine: Notices, others: Notices, path: str
) -> None:
    Path(path + "-new").touch()
    Path(path + "-new").rename(path)
    assert not mine.wait(LONG), "whatever was missed meanwhile is looked for"
    others.send()
    assert not mine.wait(LONG)
    assert mine.are_watched


def test_without_the_file_others_are_looked_for_by_the_clock(mine: Notices, path: str) -> None:
    Path(path).unlink()
    assert not mine.wait(LONG)
    assert not mine.are_watched
    mine.signal()
    assert mine.wait(LONG)


async def test_a_store_without_a_file_left_to_open_says_so_and_keeps_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse() -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    place = str(tmp_path / "jobs.db")
    store = SqliteStore(place)
    await store.open()
    await store.close()
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "pipe", refuse)
    with pytest.raises(StoreBroken, match="Too many open files"):
        await SqliteStore(place).open()
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_the_shortest_rest_is_one_that_can_be_waited() -> None:
    assert all((seconds * 1000).is_integer() for seconds in LOOK_SECONDS), "poll rounds up"
