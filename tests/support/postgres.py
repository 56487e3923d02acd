"""A private PostgreSQL cluster that tests may restart, cut off, copy and fail over at will.

Everything is in a temporary directory, trusts every local user, and ends with the test process.
All calls block; in a coroutine use `asyncio.to_thread` where the wait matters.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from tests.support.lifeline import Lifeline, clean_environment, free_port, run_as_server_user
from tests.support.unavailable import Unavailable
from tests.support.waiting import wait_until

StopMode = Literal["smart", "fast", "immediate"]
_STOP_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_PORT_TRIES = 5


class PostgresCluster:
    """One server with its own data directory; use it as a context manager.

    `settings` are lines of postgresql.conf; fsync is on unless they say otherwise. Statements that
    tests write by hand find Holdfast's tables by the search_path; the store sets its own.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.port = 0
        self.binaries = find_binaries()
        self._settings = {
            "max_connections": "300",
            "search_path": "holdfast, public",
            **(settings or {}),
        }
        self._names = count(1)
        self._templates: set[str] = set()
        self._lifeline: Lifeline | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._lifeline = Lifeline(end_signal=_STOP_SIGNALS["immediate"])
        try:
            self._lifeline.give_to_server_user()
            self._fill_data_directory()
            self._start_on_a_free_port()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """Where the unix socket, the log and the data directory are."""
        if self._lifeline is None:
            raise RuntimeError("the cluster exists only inside its with block")
        return self._lifeline.directory

    @property
    def data_directory(self) -> Path:
        return self.directory / "data"

    @property
    def under(self) -> Sequence[str]:
        """The command that runs the server, if it is not run by itself."""
        return ()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def url(self, database: str = "postgres") -> str:
        """Where a client finds `database`, over TCP so that a proxy can stand in between."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server on its port and return when it takes connections."""
        server = (self.binaries / "postgres", "-D", self.data_directory)
        command: Sequence[str | Path] = (*self.under, *server)
        self._process = self._owned().spawn(command, log=self._log)
        try:
            wait_until(self._is_ready, "PostgreSQL to start", limit_seconds=60)
        except TimeoutError as error:
            raise RuntimeError(f"{error}; its log ends:\n{self._end_of_log()}") from error

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server; "immediate" is the crash: nothing is flushed, clients are cut off."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(_STOP_SIGNALS[mode])
        self._process.wait(timeout=60)
        self._process = None
        self._owned().forget_server()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Let no process of the server run: it accepts connections, and never answers."""
        assert self._process is not None
        pids = [self._process.pid, *_children(self._process.pid)]
        _signal_all(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal_all(pids, signal.SIGCONT)

    def restart(self, mode: StopMode = "immediate") -> None:
        """Stop and start on the same port; after "immediate" the start recovers from the WAL."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """End the server and remove its files."""
        if self._lifeline is not None:
            self.stop("immediate")
            self._lifeline.close()
            self._lifeline = None

    def sql(self, statement: str, database: str = "postgres") -> str:
        """Run one statement outside the code under test; the rows as psql prints them bare."""
        options = ["-XqAt", "-v", "ON_ERROR_STOP=1", "-d", self.url(database), "-c", statement]
        done = subprocess.run(
            [self.binaries / "psql", *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=clean_environment(),
        )
        if done.returncode != 0:
            raise RuntimeError(f"{statement}: {done.stderr}")
        return done.stdout.rstrip("\n")

    def create_database(self, name: str | None = None, template: str | None = None) -> str:
        """Make a database, as a copy of `template` if given, and return its URL."""
        name = name or f"test_{next(self._names)}"
        source = f' TEMPLATE "{template}"' if template else ""
        self.sql(f'CREATE DATABASE "{name}"{source}')
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Remove the database behind `url`, cutting off whoever still uses it."""
        self.sql(f'DROP DATABASE IF EXISTS "{database_of(url)}" WITH (FORCE)')

    def make_template(self, name: str, prepare: Callable[[str], object]) -> str:
        """Make the database `name` once, let `prepare(url)` fill it, and return its name.

        `prepare` must leave no connection behind: PostgreSQL copies only a database at rest. It
        runs in a thread of its own, so that it may run an event loop wherever this is asked for.
        """
        if name in self._templates:
            return name
        url = self.create_database(name)
        with ThreadPoolExecutor(1) as thread:
            thread.submit(prepare, url).result()
        self._templates.add(name)
        return name

    def kill_backends(self, url: str | None = None) -> int:
        """Terminate every client's backend, or those of one database; how many there were."""
        mine = f" AND datname = '{database_of(url)}'" if url else ""
        # In the select list: as a condition it may be asked first, and of everyone.
        rows = self.sql(
            "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE backend_type = 'client backend' AND pid <> pg_backend_pid(){mine}"
        )
        killed = [row.partition("|")[0] for row in rows.splitlines()]
        wait_until(lambda: not self._alive(killed), "the killed backends to be gone")
        return len(killed)

    def make_standby(self, *, synchronous: bool = True) -> "Standby":
        """A streaming copy, to be entered like a cluster; close it before its primary.

        With `synchronous`, a commit here is acknowledged only when the standby has it too, as
        long as the standby is entered: what was acknowledged then survives a failover.
        """
        return Standby(self, synchronous=synchronous)

    def forget_setting(self, name: str) -> None:
        """Undo an ALTER SYSTEM SET of a server that is down and cannot be asked to."""
        file = self.data_directory / "postgresql.auto.conf"
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(line for line in lines if not line.startswith(f"{name} ")))

    def _alive(self, pids: Sequence[str]) -> bool:
        listed = ",".join(pids) or "0"
        return self.sql(f"SELECT 1 FROM pg_stat_activity WHERE pid IN ({listed}) LIMIT 1") == "1"

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def _owned(self) -> Lifeline:
        if self._lifeline is None:
            raise RuntimeError("the cluster exists only inside its with block")
        return self._lifeline

    def _fill_data_directory(self) -> None:
        options = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "--no-sync"]
        self._run("initdb", "-D", self.data_directory, *options)

    def _start_on_a_free_port(self) -> None:
        for tries_left in reversed(range(_PORT_TRIES)):
            self.port = free_port()
            self._write_settings()
            try:
                return self.start()
            except RuntimeError:
                # Between the search and the start another server may have taken the port.
                if tries_left == 0 or "could not bind" not in self._end_of_log():
                    raise
                self.stop()
        raise AssertionError("unreachable")

    def _write_settings(self) -> None:
        settings = {
            **self._settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
        }
        # The last line of a name counts, so a standby overrides what it copied from its primary.
        with (self.data_directory / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _run(self, program: str, *arguments: str | Path) -> str:
        command = [self.binaries / program, *arguments]
        return run_as_server_user(command, directory=self.directory)

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL did not start; its log ends:\n{self._end_of_log()}")
        try:
            lines = (self.data_directory / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # What pg_ctl looks at too: the eighth line is the server's own word on its state. The pid
        # tells it from the file that a crash left behind.
        is_ours = bool(lines) and lines[0] == str(self._process.pid)
        return is_ours and len(lines) >= 8 and lines[7].strip() == "ready"

    def _end_of_log(self) -> str:
        return self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""


class Standby(PostgresCluster):
    """A streaming copy of a running cluster that can take its place."""

    def __init__(self, primary: PostgresCluster, *, synchronous: bool) -> None:
        super().__init__()
        self._primary = primary
        self._synchronous = synchronous
        self._slot = f"standby_{os.getpid()}_{id(self)}"

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self._join_primary()
        except BaseException:
            self.close()
            raise
        return self

    def promote(self) -> None:
        """Become a primary of its own; returns when it takes writes."""
        if self.sql("SELECT pg_promote(wait_seconds => 30)") != "t":
            raise RuntimeError(f"the standby was not promoted; its log:\n{self._end_of_log()}")

    def close(self) -> None:
        super().close()
        # A primary that went on waiting for a standby that is gone would hang at its next commit.
        if self._primary.running:
            self._leave_primary()
        else:
            self._primary.forget_setting("synchronous_standby_names")

    def _fill_data_directory(self) -> None:
        source = self._primary.url() + f"?application_name={self._slot}"
        copy = ("-d", source, "-R", "-X", "stream", "-c", "fast", "--no-sync")
        self._run("pg_basebackup", "-D", self.data_directory, *copy, "-C", "-S", self._slot)

    def _join_primary(self) -> None:
        if self._synchronous:
            self._primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
            self._primary.sql("SELECT pg_reload_conf()")
        wait_until(self._is_followed, "the standby to follow its primary")

    def _is_followed(self) -> bool:
        state = "sync" if self._synchronous else "async"
        return self._primary.sql(
            "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
            f" AND application_name = '{self._slot}' AND sync_state = '{state}'"
        ) == str(1)

    def _leave_primary(self) -> None:
        if self._synchronous:
            self._primary.sql("ALTER SYSTEM RESET synchronous_standby_names")
            self._primary.sql("SELECT pg_reload_conf()")
        wait_until(self._slot_is_idle, "the standby's slot to be free")
        self._primary.sql(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            f" WHERE slot_name = '{self._slot}'"
        )

    def _slot_is_idle(self) -> bool:
        return self._primary.sql(
            f"SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = '{self._slot}'"
        ) == str(0)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def database_of(url: str) -> str:
    """The name of the database that a URL of a cluster, a PgBouncer or a proxy leads to."""
    return url.rpartition("/")[2].partition("?")[0]


def find_binaries() -> Path:
    """The directory of PostgreSQL's programs: PG_BIN, what pg_config says, or Debian's newest."""
    for directory in _places():
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    raise Unavailable(
        "PostgreSQL's initdb and postgres were not found: install the package postgresql,"
        " or set PG_BIN to the directory that has them"
    )


def _places() -> Iterable[Path]:
    if named := os.environ.get("PG_BIN"):
        yield Path(named)
        return
    if program := shutil.which("pg_config"):
        done = subprocess.run([program, "--bindir"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            yield Path(done.stdout.strip())
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True)


def _version(directory: Path) -> int:
    number = re.match(r"\d+", directory.parent.name)
    return int(number.group()) if number else 0
