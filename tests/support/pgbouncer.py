"""A private PgBouncer in transaction mode in front of a test cluster."""

import shutil
import signal
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.lifeline import Lifeline, free_port
from tests.support.postgres import PostgresCluster, database_of
from tests.support.unavailable import Unavailable
from tests.support.waiting import wait_until

# No ignore_startup_parameters: a client that sets something at connect is refused here as it would
# be in production.
_CONFIGURATION = """\
[databases]
* = host=127.0.0.1 port={server_port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
admin_users = postgres
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = 500
server_login_retry = 1
"""


class PgBouncer:
    """One pooler; use it as a context manager inside that of its cluster."""

    def __init__(self, cluster: PostgresCluster, *, pool_size: int = 10) -> None:
        self.port = 0
        self._cluster = cluster
        self._pool_size = pool_size
        self._program = _find_program()
        self._lifeline: Lifeline | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._lifeline = Lifeline(end_signal=signal.SIGTERM)
        try:
            self._start(self._lifeline)
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

    def url(self, database_url: str) -> str:
        """The way through this pooler to the database behind a cluster's URL."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database_of(database_url)}"

    def close(self) -> None:
        """End the pooler, cutting off its clients, and remove its files."""
        if self._lifeline is None:
            return
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=20)
            self._process = None
            self._lifeline.forget_server()
        self._lifeline.close()
        self._lifeline = None

    def _start(self, lifeline: Lifeline) -> None:
        self.port = free_port()
        file = lifeline.directory / "pgbouncer.ini"
        file.write_text(
            _CONFIGURATION.format(
                server_port=self._cluster.port, port=self.port, pool_size=self._pool_size
            )
        )
        lifeline.give_to_server_user()
        log = lifeline.directory / "pgbouncer.log"
        self._process = lifeline.spawn([self._program, file], log=log)
        wait_until(lambda: self._takes_connections(log), "PgBouncer to start")

    def _takes_connections(self, log: Path) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"PgBouncer did not start: {log.read_text(errors='replace')}")
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


def _find_program() -> str:
    # Debian puts it where only root's PATH leads.
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/sbin")
    if program is None:
        raise Unavailable("pgbouncer was not found: install the package pgbouncer")
    return program
