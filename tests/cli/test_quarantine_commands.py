"""`holdfast quarantine`, and how doctor and the metrics name what is set aside."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import apsw
import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.main import app
from holdfast.lifecycle.record import Job
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.telemetry import Meters
from holdfast.telemetry.prometheus import make_registry
from holdfast.telemetry.queue_depths import Depths
from holdfast.testing.store_actions import claim, claimed_ids, submit_one
from tests.support.json_rules import broken_rules


async def call(*arguments: str) -> Result:
    """Type a command, as a process of its own would."""
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
async def bad(path: str) -> Job:
    """A job whose policy is unknown, met by a claim."""
    store = SqliteStore(path)
    await store.open()
    job = await submit_one(store)
    _set_policy(path, job, 12345)
    assert await claim(store) == []
    await store.close()
    return job


def _set_policy(path: str, job: Job, policy: int | None = None) -> None:
    """Give a job another policy behind the store's back; None: the only one there is."""
    connection = apsw.Connection(path)
    for trigger in ("jobs_fixed", "jobs_terms"):
        connection.execute(f"DROP TRIGGER IF EXISTS {trigger}")
    connection.execute(
        "UPDATE jobs SET policy = coalesce(?, (SELECT id FROM policies)) WHERE id = ?",
        (policy, job.id.bytes),
    )
    connection.close()


async def test_the_list_names_the_job_since_when_and_why(path: str, bad: Job) -> None:
    answer = json.loads((await call("quarantine", "list", "--url", path, "--json")).stdout)
    assert answer["total"] == 1
    assert broken_rules(answer) == []
    assert answer["jobs"][0]["internal_id"] == str(bad.id)
    assert answer["jobs"][0]["since"].endswith("Z")
    assert "12345" in answer["jobs"][0]["reason"]
    assert str(bad.id) in (await call("quarantine", "list", "--url", path)).stdout


async def test_a_damaged_job_is_not_released(path: str, bad: Job) -> None:
    done = await call("quarantine", "release", str(bad.id), "--url", path)
    assert done.exit_code == 1
    assert "still damaged" in done.stderr
    assert (
        json.loads((await call("quarantine", "list", "--url", path, "--json")).stdout)["total"] == 1
    )


@pytest.mark.parametrize("which", ["named", "by its start", "all"])
async def test_a_repaired_job_is_released_and_claimed(path: str, bad: Job, which: str) -> None:
    _set_policy(path, bad)
    wanted = {"named": str(bad.id), "by its start": str(bad.id)[:13], "all": "--all"}[which]
    done = await call("quarantine", "release", wanted, "--url", path)
    assert (done.exit_code, done.stdout.strip()) == (0, "released 1")
    store = SqliteStore(path)
    await store.open()
    assert await claimed_ids(store) == [bad.id]
    await store.close()
    assert (await call("verify", "--url", path)).exit_code == 0


async def test_release_wants_jobs_or_all_and_not_both(path: str, bad: Job) -> None:
    assert (await call("quarantine", "release", "--url", path)).exit_code == 2
    assert (await call("quarantine", "release", str(bad.id), "--all", "--url", path)).exit_code == 2
    assert (await call("quarantine", "release", "nonsense", "--url", path)).exit_code == 2
    absent = await call("quarantine", "release", "0" * 8, "--url", path)
    assert (absent.exit_code, "no quarantined job's id" in absent.stderr) == (2, True)


async def test_doctor_names_what_is_set_aside(path: str, bad: Job) -> None:
    done = await call("doctor", "--url", path)
    assert done.exit_code == 1
    assert f"1 damaged jobs are set aside: {bad.id}" in " ".join(done.stdout.split())
    assert "holdfast quarantine release" in done.stdout


async def test_the_metrics_count_what_is_set_aside(path: str, bad: Job) -> None:
    store = SqliteStore(path)
    await store.open()
    depths = Depths(Meters())
    await depths.refresh(store)
    await store.close()
    assert make_registry(Meters(), depths).get_sample_value("holdfast_quarantined_jobs") == 1
