"""Holdfast's own programs: every verb with a few jobs on both engines, and the proof after it."""

from __future__ import annotations

import subprocess
import sys
import zlib
from pathlib import Path

import apsw
import pytest

from bench import cells
from bench.cells import Cell, NotProven
from bench.contestants import HOLDFAST, HOLDFAST_SQLITE, Contestant
from bench.places import PostgresPlace, SqlitePlace, server_cpu_seconds
from bench.programs.holdfast import Slots, idle_share, payload
from bench.programs.replies import peak_in
from bench.protocol import ROOT, Program
from tests.support.postgres import PostgresCluster, database_of

JOBS = 50


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "jobs.db")
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def holdfast() -> Program:
    return Program(HOLDFAST, [sys.executable, "-m", "bench.programs.holdfast"])


def test_fill_and_drain(holdfast: Program, url: str) -> None:
    holdfast.ask("setup", url=url)
    filled = holdfast.ask("fill", url=url, jobs=JOBS, bytes=1000)
    assert filled["jobs"] == JOBS
    assert holdfast.ask("left", url=url) == {"left": JOBS}
    drained = holdfast.ask("drain", url=url, jobs=JOBS)
    assert drained["jobs"] == JOBS
    assert drained["seconds"] > 0 < drained["cpu"]
    assert drained["rss"] > 10_000_000
    assert holdfast.ask("left", url=url) == {"left": 0}


def test_singles_and_several_workers(holdfast: Program, url: str) -> None:
    holdfast.ask("setup", url=url)
    assert holdfast.ask("single", url=url, jobs=JOBS, callers=10)["jobs"] == JOBS
    cell = _cell(processes=2)
    place = SqlitePlace(Path(url).parent)
    place.url = url
    found = cells._work(cell, place, None)
    assert found["jobs"] == JOBS
    assert found["seconds"] > 0
    assert holdfast.ask("left", url=url) == {"left": 0}


def test_sleepers_and_steps(holdfast: Program, url: str) -> None:
    holdfast.ask("setup", url=url)
    holdfast.ask("fill", url=url, jobs=JOBS, mode="sleepers")
    found = holdfast.ask("drain", url=url, jobs=JOBS, mode="sleepers")
    assert 0 <= found["idle"] < 1
    assert 0 < found["occupied"] <= 1
    holdfast.ask("fill", url=url, jobs=JOBS, mode="steps")
    assert holdfast.ask("drain", url=url, jobs=JOBS, mode="steps")["jobs"] == JOBS
    assert holdfast.ask("left", url=url) == {"left": 0}


def test_signals_and_latencies(holdfast: Program, url: str) -> None:
    holdfast.ask("setup", url=url)
    assert holdfast.ask("signals", url=url, jobs=JOBS, callers=10)["sent_seconds"] > 0
    found = holdfast.ask("latency", url=url, samples=5, rate=50)
    assert len(found["ms"]) == 5
    assert min(found["ms"]) > 0
    assert found["rate"] > 0


def test_a_job_that_did_not_succeed_is_left(holdfast: Program, tmp_path: Path) -> None:
    url = str(tmp_path / "jobs.db")
    holdfast.ask("setup", url=url)
    holdfast.ask("fill", url=url, jobs=1, mode="waits")
    assert holdfast.ask("left", url=url) == {"left": 1}


def test_the_store_alone(url: str) -> None:
    store = Program("store", [sys.executable, "-m", "bench.programs.store"])
    store.ask("setup", url=url)
    assert store.ask("fill", url=url, jobs=JOBS)["jobs"] == JOBS
    assert store.ask("drain", url=url, jobs=JOBS)["jobs"] == JOBS
    assert store.ask("left", url=url) == {"left": 0}


def test_everybody_tells_what_it_is(holdfast: Program) -> None:
    told = holdfast.ask("version")
    assert set(told) == {"version", "keeps", "settings"}
    assert "asyncpg 0." in told["settings"]


def test_no_argument_is_the_same_twice_nor_compressible() -> None:
    assert payload(7, 0) == "7"
    one, other = payload(7, 1000), payload(12, 1000)
    assert one != other
    assert len(one) == len(other) == 1000
    assert len(zlib.compress(one.encode())) > 700


def test_slots_that_wake_late_were_idle() -> None:
    # Twice as long as a hundred slots need for naps of ten milliseconds.
    assert idle_share(jobs=10_000, seconds=2.0) == pytest.approx(0.5)


def test_slots_are_counted_until_the_last_start() -> None:
    times = iter([10.0, 11.0, 13.0, 14.0, 99.0, 99.0])
    slots = Slots(clock=lambda: next(times))
    slots.enter()
    slots.enter()
    slots.leave()
    slots.enter()
    # One for a second, two for two, one for one; what comes after nobody is due for.
    assert slots.occupied == pytest.approx((1 + 4 + 1) / 4)
    slots.leave()
    slots.leave()
    assert slots.occupied == pytest.approx(1.5)


def test_the_peak_of_memory_is_of_this_process_alone() -> None:
    assert peak_in("VmPeak:\t  900 kB\nVmHWM:\t   42 kB\n") == 43_008
    large = "x = bytearray(300_000_000); import subprocess, sys;"
    ask = "from bench.programs.replies import peak_memory_bytes as p; print(p())"
    code = f"{large} subprocess.run([sys.executable, '-c', {ask!r}], check=True)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert int(done.stdout) < 100_000_000


def _cell(**changes: int) -> Cell:
    contestant = Contestant(
        name=HOLDFAST_SQLITE,
        family=HOLDFAST_SQLITE,
        engine="sqlite",
        argv=(sys.executable, "-m", "bench.programs.holdfast"),
        ours=True,
    )
    return Cell(
        scenario="drain",
        variant="50 SQLite",
        contestant=contestant,
        jobs=JOBS,
        measure=cells.drain,
        **changes,  # type: ignore[arg-type]
    )


def test_a_verified_drain_counts(tmp_path: Path) -> None:
    filled, drained = cells.drain(_cell(), SqlitePlace(tmp_path))
    assert (filled.scenario, drained.scenario) == ("submit", None)
    assert drained.values["disk_bytes"] > 0


def test_a_ledger_that_does_not_verify_fails_the_bench(holdfast: Program, tmp_path: Path) -> None:
    place = SqlitePlace(tmp_path)
    cells.drain(_cell(), place)
    connection = apsw.Connection(place.url)
    for (name,) in list(
        connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
    ):
        connection.execute(f'DROP TRIGGER "{name}"')
    connection.execute("DELETE FROM events WHERE rev = 4 AND id = (SELECT max(id) FROM events)")
    connection.close()
    with pytest.raises(NotProven, match="holdfast verify failed"):
        cells.prove_drained(_cell(), place, JOBS)


def test_a_verify_that_does_not_end_fails_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "limit_for", lambda _: 0.001)
    with pytest.raises(NotProven, match=r"did not end within 0 s after drain, 50 SQLite"):
        cells.verify(_cell(), SqlitePlace(tmp_path), None)


def test_a_job_too_few_fails_the_bench(tmp_path: Path) -> None:
    place = SqlitePlace(tmp_path)
    cells.drain(_cell(), place)
    with pytest.raises(NotProven, match="saw 50 jobs of 51 submitted"):
        cells.prove_drained(_cell(), place, JOBS + 1)


def test_the_server_is_asked_what_it_used(
    postgres_cluster: PostgresCluster, postgres_url: str
) -> None:
    place = PostgresPlace(postgres_cluster, postgres_url, set())
    place.rest()
    before = place.usage()
    work = "CREATE TABLE t AS SELECT n, md5(n::text) FROM generate_series(1, 200000) n"
    postgres_cluster.sql(work, database_of(postgres_url))
    place.analyse()
    after = place.usage()
    assert before.cpu_seconds is not None is not after.cpu_seconds
    assert before.wal_bytes is not None is not after.wal_bytes
    # The backend that did it has ended: its time must not be lost with it.
    assert after.cpu_seconds - before.cpu_seconds > 0.05
    assert after.wal_bytes - before.wal_bytes > 5_000_000
    assert after.disk_bytes - before.disk_bytes > 5_000_000
    assert server_cpu_seconds(postgres_cluster.data_directory) >= after.cpu_seconds


def test_tables_are_made_once_and_copied_for_each_place(postgres_cluster: PostgresCluster) -> None:
    made: list[str] = []
    templates: set[str] = set()
    for number in (1, 2):
        url = postgres_cluster.create_database(f"place_{number}")

        def make(url: str = url) -> None:
            made.append(url)
            postgres_cluster.sql("CREATE TABLE of_mine (n int)", database_of(url))

        place = PostgresPlace(postgres_cluster, url, templates)
        place.set_up("mine", make)
        count = "SELECT count(*) FROM of_mine"
        assert postgres_cluster.sql(count, database_of(url)).strip() == "0"
        postgres_cluster.sql("INSERT INTO of_mine VALUES (1)", database_of(url))
    assert len(made) == 1
    postgres_cluster.drop_database(postgres_cluster.url(*templates))
