"""The private cluster: it starts, crashes, loses its clients, copies, and fails over."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.support.postgres import PostgresCluster, find_binaries
from tests.support.unavailable import Unavailable
from tests.support.waiting import wait_until


async def test_each_test_has_an_empty_database(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    assert (
        await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname='public'") == 0
    )
    await connection.close()


async def test_an_immediate_restart_cuts_clients_off_and_keeps_what_was_committed(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("CREATE TABLE kept (number int); INSERT INTO kept VALUES (1)")
    postgres_cluster.restart(mode="immediate")
    with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
        await connection.execute("SELECT 1")
    again = await asyncpg.connect(postgres_url)
    assert await again.fetchval("SELECT number FROM kept") == 1
    await again.close()


async def test_killed_backends_are_those_of_the_named_database(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    postgres_cluster.kill_backends()  # what earlier tests have let go of may still be ending
    stranger = await asyncpg.connect(postgres_cluster.url())
    mine = await asyncpg.connect(postgres_url)
    assert postgres_cluster.kill_backends(postgres_url) == 1
    with pytest.raises(asyncpg.PostgresConnectionError):
        await mine.execute("SELECT 1")
    assert await stranger.fetchval("SELECT 1") == 1
    assert postgres_cluster.kill_backends() == 1
    assert postgres_cluster.kill_backends() == 0
    with pytest.raises(asyncpg.PostgresConnectionError):
        await stranger.execute("SELECT 1")


def test_a_database_made_from_a_template_has_its_tables(postgres_cluster: PostgresCluster) -> None:
    def prepare(url: str) -> None:
        postgres_cluster.sql("CREATE TABLE ready (number int)", url.rpartition("/")[2])

    template = postgres_cluster.make_template("prepared", prepare)
    url = postgres_cluster.create_database("copy", template=template)
    assert postgres_cluster.sql("SELECT count(*) FROM ready", "copy") == "0"
    postgres_cluster.drop_database(url)
    postgres_cluster.drop_database(postgres_cluster.url(template))


def test_settings_reach_the_server_and_fsync_is_on_by_default(
    postgres_cluster: PostgresCluster,
) -> None:
    assert postgres_cluster.sql("SHOW fsync") == "off"
    with PostgresCluster({"work_mem": "1MB"}) as cluster:
        shown = [cluster.sql(f"SHOW {name}") for name in ("work_mem", "fsync", "max_connections")]
    assert shown == ["1MB", "on", "300"]


def test_a_promoted_standby_has_every_acknowledged_commit() -> None:
    with PostgresCluster({"fsync": "off"}) as primary, primary.make_standby() as standby:
        primary.sql("CREATE TABLE kept (number int)")
        primary.sql("INSERT INTO kept SELECT generate_series(1, 100)")
        with pytest.raises(RuntimeError, match="read-only"):
            standby.sql("INSERT INTO kept VALUES (101)")
        primary.stop("immediate")
        standby.promote()
        standby.sql("INSERT INTO kept VALUES (101)")
        assert standby.sql("SELECT count(*) FROM kept") == "101"


def test_a_primary_commits_alone_again_when_its_standby_is_gone() -> None:
    with PostgresCluster({"fsync": "off"}) as primary:
        with primary.make_standby():
            primary.sql("CREATE TABLE kept (number int)")
        primary.sql("INSERT INTO kept VALUES (1)")
        with primary.make_standby():
            primary.stop("immediate")
        primary.start()
        primary.sql("INSERT INTO kept VALUES (2)")
        assert primary.sql("SELECT count(*) FROM kept") == "2"


_START_AND_WAIT = """
import sys
from tests.support.postgres import PostgresCluster
with PostgresCluster({"fsync": "off"}) as cluster:
    print(cluster.directory, cluster.sql("SELECT pg_backend_pid()"), flush=True)
    print((cluster.data_directory / "postmaster.pid").read_text().split()[0], flush=True)
    sys.stdin.read()
"""


def test_the_server_and_its_files_go_when_the_test_process_is_killed() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _START_AND_WAIT],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner.stdin, owner.stdout:
        directory = Path(owner.stdout.readline().split()[0])
        postmaster = int(owner.stdout.readline())
        assert directory.exists()
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    wait_until(lambda: not _runs(postmaster), "the server to end")
    wait_until(lambda: not directory.exists(), "its files to be removed")


def _runs(pid: int) -> bool:
    try:
        # A zombie that no init reaps is no server any more.
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_a_missing_server_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PG_BIN", os.fspath(tmp_path))
    with pytest.raises(Unavailable, match="install the package postgresql"):
        find_binaries()
