"""`holdfast logs` of a command: what it printed, harmless to a terminal, and as it comes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.main import app
from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import KeyKind
from holdfast.ports.store import Store
from holdfast.queries.log_segments import truncated_key
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do, running_job, stored
from holdfast.wiring import plan_blobs
from tests.cli.commands import HOSTILE, answered, assert_harmless, on, run
from tests.cli.following import following
from tests.cli.test_serving import running
from tests.support.spool import record, running_command, ship_into

TIME = "2023-11-14 22:13:20.123Z"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Where commands keep their files."""
    return tmp_path / "files"


@pytest.fixture
def place(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a new SQLite file may be, on a host with commands."""
    monkeypatch.setenv("HOLDFAST_COMMAND_DIR", str(files))
    return str(tmp_path / "jobs.db")


def printed(place: str, files: Path, *records: bytes, truncated: bool = False) -> Job:
    """Make a running command that has printed something."""

    async def make(store: Store) -> Job:
        job = await running_command(store, job_id="speaks")
        await ship_into(store, files, job, *records)
        if truncated:
            blobs = await plan_blobs(None, files)(store)
            await blobs.put(truncated_key(job.id, job.attempt), b"")
        return job

    return on(place, make)


def print_more(place: str, files: Path, job: Job, *records: bytes) -> None:
    """Add to what a command has printed."""

    async def add(store: Store) -> None:
        await ship_into(store, files, job, *records)

    on(place, add)


async def ended(store: Store) -> Job:
    """End the command."""
    found = await store.look_up("default", KeyKind.JOB_ID, "speaks")
    assert found is not None
    job = await stored(store, found)
    return await do(store, job, c.Complete(actor=owner_of(job), exit_code=0))


def shown(place: str, *words: str) -> list[str]:
    """Return the lines that a person reads."""
    outcome = run(place, "logs", "speaks", *words)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout.splitlines()


def test_lines_are_shown_with_time_and_stream(place: str, files: Path) -> None:
    printed(place, files, record("one\tx"), record("two", "stderr"), record("pie", tag="P"))
    on(place, ended)
    assert shown(place) == [
        f"{TIME} stdout one x",
        f"{TIME} stderr two",
        f"{TIME} stdout pie…",
    ]


def test_lines_are_chosen_by_stream_and_tail(place: str, files: Path) -> None:
    printed(place, files, *(record(f"{n}", "stderr" if n % 2 else "stdout") for n in range(9)))
    assert shown(place, "--tail", "2") == [f"{TIME} stderr 7", f"{TIME} stdout 8"]
    only = shown(place, "--stream", "stderr", "--tail", "2")
    assert only == [f"{TIME} stderr 5", f"{TIME} stderr 7"]


def test_a_log_of_many_pages_is_shown_whole(place: str, files: Path) -> None:
    printed(place, files, *(record(f"{n}") for n in range(3500)))
    lines = shown(place, "--tail", "100000")
    assert lines == [f"{TIME} stdout {n}" for n in range(3500)]
    assert len(shown(place)) == 1000


def test_a_script_reads_streams_and_the_size(place: str, files: Path) -> None:
    printed(place, files, record("one"), record("two", "stderr"), truncated=True)
    answer = answered(place, "logs", "speaks")
    assert [(line["stream"], line["message"]) for line in answer["lines"]] == [
        ("stdout", "one"),
        ("stderr", "two"),
    ]
    assert (answer["truncated"], answer["total_bytes"]) == (True, answer["next"])


def test_a_truncated_log_is_reported_beside_it(place: str, files: Path) -> None:
    printed(place, files, record("one"), truncated=True)
    outcome = run(place, "logs", "speaks")
    assert outcome.stdout == f"{TIME} stdout one\n"
    assert "more than is kept" in outcome.stderr


def test_control_sequences_are_harmless_unless_raw(place: str, files: Path) -> None:
    hostile = HOSTILE.replace("\n", " ")
    printed(place, files, record(hostile), record("err", "stderr"), record("no end", tag="P"))
    on(place, ended)
    for words in ([], ["--json"]):
        assert_harmless(run(place, "logs", "speaks", *words).output)
    raw: Result = run(place, "logs", "speaks", "--raw")
    assert raw.stdout_bytes == f"{hostile}\nno end".encode()
    assert raw.stderr_bytes == b"err\n"


def test_the_directory_is_a_setting(
    place: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed(place, files, record("one"))
    monkeypatch.delenv("HOLDFAST_COMMAND_DIR")
    missing = run(place, "logs", "speaks", "--command-dir", str(tmp_path / "other"))
    assert missing.exit_code == FOUND_PROBLEMS
    assert "blobs_elsewhere" in missing.stderr
    assert shown(place, "--command-dir", str(files)) == [f"{TIME} stdout one"]
    (tmp_path / "holdfast.toml").write_text(f'command_dir = "{files}"\n')
    monkeypatch.chdir(tmp_path)
    assert shown(place) == [f"{TIME} stdout one"]


def test_the_app_has_a_directory_of_its_own(
    place: str, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed(place, files, record("one"))
    monkeypatch.delenv("HOLDFAST_COMMAND_DIR")
    text = f"from holdfast import Holdfast\napp = Holdfast({place!r}, command_dir={str(files)!r})\n"
    (tmp_path / "app_with_directory.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = CliRunner().invoke(app, ["logs", "speaks", "--app", "app_with_directory:app"])
    assert outcome.stdout.splitlines() == [f"{TIME} stdout one"]


def test_a_stream_of_a_function_is_refused(place: str) -> None:
    async def make(store: Store) -> None:
        await running_job(store, job_id="speaks")

    on(place, make)
    assert run(place, "logs", "speaks", "--stream", "stdout").exit_code == BAD_INPUT


@pytest.mark.parametrize("way", ["store", "server"])
def test_a_log_is_followed_to_the_end_of_its_command(
    place: str, files: Path, way: str, tmp_path: Path
) -> None:
    job = printed(place, files, record("one"), record("not this", "stderr"))
    more = partial(print_more, place, files, job)
    if way == "store":
        _follow_to_the_end(place, place, more)
        return
    with running(tmp_path, "serve", "--url", place) as served:
        _follow_to_the_end(str(served.http.base_url), place, more)


def _follow_to_the_end(url: str, place: str, more: Callable[..., None]) -> None:
    words = ("logs", "speaks", "-f", "--stream", "stdout", "--json", "--url", url)
    with following(*words) as followed:
        assert _read(followed.line())["message"] == "one"
        more(record("two"), record("three")[:40])
        assert _read(followed.line())["message"] == "two"
        more(record("three")[40:])
        on(place, ended)
        code, rest = followed.ended()
    assert (code, [_read(line)["message"] for line in rest.splitlines()]) == (0, ["three"])


def _read(line: str) -> Any:
    return json.loads(line)
