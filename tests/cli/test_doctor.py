"""`holdfast doctor`: finds what is wrong, shows how to fix it, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import namedtuple
from functools import partial
from pathlib import Path

import apsw
import asyncpg
import pytest
from typer.testing import CliRunner, Result

from holdfast import wiring
from holdfast.app.app import Holdfast
from holdfast.cli import store
from holdfast.cli.main import app
from holdfast.cli.runtime import with_store
from holdfast.errors import StoreBroken
from holdfast.maintenance.health import OVERDUE, examine_sweeps, examine_work
from holdfast.operations.local import LocalOperations
from holdfast.operations.requests import SubmitJob, WantedJob
from holdfast.operations.session import StoreSession
from holdfast.queries.box_files import find_root
from holdfast.stores.findings import Finding, FindingSeverity, fine
from holdfast.stores.postgres import health
from holdfast.stores.postgres.health import examine
from holdfast.stores.sqlite.health import find_file_system
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.wiring import migrate, read_address
from tests.cli.commands import HOSTILE

Usage = namedtuple("Usage", "total used free")


def call(*arguments: str) -> Result:
    """Type a command."""
    return CliRunner().invoke(app, arguments)


def findings(url: str, *more: str) -> dict[str, list[tuple[str, str, str | None]]]:
    """Ask the doctor; return the findings by what was examined."""
    done = call("doctor", "--url", url, "--json", *more)
    answer: dict[str, list[tuple[str, str, str | None]]] = {}
    for one in json.loads(done.stdout)["findings"]:
        answer.setdefault(one["check"], []).append((one["verdict"], one["text"], one["mend"]))
    broken = any(verdict == "problem" for each in answer.values() for verdict, _, _ in each)
    assert done.exit_code == (1 if broken else 0), done.output
    return answer


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


def test_a_healthy_store_is_reported_so(url: str) -> None:
    answer = findings(url)
    assert {"database", "migrations", "disk", "clock", "workers", "reconciler"} <= answer.keys()
    assert {each[0] for name, one in answer.items() for each in one if name != "workers"} == {"ok"}
    # A missing worker is not a fault of the store.
    assert answer["workers"][0][0] == "warning"
    assert "holdfast worker" in str(answer["workers"][0][2])


def test_a_store_that_is_not_there_is_a_problem_and_is_not_made(tmp_path: Path) -> None:
    place = tmp_path / "typo.db"
    answer = findings(str(place))
    assert answer["database"][0][0] == "problem"
    assert "holdfast migrate" in str(answer["database"][0][2])
    assert not place.exists()


def test_what_fails_meanwhile_is_reported_with_the_code_to_look_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StoreBroken("disk I/O error")

    monkeypatch.setattr(store, "with_store", fail)
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
def test_a_disk_that_is_nearly_full_is_reported(
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
    assert find_file_system(Path("/var/my jobs/deep/jobs.db"), mounts) == "nfs4"
    assert find_file_system(Path("/var/my/jobs.db"), mounts) == "tmpfs"
    assert find_file_system(Path("/etc/jobs.db"), mounts) == "overlay"
    assert find_file_system(Path("/etc/jobs.db"), tmp_path / "none") is None


def test_work_that_nobody_does_is_reported_with_its_queue(url: str) -> None:
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


async def test_clocks_that_differ_and_sweeps_that_nobody_makes_are_reported(tmp_path: Path) -> None:
    now = 1_800_000_000_000_000
    store = SqliteStore(tmp_path / "jobs.db", clock=lambda: now)
    await store.open()
    session = StoreSession(store)
    operations = LocalOperations(session, name="me", tenant=None)
    try:
        request = SubmitJob(job=WantedJob(task="t", deadline="1s"))
        await LocalOperations(session, name="me").do(request)
        assert (await examine_sweeps(store)).verdict is FindingSeverity.OK
        now += OVERDUE + 2_000_000
        overdue = await examine_sweeps(store)
        assert (overdue.verdict, overdue.mend is not None) == (FindingSeverity.WARNING, True)
        assert _clock(await examine_work(operations, now / 1e6 - 4)).verdict is FindingSeverity.OK
        assert (
            _clock(await examine_work(operations, now / 1e6 - 60)).verdict
            is FindingSeverity.WARNING
        )
    finally:
        await session.close()
        await store.close()


def _clock(found: list[Finding]) -> Finding:
    return next(one for one in found if one.check == "clock")


async def test_of_postgresql_its_settings_and_transactions_are_reported(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await health.examine(postgres, None)
    texts = {one.check: one for one in found}
    assert texts["migrations"].verdict is FindingSeverity.OK
    assert texts["connections"].verdict is FindingSeverity.OK
    monkeypatch.setattr(health, "LONG_TRANSACTION_SECONDS", 0)
    other = await asyncpg.connect(postgres)
    await other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await other.execute("SELECT 1")
    pid = other.get_server_pid()
    found = await health.examine(postgres, None)
    answer = next(one for one in found if one.check == "transactions")
    assert f"process {pid} " in answer.text
    assert f"pg_terminate_backend({pid})" in str(answer.mend)
    await other.close()


async def test_a_postgresql_without_schema_or_without_answer_is_a_problem(
    postgres_url: str,
) -> None:
    bare = {one.check: one for one in await examine(postgres_url, None)}
    assert bare["migrations"].mend == "run `holdfast migrate`"
    away = await examine("postgresql://nobody@127.0.0.1:1/none", None)
    assert [one.verdict for one in away] == [FindingSeverity.PROBLEM]
    half = await examine(postgres_url, "postgresql://nobody@127.0.0.1:1/none")
    assert half[-1].verdict is FindingSeverity.WARNING


def test_a_server_that_does_not_answer_is_a_problem() -> None:
    answer = findings("http://127.0.0.1:1")
    assert answer["server"][0][0] == "problem"
    assert "holdfast serve" in str(answer["server"][0][2])


def test_a_host_is_examined_for_commands_once_it_has_run_some(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        wiring, "list_runner_checks", lambda: {"sandbox": lambda: [fine("sandbox", "it works")]}
    )
    files = ("--command-dir", str(tmp_path / "files"))
    assert findings(url, *files)["commands"][0][1].startswith("this host has run none")
    assert findings(url, *files, "--commands")["sandbox"][0][0] == "ok"
    root = asyncio.run(with_store(url, partial(find_root, directory=tmp_path / "files")))
    root.mkdir(parents=True, mode=0o700)
    assert {"commands", "commands disk", "sandbox"} <= findings(url, *files).keys()
