"""migrate, verify, rebuild, epoch and seal, as a person and as a script use them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import apsw
import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.main import app
from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS, REFUSED, STORE_FAILED
from holdfast.ids import mint_id
from holdfast.lifecycle.record import Actor, JobId
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.maintenance.verify import LedgerProblem, Verified
from holdfast.wiring import opened, read_address
from tests.cli.commands import HOSTILE, assert_harmless


def run(*words: str) -> Result:
    """Call the command."""
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})


async def _fill(place: str, jobs: int) -> list[JobId]:
    async with opened(read_address(place)) as store:
        asked = [Submission(id=mint_id(), task="t", dedupe_key=str(n)) for n in range(jobs)]
        await store.submit([submit(one, Actor(Role.GATEWAY, "g")) for one in asked])
        return [one.id for one in asked]


@pytest.fixture
def filled(tmp_path: Path) -> tuple[str, list[JobId]]:
    """A SQLite file with three jobs."""
    place = str(tmp_path / "jobs.db")
    return place, asyncio.run(_fill(place, 3))


def damage(place: str, statement: str) -> None:
    """Write past the law: triggers and checks set aside, as a foreign tool could."""
    connection = apsw.Connection(place)
    names = [row[0] for row in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger'")]  # fmt: skip
    for name in names:
        connection.execute(f"DROP TRIGGER {name}")
    connection.pragma("ignore_check_constraints", True)
    connection.execute(statement)
    connection.close()


def test_a_sound_ledger_is_reported_sound(filled: tuple[str, list[JobId]]) -> None:
    outcome = run("verify", "--url", filled[0])
    assert outcome.exit_code == 0, outcome.output
    assert "3 jobs, 3 events: no problem" in outcome.stdout


@pytest.mark.req("E1")
def test_a_damaged_row_ends_verify_with_one_and_its_name(filled: tuple[str, list[JobId]]) -> None:
    place, ids = filled
    damage(place, f"UPDATE jobs SET queue = 'other' WHERE id = x'{ids[1].hex}'")
    outcome = run("verify", "--url", place)
    assert outcome.exit_code == FOUND_PROBLEMS
    assert f"job {ids[1]}: queue is 'other', its events make it 'default'" in outcome.output


def test_verify_answers_a_script_in_json(filled: tuple[str, list[JobId]]) -> None:
    place, ids = filled
    damage(place, f"UPDATE jobs SET task = 'x' WHERE id = x'{ids[0].hex}'")
    outcome = run("verify", "--url", place, "--json")
    answer = json.loads(outcome.stdout)
    assert (answer["jobs"], answer["events"]) == (3, 3)
    assert [one["internal_id"] for one in answer["problems"]] == [str(ids[0])]


def test_a_hostile_problem_does_not_reach_the_terminal(
    filled: tuple[str, list[JobId]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(store: object, *, on_problem: Any, **_: object) -> Verified:
        on_problem(LedgerProblem(None, f"an event cannot be read: {HOSTILE}"))
        return Verified(problems=1)

    monkeypatch.setattr("holdfast.cli.ledger.verify_store", found)
    outcome = run("verify", "--url", filled[0])
    assert outcome.exit_code == FOUND_PROBLEMS
    assert_harmless(outcome.stderr)


@pytest.mark.req("E7")
def test_rebuild_restores_what_was_damaged(filled: tuple[str, list[JobId]]) -> None:
    place, _ = filled
    damage(place, "DELETE FROM jobs")
    assert run("verify", "--url", place).exit_code == FOUND_PROBLEMS
    outcome = run("rebuild", "--url", place, "--yes")
    assert "3 jobs rebuilt, 3 of them were wrong" in outcome.stdout
    assert run("verify", "--url", place).exit_code == 0


def test_rebuild_shows_how_many_keys_of_no_job_it_freed(filled: tuple[str, list[JobId]]) -> None:
    place, _ = filled
    stray = "INSERT INTO keys (tenant, kind, key, id, digest) VALUES ('a', 8, ?, x'ff', x'00')"
    damage(place, stray.replace("?", "'one'"))
    assert "keys of no job, now freed: 1" in run("rebuild", "--url", place, "--yes").stdout
    damage(place, stray.replace("?", "'two'"))
    answer = json.loads(run("rebuild", "--url", place, "--yes", "--json").stdout)
    assert answer == {"jobs": 3, "changed": 0, "freed": 1, "skipped": [], "busy": []}


def test_rebuild_asks_first(filled: tuple[str, list[JobId]]) -> None:
    outcome = run("rebuild", "--url", filled[0])
    assert outcome.exit_code == BAD_INPUT
    assert "Stop all workers" in outcome.output


def test_migrate_makes_a_new_file_and_is_safe_to_repeat(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path}/new.db"
    first = run("migrate", "--url", place)
    assert "applying 0001 ledger" in first.stdout
    assert run("migrate", "--url", place).stdout == "up to date\n"
    assert json.loads(run("migrate", "--url", place, "--json").stdout) == {"applied": []}


def test_the_epoch_is_shown_and_raised(filled: tuple[str, list[JobId]]) -> None:
    assert run("epoch", "show", "--url", filled[0]).stdout == "epoch 1\n"
    assert json.loads(run("epoch", "bump", "--url", filled[0], "--json").stdout) == {"epoch": 2}
    text = run("epoch", "bump", "--url", filled[0]).stdout
    assert text.startswith("epoch 3\n")
    assert "claims of earlier epochs are refused" in text
    assert "cursors of feeds and webhooks stay valid" in text


def test_sealing_is_turned_on_and_off(filled: tuple[str, list[JobId]]) -> None:
    assert run("seal", "on", "--url", filled[0]).stdout == "sealing on\n"
    assert run("seal", "off", "--url", filled[0]).stdout == "sealing off\n"
    answer = run("seal", "on", "--json", "--url", filled[0]).stdout
    assert json.loads(answer) == {"sealing": True}


def test_an_address_that_is_none_is_explained() -> None:
    outcome = run("verify", "--url", "mysql://nowhere")
    assert outcome.exit_code == BAD_INPUT
    assert "bad_address" in outcome.output
    assert "postgresql://user@host/database" in outcome.output


def test_a_database_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.runtime.PATIENCE_SECONDS", 0.1)
    outcome = run("verify", "--url", "postgresql://nobody@127.0.0.1:1/none")
    assert outcome.exit_code == STORE_FAILED
    assert "store_unavailable" in outcome.output


COMMANDS = ("verify", "rebuild --yes", "epoch show", "epoch bump", "seal on", "reconcile --once")


@pytest.mark.parametrize("empty", [False, True], ids=["no file", "an empty file"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistyped_path_is_refused_and_nothing_is_made(
    tmp_path: Path, command: str, empty: bool
) -> None:
    place = tmp_path / "jbos.db"
    if empty:
        place.touch()
    outcome = run(*command.split(), "--url", str(place))
    assert outcome.exit_code == STORE_FAILED
    assert "no_such_store" in outcome.output
    assert [file.stat().st_size for file in tmp_path.iterdir()] == [0] * empty


@pytest.mark.parametrize("address", ["u@127.0.0.1:notaport/db", "u@a:1,b:99999/db", "[::1/db"])
def test_a_bad_port_or_host_is_a_bad_address(address: str) -> None:
    outcome = run("verify", "--url", f"postgresql://{address}")
    assert outcome.exit_code == BAD_INPUT
    assert "bad_address" in outcome.output


def test_several_hosts_with_good_ports_are_an_address() -> None:
    place = "postgresql://u:p%40@[::1]:5432,b:5433,c/db"
    assert read_address(place).place == place


def test_migrate_reports_a_schema_that_is_newer_or_of_others(tmp_path: Path) -> None:
    place = str(tmp_path / "jobs.db")
    run("migrate", "--url", place)
    damage(place, "INSERT INTO migrations (number, name, min_reader) VALUES (99, '', 99)")
    outcome = run("migrate", "--url", place)
    assert (outcome.exit_code, "upgrade Holdfast" in outcome.output) == (STORE_FAILED, True)

    foreign = str(tmp_path / "foreign.db")
    damage(foreign, "CREATE TABLE somebody_elses (number integer)")
    outcome = run("migrate", "--url", foreign)
    assert (outcome.exit_code, "--beside-others" in outcome.output) == (STORE_FAILED, True)
    assert run("migrate", "--url", foreign, "--beside-others").exit_code == 0
    assert run("verify", "--url", foreign).exit_code == 0


def test_a_file_that_is_no_database_is_reported(tmp_path: Path) -> None:
    place = tmp_path / "notes.txt"
    place.write_text("this is not a database, it is a shopping list " * 100)
    outcome = run("verify", "--url", str(place))
    assert outcome.exit_code == STORE_FAILED
    assert "store_broken" in outcome.output
    assert place.read_text().startswith("this is not a database")


def test_limits_of_tenants_are_shown_and_set(filled: tuple[str, list[JobId]]) -> None:
    url = filled[0]
    assert run("limits", "--url", url).stdout == (
        "queues per tenant: 1,000\nsets of needs per tenant: 100\npending signals per job: 1,000\n"
        "bytes per upload: 2,000,000,000\nbytes of uploads per tenant: 10,000,000,000\n"
    )
    answer = run("limits", "--queues", "5000", "--json", "--url", url).stdout
    uploads = {"upload_bytes": 2 * 10**9, "tenant_upload_bytes": 10**10}
    assert json.loads(answer) == {"queues": 5000, "needs": 100, "signals": 1000, **uploads}
    assert "5,000" in run("limits", "--url", url).stdout
    assert run("limits", "--needs", "0", "--url", url).exit_code == 2


def test_the_limit_of_pending_signals_is_set_and_holds(filled: tuple[str, list[JobId]]) -> None:
    url, ids = filled[0], filled[1]
    assert run("limits", "--signals", "0", "--url", url).exit_code == 2
    assert run("limits", "--signals", "1000000", "--url", url).exit_code == 2
    answer = run("limits", "--signals", "2", "--json", "--url", url).stdout
    assert json.loads(answer)["signals"] == 2
    job = str(ids[0])
    assert [run("signal", job, "go", "--url", url).exit_code for _ in range(2)] == [0, 0]
    outcome = run("signal", job, "go", "--url", url)
    assert outcome.exit_code == REFUSED
    assert "too_many_signals" in outcome.stderr
    assert "holdfast limits --signals" in " ".join(outcome.stderr.split())
