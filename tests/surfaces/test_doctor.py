"""`holdfast doctor`: finds what is wrong, says how to mend it, and changes nothing."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path

import apsw
import asyncpg
import pytest
from typer.testing import CliRunner, Result

from holdfast.app import Holdfast
from holdfast.cli import doctor
from holdfast.cli.main import app
from holdfast.errors import StoreBroken
from holdfast.local import LocalOperations
from holdfast.operations import Wanted
from holdfast.services.doctor import OVERDUE, examine_sweeps, examine_work
from holdfast.services.session import Session
from holdfast.stores.findings import Finding, Verdict
from holdfast.stores.postgres import examining
from holdfast.stores.postgres.examining import examine
from holdfast.stores.sqlite.examining import file_system
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.wiring import migrate, read_address
from tests.surfaces.commands import HOSTILE

Usage = namedtuple("Usage", "total used free")


def call(*arguments: str) -> Result:
    """Type a command."""
    return CliRunner().invoke(app, arguments)


def findings(url: str) -> dict[str, list[tuple[str, str, str | None]]]:
    """Ask the doctor; tells the findings by what was looked at."""
    done = call("doctor", "--url", url, "--json")
    told: dict[str, list[tuple[str, str, str | None]]] = {}
    for one in json.loads(done.stdout)["findings"]:
        told.setdefault(one["check"], []).append((one["verdict"], one["text"], one["mend"]))
    broken = any(verdict == "problem" for each in told.values() for verdict, _, _ in each)
    assert done.exit_code == (1 if broken else 0), done.output
    return told


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store on SQLite."""
    made = str(tmp_path / "jobs.db")
    assert call("migrate", "--url", made).exit_code == 0
    return made


@pytest.fixture
async def postgres(postgres_url: str) -> str:
    """A store on PostgreSQL, which its tests' cluster runs without fsync."""
    await migrate(read_address(postgres_url))
    return postgres_url


def test_a_store_that_is_well_is_said_to_be(url: str) -> None:
    told = findings(url)
    assert {"database", "migrations", "disk", "clock", "workers", "reconciler"} <= told.keys()
    assert {each[0] for name, one in told.items() for each in one if name != "workers"} == {"ok"}
    # That nobody works is no fault of the store.
    assert told["workers"][0][0] == "warning"
    assert "holdfast worker" in str(told["workers"][0][2])


def test_a_store_that_is_not_there_is_a_problem_and_is_not_made(tmp_path: Path) -> None:
    place = tmp_path / "typo.db"
    told = findings(str(place))
    assert told["database"][0][0] == "problem"
    assert "holdfast migrate" in str(told["database"][0][2])
    assert not place.exists()


def test_what_fails_meanwhile_is_told_with_the_code_to_look_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StoreBroken("disk I/O error")

    monkeypatch.setattr(doctor, "with_store", fail)
    verdict, text, mend = findings(url)["database"][-1]
    assert (verdict, text) == ("problem", "store_broken: disk I/O error")
    assert "docs/http.md" in str(mend)


def test_a_schema_of_another_version_is_a_problem(url: str) -> None:
    connection = apsw.Connection(url)
    connection.execute("DELETE FROM migrations WHERE number > 0")
    entered = "INSERT INTO migrations (number, name, min_reader) VALUES (?, ?, ?)"
    connection.execute(entered, (0, "older", 0))
    assert findings(url)["migrations"][0][2] == "run `holdfast migrate`"
    connection.execute(entered, (9998, "newer", 1))
    assert findings(url)["migrations"][0][::2] == ("warning", "upgrade Holdfast here soon")
    connection.execute(entered, (9999, "newest", 9999))
    assert findings(url)["migrations"][0][2] == "upgrade Holdfast here"
    connection.close()


def test_a_file_that_is_none_of_ours_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "letter.db"
    file.write_bytes(b"Dear Sir or Madam, " * 1000)
    assert findings(str(file))["database"][0][0] == "problem"
    assert file.read_bytes() == b"Dear Sir or Madam, " * 1000


@pytest.mark.parametrize(
    ("free", "verdict"),
    [(50_000_000, "problem"), (500_000_000, "warning"), (50_000_000_000, "ok")],
)
def test_a_disk_that_is_nearly_full_is_told(
    url: str, monkeypatch: pytest.MonkeyPatch, free: int, verdict: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 0, free))
    assert findings(url)["disk"][0][0] == verdict


def test_a_file_on_another_machine_is_known_by_its_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "overlay / overlay rw 0 0\n"
        "srv:/x /var/my\\040jobs nfs4 rw 0 0\n"
        "tmpfs /var/my tmpfs rw 0 0\n"
    )
    assert file_system(Path("/var/my jobs/deep/jobs.db"), mounts) == "nfs4"
    assert file_system(Path("/var/my/jobs.db"), mounts) == "tmpfs"
    assert file_system(Path("/etc/jobs.db"), mounts) == "overlay"
    assert file_system(Path("/etc/jobs.db"), tmp_path / "none") is None


def test_work_that_nobody_does_is_told_with_its_queue(url: str) -> None:
    jobs = Holdfast(url)
    for queue in ("mail", "a b; reboot", HOSTILE):
        jobs.named("t").options(queue=queue).submit_sync()
    jobs.close_sync()
    for queue in ("other", "$(reboot)"):
        assert call("queues", "pause", queue, "--url", url).exit_code == 0
    text = call("doctor", "--url", url).stdout
    assert "no live worker serves 'mail'; 1 jobs wait in it" in text
    assert "--queues mail" in text
    assert "'other' was paused" in text
    assert "--queues 'a b; reboot'`" in text
    assert "resume '$(reboot)'`" in text
    assert not any(mark in text for mark in "\x1b\x07\x9b\u202e\r")


async def test_clocks_that_differ_and_sweeps_that_nobody_makes_are_told(tmp_path: Path) -> None:
    now = 1_800_000_000_000_000
    store = SqliteStore(tmp_path / "jobs.db", clock=lambda: now)
    await store.open()
    session = Session(store)
    operations = LocalOperations(session, name="me", tenant=None)
    try:
        await LocalOperations(session, name="me").submit([Wanted(task="t", deadline="1s")])
        assert (await examine_sweeps(store)).verdict is Verdict.OK
        now += OVERDUE + 2_000_000
        overdue = await examine_sweeps(store)
        assert (overdue.verdict, overdue.mend is not None) == (Verdict.WARNING, True)
        assert _clock(await examine_work(operations, now / 1e6 - 4)).verdict is Verdict.OK
        assert _clock(await examine_work(operations, now / 1e6 - 60)).verdict is Verdict.WARNING
    finally:
        await session.close()
        await store.close()


def _clock(found: list[Finding]) -> Finding:
    return next(one for one in found if one.check == "clock")


async def test_of_postgresql_its_settings_and_transactions_are_told(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await examining.examine(postgres, None)
    texts = {one.check: one for one in found}
    assert texts["migrations"].verdict is Verdict.OK
    assert texts["connections"].verdict is Verdict.OK
    monkeypatch.setattr(examining, "LONG_TRANSACTION_SECONDS", 0)
    other = await asyncpg.connect(postgres)
    await other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await other.execute("SELECT 1")
    pid = other.get_server_pid()
    found = await examining.examine(postgres, None)
    told = next(one for one in found if one.check == "transactions")
    assert f"process {pid} " in told.text
    assert f"pg_terminate_backend({pid})" in str(told.mend)
    await other.close()


async def test_a_postgresql_without_schema_or_without_answer_is_a_problem(
    postgres_url: str,
) -> None:
    bare = {one.check: one for one in await examine(postgres_url, None)}
    assert bare["migrations"].mend == "run `holdfast migrate`"
    away = await examine("postgresql://nobody@127.0.0.1:1/none", None)
    assert [one.verdict for one in away] == [Verdict.PROBLEM]
    half = await examine(postgres_url, "postgresql://nobody@127.0.0.1:1/none")
    assert half[-1].verdict is Verdict.WARNING


def test_a_server_that_does_not_answer_is_a_problem() -> None:
    told = findings("http://127.0.0.1:1")
    assert told["server"][0][0] == "problem"
    assert "holdfast serve" in str(told["server"][0][2])
