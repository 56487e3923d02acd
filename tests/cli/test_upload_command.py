"""`holdfast upload` and `holdfast run --files`: a directory becomes the files of jobs."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from uuid import UUID

import pytest
import typer

from holdfast.cli.upload import send_directory
from holdfast.lifecycle.record import JobId
from holdfast.operations.local import LocalOperations
from holdfast.operations.pack_directory import pack_directory
from holdfast.operations.request import R, Request
from holdfast.operations.requests import WriteUpload
from holdfast.operations.session import StoreSession
from holdfast.ports.store import Store
from holdfast.ports.uploads import Upload, UploadState
from holdfast.wiring import opened, plan_blobs, read_address
from tests.cli.commands import answered, on, run

KEY = "0b5f3d6e-3c1a-4f7e-9d53-2f6f0c4a8e11"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of the test's own, with its files beside it."""
    monkeypatch.setenv("HOLDFAST_COMMAND_DIR", os.fspath(tmp_path / "files"))
    found = str(tmp_path / "jobs.db")
    run(found, "migrate")
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory to send."""
    root = tmp_path / "tree"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print(1)\n")
    (root / "junk.o").write_text("junk")
    return root


def uploads_of(place: str) -> list[Upload]:
    """Return all uploads of a store."""

    async def read(store: Store) -> list[Upload]:
        return await store.uploads()

    return on(place, read)


@pytest.mark.req("D3")
def test_a_directory_is_uploaded_and_its_id_printed(place: str, tree: Path) -> None:
    outcome = run(place, "upload", str(tree))
    assert outcome.exit_code == 0, outcome.output
    [kept] = uploads_of(place)
    assert outcome.stdout.strip() == kept.id
    assert (kept.state, kept.files) == (UploadState.FINALIZED, 3)


def test_what_is_excluded_is_not_sent(place: str, tree: Path) -> None:
    answer = answered(place, "upload", str(tree), "--exclude", "*.o", "--exclude", "nothing")
    assert answer["files"] == 2
    assert answer["state"] == "finalized"


def test_what_is_left_out_is_named(place: str, tree: Path) -> None:
    os.mkfifo(tree / "pipe")
    (tree / "out").symlink_to("/etc/passwd")
    outcome = run(place, "upload", str(tree))
    assert outcome.exit_code == 0, outcome.output
    assert "left out: pipe is a named pipe" in outcome.stderr
    assert "left out: out is a link that leaves the directory" in outcome.stderr


def test_a_directory_that_is_not_there_is_refused_before_an_upload_is_made(
    place: str, tmp_path: Path
) -> None:
    outcome = run(place, "upload", str(tmp_path / "missing"))
    assert outcome.exit_code == 2
    assert "No such file" in outcome.stderr
    assert uploads_of(place) == []


@pytest.mark.req("D3", "D17")
def test_a_command_is_submitted_with_the_files_of_its_directory(place: str, tree: Path) -> None:
    made = answered(
        place, "run", "--detach", "--files", str(tree), "--exclude", "*.o", "--shell", "ls"
    )
    [kept] = uploads_of(place)
    assert (kept.state, kept.files) == (UploadState.FINALIZED, 2)
    assert made["state"] == "queued"

    async def files_id(store: Store) -> str | None:
        [first] = await store.events(JobId(UUID(made["internal_id"])), limit=1)
        return None if first.created is None else first.created.files_id

    assert on(place, files_id) == kept.id


@pytest.mark.req("D3", "D11")
def test_a_repeated_run_with_files_returns_the_first_job_and_keeps_no_second_upload(
    place: str, tree: Path
) -> None:
    line = ("run", "--detach", "--files", str(tree), "--shell", "ls", "--client-job-id", KEY)
    first = answered(place, *line)
    (tree / "src" / "main.py").write_text("print(2)\n")
    second = answered(place, *line)
    assert (second["job_id"], second["created"]) == (first["job_id"], False)
    states = [one.state for one in uploads_of(place)]
    assert states == [UploadState.DELETED, UploadState.FINALIZED]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [(("--cpus", "0", "--shell", "ls"), "cpus"), (("--shell", " "), "missing_command")],
)
def test_nothing_is_sent_for_a_command_that_is_refused(
    place: str, tree: Path, wrong: tuple[str, ...], named: str
) -> None:
    outcome = run(place, "run", "--detach", "--files", str(tree), *wrong)
    assert outcome.exit_code == 125
    assert named in outcome.stderr
    assert uploads_of(place) == []


class StalledOperations:
    """Operations whose writes never end."""

    def __init__(self, operations: LocalOperations) -> None:
        self._operations = operations
        self.writing = asyncio.Event()

    async def do(self, request: Request[R]) -> R:
        """Carry out a request; stay in the middle of a write."""
        if isinstance(request, WriteUpload):
            await anext(aiter(request.data))
            self.writing.set()
            await asyncio.Event().wait()
        return await self._operations.do(request)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_an_interrupt_removes_what_is_half_sent(
    place: str, tree: Path, tmp_path: Path, number: signal.Signals
) -> None:
    async with opened(read_address(place)) as store:
        session = StoreSession(store, open_blobs=plan_blobs(str(tmp_path / "blobs")))
        stalled = StalledOperations(LocalOperations(session, name="me"))
        sending = asyncio.create_task(send_directory(stalled, pack_directory(tree), quiet=True))
        await asyncio.wait_for(stalled.writing.wait(), 30)
        os.kill(os.getpid(), number)
        with pytest.raises(typer.Exit) as exited:
            await asyncio.wait_for(sending, 30)
        assert exited.value.exit_code == 130
        assert [one.state for one in await store.uploads()] == [UploadState.DELETED]
