"""Directories of attempts: listed in turn, and removed whole, whatever commands made in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.ids import mint_id
from holdfast.queries.box_files import attempt_directory, jobs_directory
from holdfast.runners.command import attempt_files
from holdfast.runners.command.attempt_files import AttemptDirectories, remove_tree

NOBODY = 65534


def test_a_tree_is_removed_and_what_its_links_lead_to_stays(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    tree = tmp_path / "tree"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "b" / "file").write_text("gone")
    (tree / "a" / "link").symlink_to(outside)
    (tree / "to-file").symlink_to(outside / "file")
    (tree / "dangling").symlink_to("nowhere")
    # Names that the removal itself uses.
    (tree / ".removed-1").write_text("")
    (tree / ".removed-2").mkdir()
    (tree / ".removed-2" / "full").write_text("")
    os.mkfifo(tree / "a" / "fifo")
    remove_tree(tree)

    assert not tree.exists()
    assert (outside / "file").read_text() == "kept"
    remove_tree(tree)


def test_a_link_in_the_place_of_a_directory_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept")
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(OSError, match="directory"):
        remove_tree(tmp_path / "link")
    assert (outside / "file").exists()


def test_a_tree_that_is_deeper_than_any_path_is_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    parent = os.open(tree, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d" * 50, dir_fd=parent)
        child = os.open("d" * 50, os.O_RDONLY, dir_fd=parent)
        os.close(parent)
        parent = child
    os.close(parent)
    remove_tree(tree)
    assert not tree.exists()


REMOVE = """
import os, sys
from pathlib import Path
from holdfast.runners.command.attempt_files import remove_tree
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
remove_tree(Path(sys.argv[1]))
"""


def test_a_user_removes_its_own_tree_though_its_directories_are_closed() -> None:
    with TemporaryDirectory(prefix="holdfast-files-") as parent:
        closed = Path(parent) / "tree" / "closed"
        (closed / "deeper").mkdir(parents=True)
        (closed / "deeper" / "file").write_text("")
        for path in (closed / "deeper" / "file", closed / "deeper", closed, closed.parent):
            path.chmod(0)
            _give_to_nobody(path)
        _give_to_nobody(Path(parent))
        subprocess.run([sys.executable, "-c", REMOVE, str(closed.parent)], check=True)
        assert list(Path(parent).iterdir()) == []


def _give_to_nobody(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)


def test_directories_are_listed_in_turn_and_strange_names_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_files, "LOOK_AT", 2)
    directories = AttemptDirectories(tmp_path)
    assert directories.list() == []
    jobs = sorted(mint_id() for _ in range(3))
    for job in jobs:
        attempt_directory(tmp_path, job, 1).mkdir(parents=True)
    attempt_directory(tmp_path, jobs[2], 2).mkdir()
    (jobs_directory(tmp_path) / "zebra" / "1").mkdir(parents=True)
    found = [[(one.job, one.attempt) for one in directories.list()] for _ in range(3)]

    assert found[0] == [(jobs[0], 1), (jobs[1], 1)]
    assert sorted(found[1]) == [(jobs[2], 1), (jobs[2], 2)]
    # The second stretch was full: the third finds its end, and the next one starts anew.
    assert found[2] == []
    assert [one.job for one in directories.list()] == jobs[:2]
    assert (jobs_directory(tmp_path) / "zebra" / "1").is_dir()


def test_the_directory_of_a_job_goes_with_its_last_attempt(tmp_path: Path) -> None:
    directories, job = AttemptDirectories(tmp_path), mint_id()
    for attempt in (1, 2):
        attempt_directory(tmp_path, job, attempt).mkdir(parents=True)
    directories.remove(job, 1)
    assert [one.attempt for one in directories.list()] == [2]
    directories.remove(job, 2)
    directories.remove(job, 2)
    assert list(jobs_directory(tmp_path).iterdir()) == []
