"""A private nats-server on the loopback, with or without JetStream; and a private redis-server.

Each is started on a free port, ended by its pid, and can be killed and started again meanwhile.
"""

import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.lifeline import free_port
from tests.support.waiting import wait_until


class _Server:
    """A program that listens on one port."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def argv(self) -> list[str]:
        raise NotImplementedError

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(
            self.argv(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.directory,
        )
        wait_until(self._listens, f"{self.argv()[0]} to listen")

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()


class NatsServer(_Server):
    """A bus."""

    def __init__(self, directory: Path, *, jetstream: bool) -> None:
        super().__init__(directory)
        self.jetstream = jetstream

    def argv(self) -> list[str]:
        streams = ["-js", "-sd", str(self.directory / "streams")] if self.jetstream else []
        return ["nats-server", "-a", "127.0.0.1", "-p", str(self.port), *streams]

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"


class RedisServer(_Server):
    """Where the SDK's agents keep what pointers lead to."""

    def argv(self) -> list[str]:
        place = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.directory)]
        return ["redis-server", *place, "--save", "", "--appendonly", "no"]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"
