"""A private directory and one server process in it, neither of which outlives the test run."""

import getpass
import os
import pwd
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.support.unavailable import Unavailable

# End-of-file on the pipe comes with every kind of death of the test process, SIGKILL included, and
# needs no polling of a pid. A line names the process to end; an empty line says there is none.
# $1 is the directory to remove, $2 a mount point or nothing, $3 the signal that ends the process.
_WATCHER = """
pid=
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
    kill -s "$3" "$pid"
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        kill -0 "$pid" || break
        sleep 0.1
    done
    kill -s KILL "$pid"
fi
if [ -n "$2" ]; then umount "$2" || umount -l "$2"; fi
rm -rf "$1"
"""

# Below the range from which the kernel takes the ports of outgoing connections: otherwise a client
# that keeps trying a stopped server can get the server's port for itself, or connect to itself.
_PORTS = range(20000, 32000)
# Workers that run side by side start from different places.
_next_port = count(os.getpid() * 97)


class Lifeline:
    """Owns a temporary directory, and the server started in it; a watcher removes both.

    The watcher is told by the closing of a pipe: by `close`, or by the death of this process.
    """

    def __init__(self, *, end_signal: signal.Signals = signal.SIGQUIT, mounted: str = "") -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-"))
        mount_point = str(self.directory / mounted) if mounted else ""
        arguments = [str(self.directory), mount_point, end_signal.name.removeprefix("SIG")]
        # In its own session, so that a Ctrl-C in the terminal does not end the watcher first.
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER, "sh", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def give_to_server_user(self) -> None:
        """Make the directory belong to the user that servers run as."""
        user = server_user()
        if user is not None:
            os.chown(self.directory, user.pw_uid, user.pw_gid)

    def spawn(
        self, command: Sequence[str | Path], *, log: Path, as_ourselves: bool = False
    ) -> "subprocess.Popen[bytes]":
        """Start the server as a direct child, so that its pid is its own and not a wrapper's.

        It runs as the servers' user, unless that one may not be able to read its program.
        """
        identity = _Identity() if as_ourselves else _identity()
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=clean_environment(),
                user=identity.user,
                group=identity.group,
                extra_groups=identity.extra_groups,
            )
        self._tell(str(process.pid))
        return process

    def forget_server(self) -> None:
        """Say that the server has been ended and reaped; its pid may now be anyone's."""
        self._tell("")

    def close(self) -> None:
        """End what still runs and remove the directory."""
        if self._watcher.stdin is not None and not self._watcher.stdin.closed:
            self._watcher.stdin.close()
        self._watcher.wait(timeout=20)

    def _tell(self, line: str) -> None:
        assert self._watcher.stdin is not None
        self._watcher.stdin.write(f"{line}\n".encode())
        self._watcher.stdin.flush()


def run_as_server_user(command: Sequence[str | Path], *, directory: Path) -> str:
    """Run a server's tool to its end as the server's user; raise with what it said if it fails."""
    identity = _identity()
    done = subprocess.run(
        command,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
        env=clean_environment(),
        user=identity.user,
        group=identity.group,
        extra_groups=identity.extra_groups,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {done.stdout}")
    return done.stdout


def server_user() -> pwd.struct_passwd | None:
    """PostgreSQL and PgBouncer refuse to run as root: `postgres` then, otherwise ourselves."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        raise Unavailable(
            f"as {getpass.getuser()}, servers are run by the user postgres, which does not exist: "
            "install the package postgresql or add the user"
        ) from None


class _Identity(NamedTuple):
    user: int | None = None
    group: int | None = None
    extra_groups: tuple[int, ...] | None = None


def _identity() -> _Identity:
    user = server_user()
    return _Identity() if user is None else _Identity(user.pw_uid, user.pw_gid, ())


def clean_environment() -> dict[str, str]:
    """Our environment without what would lead a PostgreSQL client somewhere else."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def free_port() -> int:
    """A port on the loopback that nobody listens on now."""
    for _ in _PORTS:
        port = _PORTS[next(_next_port) % len(_PORTS)]
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise Unavailable(f"no free port between {_PORTS.start} and {_PORTS.stop}")
