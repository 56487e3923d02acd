"""Databases to measure on: one private PostgreSQL for all, or SQLite files on the same disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, Self

from msgspec import Struct

from bench.engines import SETTINGS, sqlite_version
from tests.support.postgres import PostgresCluster, database_of

TICKS = os.sysconf("SC_CLK_TCK")


class Usage(Struct, frozen=True, kw_only=True):
    """What the engine has used so far; None where it cannot be separated from the client's."""

    disk_bytes: int
    cpu_seconds: float | None = None
    wal_bytes: int | None = None


class Place(Protocol):
    """A fresh database for one measurement."""

    url: str

    def set_up(self, kind: str, make: Callable[[], object]) -> None:
        """Have the tables of one kind made, or copied where they were made before."""

    def rest(self) -> None:
        """Bring the engine to rest before the clock starts."""

    def analyse(self) -> None:
        """Let the engine learn about what the tables hold."""

    def settle(self) -> None:
        """Let the engine clean up after what is long past."""

    def usage(self) -> Usage:
        """Return what it has used so far."""


class Engine(Protocol):
    """Makes places."""

    @contextmanager
    def place(self) -> Iterator[Place]:
        """Make a database, for use in a with block."""

    def version(self) -> str:
        """Name itself, with its version and what it was set to."""


class PostgresPlace:
    """One database of the private server."""

    def __init__(self, cluster: PostgresCluster, url: str, templates: set[str]) -> None:
        """Measure there; `templates` are the databases to copy, which it adds to."""
        self.url = url
        self._cluster = cluster
        self._templates = templates

    def set_up(self, kind: str, make: Callable[[], object]) -> None:
        """Make the tables once for all places: a peer may take many seconds for it."""
        name, template = database_of(self.url), f"set up for {kind}"
        if template in self._templates:
            self._cluster.drop_database(self.url)
            self._cluster.create_database(name, template)
            return
        make()
        self._cluster.create_database(template, name)
        self._templates.add(template)

    def rest(self) -> None:
        """Write out what lies in memory, so that no checkpoint falls into the measurement."""
        self._cluster.sql("CHECKPOINT")

    def analyse(self) -> None:
        """Gather statistics, as autovacuum would some time after a burst."""
        self._cluster.sql("ANALYZE", database_of(self.url))

    def settle(self) -> None:
        """Do what autovacuum would have done long ago, had the history not been made just now."""
        self._cluster.sql("VACUUM (ANALYZE)", database_of(self.url))

    def usage(self) -> Usage:
        """Ask PostgreSQL, and Linux about all of its processes."""
        asked = "SELECT pg_current_wal_insert_lsn() - '0/0', pg_database_size(current_database())"
        wal, disk = self._cluster.sql(asked, database_of(self.url)).split("|")
        return Usage(
            cpu_seconds=server_cpu_seconds(self._cluster.data_directory),
            wal_bytes=int(wal),
            disk_bytes=int(disk),
        )


def server_cpu_seconds(data_directory: Path) -> float:
    """Add up the server's processes, those that have ended too: their parent has inherited them."""
    postmaster = (data_directory / "postmaster.pid").read_text().splitlines()[0]
    total = 0
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            fields = _stat(process)
        except OSError:
            continue
        if process.name == postmaster:
            total += sum(map(int, fields[11:15]))
        elif fields[1] == postmaster:
            total += sum(map(int, fields[11:13]))
    return total / TICKS


def cpu_seconds(pid: int) -> float:
    """Return what one process has used so far."""
    return sum(map(int, _stat(Path(f"/proc/{pid}"))[11:13])) / TICKS


def _stat(process: Path) -> list[str]:
    # After the name, which may hold spaces: state, parent, …, then the four times.
    return (process / "stat").read_text().rpartition(")")[2].split()


class PostgresEngine:
    """A private server that ends with the bench."""

    def __init__(self) -> None:
        """Take the settings; entering starts it."""
        self._cluster = PostgresCluster(SETTINGS)
        self._templates: set[str] = set()

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._cluster.close()

    @contextmanager
    def place(self) -> Iterator[PostgresPlace]:
        """Make a database and remove it afterwards."""
        url = self._cluster.create_database()
        try:
            yield PostgresPlace(self._cluster, url, self._templates)
        finally:
            self._cluster.drop_database(url)

    def version(self) -> str:
        """Name the server and its settings."""
        server = self._cluster.sql("SHOW server_version").split()[0]
        settings = ", ".join(f"{name} = {value}" for name, value in SETTINGS.items())
        return f"PostgreSQL {server}; {settings}; all else as by default, autovacuum too"


class SqlitePlace:
    """One database file in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        """Measure there."""
        self._directory = directory
        self.url = str(directory / "jobs.db")

    def set_up(self, kind: str, make: Callable[[], object]) -> None:
        """Have them made: that is quick."""
        make()

    def rest(self) -> None:
        """Write out what lies in memory."""
        os.sync()

    def analyse(self) -> None:
        """Leave it: a user of SQLite does not."""

    def settle(self) -> None:
        """Leave it: SQLite has cleaned up when a transaction has ended."""

    def usage(self) -> Usage:
        """Add up the files; the engine runs in the client, whose CPU time holds it."""
        return Usage(disk_bytes=sum(file.stat().st_size for file in self._directory.iterdir()))


class SqliteEngine:
    """Files on the disk that the private server is on, too."""

    def __init__(self) -> None:
        """Entering makes a directory for them."""
        self._directory = Path()

    def __enter__(self) -> Self:
        self._directory = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
        return self

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._directory)

    @contextmanager
    def place(self) -> Iterator[SqlitePlace]:
        """Make a directory and remove it afterwards."""
        directory = Path(tempfile.mkdtemp(dir=self._directory))
        try:
            yield SqlitePlace(directory)
        finally:
            shutil.rmtree(directory)

    def version(self) -> str:
        """Name the library that Holdfast brings."""
        return f"{sqlite_version()}; WAL, synchronous = FULL"
