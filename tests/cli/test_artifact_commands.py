"""`holdfast artifacts`: list and save what a command left, on a store and through a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.main import app
from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS, REFUSED
from holdfast.ports.store import Store
from holdfast.wiring import plan_blobs
from tests.cli.commands import HOSTILE, on
from tests.support.artifacts import end_with
from tests.support.serving import Served
from tests.support.spool import running_command

FILES = {"log.txt": b"text", "out/big.bin": b"x" * 600_000, "out/deep/er": b""}


def make(place: str, directory: Path, files: Mapping[str, bytes] = FILES, **fields: Any) -> None:
    """Run a command to its end that left files."""

    async def work(store: Store) -> None:
        blobs = await plan_blobs(str(directory / "place"))(store)
        await end_with(store, blobs, directory, files, **fields)

    on(place, work)


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A store with a command `done` that has ended, and one that has not."""
    found = str(tmp_path / "jobs.db")
    make(found, tmp_path, job_id="done", exit_code=3)
    on(found, lambda store: running_command(store, job_id="runs"))
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of such a store."""
    directory = tmp_path_factory.mktemp("served")
    store = str(directory / "jobs.db")
    make(store, directory, job_id="done")
    with Served(store, directory) as server:
        server.start({"HOLDFAST_BLOBS": str(directory / "place")})
        yield server.url


def run_on(url: str, directory: Path, *words: str) -> Result:
    """Call the command on a store or server."""
    environment = {"HOLDFAST_BLOBS": str(directory / "place"), "COLUMNS": "300"}
    return CliRunner().invoke(app, ["artifacts", *words, "--url", url], env=environment)


def saved_in(directory: Path) -> dict[str, bytes]:
    """Return the files below a directory."""
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def test_artifacts_are_listed_with_their_sizes_and_digests(place: str, tmp_path: Path) -> None:
    outcome = run_on(place, tmp_path, "done")
    assert outcome.exit_code == 0, outcome.output
    head, *lines = outcome.stdout.splitlines()
    assert head.split() == ["PATH", "BYTES", "SHA256"]
    assert [line.split() for line in lines] == [
        [path, f"{len(data):,}", sha256(data).hexdigest()] for path, data in FILES.items()
    ]
    answer = json.loads(run_on(place, tmp_path, "done", "out", "--json").stdout)
    assert [one["path"] for one in answer["artifacts"]] == ["out/big.bin", "out/deep/er"]
    assert (answer["total_bytes"], answer["truncated"]) == (600_004, False)


@pytest.mark.req("D13")
@pytest.mark.parametrize("through", ["a store", "a server"])
def test_artifacts_are_saved(
    request: pytest.FixtureRequest, tmp_path: Path, place: str, through: str
) -> None:
    url = place if through == "a store" else request.getfixturevalue("served")
    to = tmp_path / "to"
    outcome = run_on(url, tmp_path, "done", "--to", str(to))
    assert outcome.exit_code == 0, outcome.output
    assert "3 artifacts, 600,004 bytes, saved below" in outcome.stderr
    assert saved_in(to) == FILES
    again = run_on(url, tmp_path, "done", "--to", str(to))
    assert again.exit_code == FOUND_PROBLEMS
    assert "file_not_saved" in again.stderr
    (to / "log.txt").write_text("mine")
    some = run_on(url, tmp_path, "done", "log.txt", "--to", str(to), "--force", "--json")
    assert some.exit_code == 0, some.output
    assert json.loads(some.stdout)["saved_to"] == str(to)
    assert saved_in(to) == FILES


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["runs"], REFUSED, "collected at the end"),
        (["nobody"], FOUND_PROBLEMS, "no_such_job"),
        (["done", "nothing"], FOUND_PROBLEMS, "no_such_artifact"),
        (["done", "--force"], BAD_INPUT, "--to"),
        (["done", "--to", "/proc/nowhere"], FOUND_PROBLEMS, "file_not_saved"),
    ],
)
def test_what_cannot_be_done_is_explained(
    place: str, tmp_path: Path, words: list[str], code: int, text: str
) -> None:
    outcome = run_on(place, tmp_path, *words)
    assert outcome.exit_code == code, outcome.output
    assert text in outcome.stderr


def test_a_job_without_artifacts_is_not_an_error(place: str, tmp_path: Path) -> None:
    make(place, tmp_path, {}, job_id="none")
    outcome = run_on(place, tmp_path, "none", "--to", str(tmp_path / "to"))
    assert outcome.exit_code == 0
    assert "left no artifacts" in outcome.stderr


def test_hostile_names_do_not_reach_the_terminal(place: str, tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "")
    make(place, tmp_path, {name: b"", "\u202eright to left": b""}, job_id="evil")
    outcome = run_on(place, tmp_path, "evil")
    assert outcome.exit_code == 0, outcome.output
    assert "not kept: 2 name_not_text" in outcome.stderr
    assert all(line.isprintable() for line in outcome.output.splitlines())
