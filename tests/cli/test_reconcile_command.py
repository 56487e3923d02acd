"""`holdfast reconcile --once`, as a script uses it; the loop is tested beside its service."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from holdfast.cli.runtime import FOUND_PROBLEMS
from holdfast.lifecycle.states import State
from holdfast.lifecycle.times import SECOND
from holdfast.ports.store import Store
from holdfast.stores.sqlite.clock import wall_clock
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.store_actions import job_in, submit_one
from tests.cli.commands import answered, on, run
from tests.flow.test_recover import lost_run


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Where a store is made."""
    return str(tmp_path / "jobs.db")


async def _due(store: Store) -> None:
    """Something to sweep, and something to clean."""
    await lost_run(store)
    await job_in(store, State.SUCCEEDED)


def test_a_script_reads_all_in_one_object(place: str) -> None:
    on(place, _due)
    answer = answered(place, "reconcile", "--once", "--keep", "0s")
    assert (answer["written"], answer["lost"]) == ({"job_stalled": 1}, 0)
    assert (answer["cleaned"], answer["failed"]) == (1, {})


def test_a_script_reads_that_nothing_was_done(place: str) -> None:
    on(place, _idle)
    answer = answered(place, "reconcile", "--once")
    counts = dict.fromkeys(("lost", "cleaned", "erased", "heartbeats", "purged"), 0)
    blobs = ("log_bytes", "artifact_bytes", "orphan_bytes", "swept_blobs", "removed_uploads")
    assert answer == {"written": {}, **counts, **dict.fromkeys(blobs, 0), "failed": {}}


async def _idle(store: Store) -> None:
    """A job that nothing is due for."""
    await job_in(store, State.QUEUED)


def test_a_job_that_cannot_be_judged_is_named_and_logged_as_was_asked(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("poison")

    poison = on(place, lost_run)
    monkeypatch.setattr("holdfast.flow.recover.remedy", broken)
    outcome = run(place, "reconcile", "--once", "--json", "--log-format", "json")
    assert outcome.exit_code == FOUND_PROBLEMS, outcome.output
    assert "poison" in json.loads(outcome.stdout)["failed"][str(poison.id)]
    [line] = [json.loads(line) for line in outcome.stderr.splitlines()]
    assert (line["level"], str(poison.id) in line["message"]) == ("ERROR", True)


def test_jobs_with_times_from_the_future_are_repaired_and_counted(
    place: str,
) -> None:
    on(place, _idle)
    ahead = SqliteStore(place, clock=lambda: wall_clock() + 24 * 3600 * SECOND)
    asyncio.run(_submit_to(ahead))
    answer = answered(place, "reconcile", "--repair-times")
    assert answer == {"found": 1, "taken": 0, "rescheduled": 1, "left": {}}
    assert answered(place, "reconcile", "--repair-times")["found"] == 0


async def _submit_to(store: SqliteStore) -> None:
    await store.open()
    await submit_one(store)
    await store.close()
