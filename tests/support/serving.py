"""A server of its own process, on one address through all its lives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.support.lifeline import free_port
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


class Served:
    """`holdfast serve`, which may be killed and started again; dead at the end of the block."""

    def __init__(self, store: str, directory: Path) -> None:
        """Serve a store; what it says goes into a file in `directory`."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._store = store
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it, and wait until it answers."""
        arguments = ["serve", "--url", self._store, "--port", str(self.port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli", *arguments],
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stderr=log,
            )
        wait_until(self._answers, "the server to answer", limit_seconds=60)

    def died(self) -> int:
        """Wait until it has ended; tells how."""
        assert self._process is not None
        return self._process.wait(60)

    def kill(self) -> None:
        """End it by SIGKILL, whatever it is doing."""
        assert self._process is not None
        self._process.kill()
        self.died()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        try:
            return httpx.get(f"{self.url}/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def __enter__(self) -> Self:
        """Begin; it is not started yet."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
