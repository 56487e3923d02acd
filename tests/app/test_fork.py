"""Forked children (gunicorn's preload, multiprocessing) work, or fail at once and say why."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.errors import ForkRefused

LIMIT_SECONDS = 20

PARENT = """
import json, os, sys
from holdfast import Holdfast
from holdfast.errors import HoldfastError

app = Holdfast(sys.argv[1])
before, close = sys.argv[2] == "submits", sys.argv[3] == "closes"

@app.task
def pay(order: int) -> None: ...

if before:
    pay.submit_sync(1)
if close:
    app.close_sync()
read, write = os.pipe()
if os.fork() == 0:
    try:
        said = {"job": pay.submit_sync(2).id}
    except HoldfastError as error:
        said = {"code": error.code, "message": str(error)}
    os.write(write, json.dumps(said).encode())
    os._exit(0)
os.close(write)
said = json.loads(os.read(read, 65536))
os.wait()
pay.submit_sync(3)
print(json.dumps(said))
"""


def fork(url: str, *, submits: bool, closes: bool) -> dict[str, str]:
    """Run a parent that forks; return what its child said."""
    asked = ["submits" if submits else "rests", "closes" if closes else "stays open"]
    done = subprocess.run(
        [sys.executable, "-c", PARENT, url, *asked],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(done.stdout)
    return said


@pytest.mark.parametrize(("submits", "closes"), [(False, False), (True, True)])
def test_a_child_of_a_parent_that_has_nothing_open_submits(
    url: str, submits: bool, closes: bool
) -> None:
    assert "job" in fork(url, submits=submits, closes=closes)


def test_a_child_gets_connections_of_its_own_to_postgresql(empty_postgres_url: str) -> None:
    assert "job" in fork(empty_postgres_url, submits=True, closes=False)


def test_a_child_of_a_parent_with_an_open_sqlite_file_is_refused_at_once(sqlite_path: Path) -> None:
    said = fork(str(sqlite_path), submits=True, closes=False)
    assert said["code"] == "store_forked"
    assert str(sqlite_path) in said["message"]
    assert "close_sync" in said["message"]


async def test_an_open_worker_forbids_a_fork_and_says_what_to_do(url: str) -> None:
    app = Holdfast(url)
    async with app.worker():
        with pytest.raises(ForkRefused, match="spawn"):
            fork_and_wait()
        # Other programs are not forks of this one.
        assert await asyncio.to_thread(subprocess.call, ["true"]) == 0
    await app.close()
    fork_and_wait()


def fork_and_wait() -> None:
    """Fork a child that does nothing."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0) == (child, 0)
