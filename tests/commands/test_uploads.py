"""Commands with files of their own: uploaded, unpacked for each attempt, run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast.lifecycle.states import State
from tests.commands.support import CommandPlace, gone

UNPACKED = "files.unpacked"


@pytest.fixture(params=["sqlite"])
def store_url(tmp_path: Path) -> str:
    """One store: what is tested here is on the host."""
    return str(tmp_path / "jobs.db")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with a program."""
    root = tmp_path / "tree"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "hello").write_text("#!/bin/sh\necho hello from $(cat data)\n")
    (root / "bin" / "hello").chmod(0o755)
    (root / "data").write_text("the upload")
    (root / "again").symlink_to("data")
    return root


@pytest.mark.req("D1", "D3", "D17")
async def test_a_command_runs_on_the_files_of_its_upload(place: CommandPlace, tree: Path) -> None:
    upload = await place.app.upload(tree)
    async with place.worker():
        job = await place.app.submit_command(
            "cd ${HOLDFAST_WORK:-/work} && ./bin/hello && cat again",
            files_id=upload,
            cpus=1,
            memory_gb=1,
        )
        record = await place.ended(job)
    assert (record.exit_code, record.error_code) == (0, None)
    assert "hello from the upload" in await place.output(job)


@pytest.mark.req("D14")
async def test_a_worker_that_dies_after_it_has_unpacked_files_leaves_a_job_without_a_box(
    place: CommandPlace, tree: Path
) -> None:
    upload = await place.app.upload(tree)
    job = await place.app.submit_command("exit 0", files_id=upload, cpus=1, memory_gb=1)
    assert await gone(place.start_worker(die_at=UNPACKED)) == -signal.SIGKILL
    async with place.worker():
        record = await place.ended(job)
    found = record.state, record.error_code
    assert found == (State.FAILED, "container_not_found_on_recovery")
