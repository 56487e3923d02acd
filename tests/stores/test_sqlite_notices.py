"""Notices between the processes of a SQLite file, and signals to its writer's thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stores.sqlite.notices import Notices

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
