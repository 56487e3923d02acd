"""`holdfast clean`: what it erases and counts, and what it does without the place of blobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.flow.upload import create_upload
from holdfast.ids import mint_id
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import Retention, State
from holdfast.ports.store import Store
from holdfast.queries.blob_keys import logs_prefix
from holdfast.testing.factories import CONTROL
from holdfast.testing.store_actions import job_in, stored
from holdfast.wiring import plan_blobs
from tests.cli.commands import answered, on, run
from tests.flow.outputs import ARTIFACT, LOG, ended_command

ALL = ("--keep", "0s", "--keep-unsuccessful", "0s")


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of commands, by the environment; all blobs in it are old."""
    monkeypatch.setenv("HOLDFAST_COMMAND_DIR", str(tmp_path / "files"))
    monkeypatch.setattr("holdfast.flow.sweep_blobs.GRACE", -1_000_000)
    return tmp_path / "files"


@pytest.fixture
def ended(place: str, files: Path) -> Job:
    """A command with outputs, a function, an upload, and a log of no job."""

    async def prepare(store: Store) -> Job:
        blobs = await plan_blobs(None, files)(store)
        await blobs.put(f"{logs_prefix(mint_id(), 1)}/0", LOG)
        await job_in(store, State.SUCCEEDED)
        await create_upload(store, CONTROL, tenant="default")
        return await ended_command(store, blobs)

    return on(place, prepare)


def retention_of(place: str, job: Job) -> Retention:
    async def read(store: Store) -> Retention:
        return (await stored(store, job.id)).retention

    return on(place, read)


EVERYTHING = {
    "log_bytes": 2 * len(LOG),
    "artifact_bytes": 2 * len(ARTIFACT),
    "upload_bytes": 0,
    "orphan_bytes": len(LOG),
}


def sizes_in(answer: dict[str, Any]) -> dict[str, int]:
    """The bytes of each kind."""
    return {name: size for name, size in answer.items() if name.endswith("_bytes")}


@pytest.mark.req("D13")
def test_a_dry_run_counts_jobs_and_bytes_and_erases_nothing(place: str, ended: Job) -> None:
    answer = answered(place, "clean", "--dry-run", *ALL)
    assert (answer["dry_run"], answer["jobs"], sizes_in(answer)) == (True, 2, EVERYTHING)
    assert retention_of(place, ended) is Retention.LIVE
    # Nothing was erased: it counts the same again.
    assert answered(place, "clean", "--dry-run", *ALL) == answer


@pytest.mark.req("D13")
def test_it_erases_what_a_dry_run_counts(place: str, ended: Job) -> None:
    answer = answered(place, "clean", *ALL)
    assert (answer["jobs"], sizes_in(answer), answer["failed"]) == (2, EVERYTHING, {})
    assert retention_of(place, ended) is Retention.CLEANED
    nothing = answered(place, "clean", *ALL)
    assert (nothing["jobs"], sum(sizes_in(nothing).values())) == (0, 0)


def test_a_person_reads_sizes(place: str, ended: Job) -> None:
    done = run(place, "clean", "--dry-run", *ALL)
    assert done.exit_code == 0
    assert done.stdout.splitlines()[:2] == ["would clean 2 jobs", "logs: 0.0 MB"]


def test_artifacts_may_go_before_their_job(place: str, ended: Job) -> None:
    answer = answered(place, "clean", "--keep-artifacts", "0s")
    assert (answer["jobs"], answer["artifact_bytes"]) == (0, 2 * len(ARTIFACT))
    assert retention_of(place, ended) is Retention.LIVE


def test_commands_have_terms_of_their_own(place: str, ended: Job) -> None:
    assert answered(place, "clean", "--keep", "0s", "--keep-commands", "1d")["jobs"] == 1
    assert retention_of(place, ended) is Retention.LIVE
    assert answered(place, "clean", "--keep-commands", "0s")["jobs"] == 1


def test_in_another_place_of_blobs_commands_are_not_cleaned(
    place: str, ended: Job, tmp_path: Path
) -> None:
    elsewhere = ("--blobs", str(tmp_path / "elsewhere"))
    answer = answered(place, "clean", *ALL, *elsewhere, code=1)
    assert (answer["jobs"], answer["waiting"]) == (1, 1)
    assert "--blobs" in answer["unreachable"]
    assert retention_of(place, ended) is Retention.LIVE
    told = run(place, "clean", *ALL, *elsewhere)
    assert "1 ended commands and agents are not cleaned" in told.stderr


def test_a_store_of_functions_gets_no_place_of_blobs(place: str, files: Path) -> None:
    async def prepare(store: Store) -> None:
        await job_in(store, State.SUCCEEDED)

    on(place, prepare)
    assert answered(place, "clean", *ALL)["jobs"] == 1
    assert not files.exists()


def test_reconcile_cleans_commands_and_sweeps(place: str, ended: Job) -> None:
    answer = answered(place, "reconcile", "--once", *ALL)
    assert (answer["cleaned"], answer["orphan_bytes"]) == (2, len(LOG))
    assert (answer["log_bytes"], answer["failed"]) == (2 * len(LOG), {})
    assert retention_of(place, ended) is Retention.CLEANED


def test_doctor_reports_a_place_that_cannot_be_cleaned(
    place: str, ended: Job, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shown = run(place, "doctor", "--blobs", str(elsewhere)).stdout
    assert "commands and agents are not cleaned with these settings" in shown
    assert "are not cleaned" not in run(place, "doctor").stdout
