"""`holdfast purge`: what it removes, counts and shows; and how a purged job is reported."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.main import app
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import State
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.store_actions import job_in, submit_one

ALL = ("--purge", "0s", "--purge-unsuccessful", "0s")


async def call(*arguments: str) -> Result:
    """Type a command, as a process of its own would."""
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
async def ended(path: str) -> list[Job]:
    """Jobs that have ended, and one that has not, in a store that is closed."""
    store = SqliteStore(path)
    await store.open()
    jobs = [await job_in(store, state) for state in (State.SUCCEEDED, State.FAILED)]
    await submit_one(store)
    await store.close()
    return jobs


async def test_a_dry_run_counts_by_outcome_and_removes_nothing(path: str, ended: list[Job]) -> None:
    done = await call("purge", "--url", path, "--dry-run", "--json", *ALL)
    answer = json.loads(done.stdout)
    assert (answer["dry_run"], answer["purged"]) == (True, {"succeeded": 1, "failed": 1})
    assert json.loads((await call("purge", "--url", path, "--log", "--json")).stdout) == {
        "purges": []
    }
    assert (await call("show", str(ended[0].id), "--url", path)).exit_code == 0


async def test_a_purged_job_is_reported_and_the_ledger_shows_who_did_it(
    path: str, ended: list[Job]
) -> None:
    # SQLite keeps the job of the newest event, which is one of the two.
    done = await call("purge", "--url", path, *ALL)
    assert (done.exit_code, "purged 1 job " in done.stdout) == (0, True)
    gone = await call("show", str(ended[0].id), "--url", path)
    assert gone.exit_code == 1
    assert "was purged at 2" in gone.output
    [entry] = json.loads((await call("purge", "--url", path, "--log", "--json")).stdout)["purges"]
    assert (entry["jobs"], entry["at"].endswith("Z")) == (1, True)
    assert (await call("verify", "--url", path)).exit_code == 0


async def test_terms_are_kept_by_default(path: str, ended: list[Job]) -> None:
    assert "purged 0 jobs" in (await call("purge", "--url", path)).stdout
    assert (await call("purge", "--url", path, "--purge", "soon")).exit_code == 2


async def test_reconcile_purges_too_by_terms_of_the_settings_file(
    path: str, ended: list[Job], tmp_path: Path
) -> None:
    settings = tmp_path / "holdfast.toml"
    settings.write_text(
        f'url = "{path}"\npurge = "0s"\npurge_unsuccessful = "0s"\n', encoding="utf-8"
    )
    command = ("--config", str(settings), "reconcile", "--once", "--json")
    done = await call(*command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["purged"] == 1


async def test_reconcile_without_cleaning_purges_nothing(path: str, ended: list[Job]) -> None:
    done = await call("reconcile", "--once", "--no-clean", "--url", path, "--json", *ALL)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["purged"] == 0
    for job in ended:
        assert (await call("show", str(job.id), "--url", path)).exit_code == 0


async def test_records_kept_for_ever_are_not_purged(path: str, ended: list[Job]) -> None:
    terms = ("--purge", "forever", "--purge-unsuccessful", "forever")
    assert "purged 0 jobs" in (await call("purge", "--url", path, *terms)).stdout
    done = await call("reconcile", "--once", "--url", path, "--json", *terms)
    assert json.loads(done.stdout)["purged"] == 0
