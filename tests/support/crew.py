"""Worker processes for tests: started, told apart, stopped, continued, killed and collected."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
EFFECTS = "HOLDFAST_TEST_EFFECTS"
"""Names the directory of the outside resource to worker processes and their children."""
LIMIT_SECONDS = 30.0


class Member:
    """One worker process."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        """Start it; `wait_ready` returns when its worker has begun."""
        self.name = ""
        self._heard = b""
        # A file and not a pipe: nobody has to read it for the process to go on.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=dict(environment),
            # Not of our terminal: a Ctrl-C is ours alone, and ends them with us.
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def wait_ready(self, limit_seconds: float = LIMIT_SECONDS) -> Self:
        """Wait for the line `ready NAME`, or for the death of the process."""
        end = time.monotonic() + limit_seconds
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._heard:
                assert selector.select(max(0.0, end - time.monotonic())), self.said()
                chunk = os.read(self.process.stdout.fileno(), 65536)
                if not chunk:
                    break
                self._heard += chunk
        self.name = self._heard.decode().removeprefix("ready ").strip()
        return self

    def send(self, number: signal.Signals) -> None:
        """Send it a signal; one that is dead already misses nothing."""
        if self.alive:
            self.process.send_signal(number)

    def suspend(self) -> bool:
        """Stop it, and wait until it is; False if it ended by itself first."""
        self.send(signal.SIGSTOP)
        wait_until(lambda: _state(self.process.pid) in "TtZX", "it to be stopped, or to end")
        return self.alive

    def wait_stopped(self) -> None:
        """Wait until it is stopped, by us or by itself."""
        wait_until(lambda: _state(self.process.pid) in "Tt", "it to be stopped")

    def resume(self) -> None:
        """Let it go on."""
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """End it by SIGKILL, whatever it is doing."""
        self.process.kill()
        self.process.wait()

    def wait(self, limit_seconds: float = LIMIT_SECONDS) -> int:
        """Wait until it has ended; returns its exit code, negative for a signal."""
        try:
            return self.process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end; it said:\n{self.said()}") from None

    def said(self) -> str:
        """Read what it wrote to its stderr."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode(errors="replace")[-8000:]

    def close(self) -> None:
        """End it if need be, and let go of it."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self._errors.close()


class Crew:
    """Worker processes on one store and one resource; at the end of the block all are dead."""

    def __init__(self, url: str, effects: Path) -> None:
        """Let members work at a store and write to a resource."""
        self.url = url
        self.effects = effects
        self.members: list[Member] = []

    def __enter__(self) -> Self:
        """Begin with nobody."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kill all."""
        for member in self.members:
            member.close()

    def start(
        self,
        *,
        die_at: str | None = None,
        arm_at_signal: str | None = None,
        stop_at: str | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Member:
        """Start a worker; `settings` are those of `app.worker`.

        `die_at`: the point at which it is killed. `arm_at_signal`: the same, from SIGUSR1 on.
        `stop_at`: the point at which it stops itself, as SIGSTOP does; `resume` lets it go on.
        """
        told = {
            "url": self.url,
            "arm_at_signal": arm_at_signal,
            "stop_at": stop_at,
            "worker": settings,
        }
        command = [sys.executable, "-m", "tests.support.member", json.dumps(told)]
        return self._add(command, die_at, environment or {})

    def start_command(self, *words: str) -> Member:
        """Start the real `holdfast worker` on this store."""
        command = [sys.executable, "-m", "holdfast.cli", "worker", "tests.crashes.apps:app"]
        return self._add([*command, "--url", self.url, *words], None, {})

    def _add(self, command: list[str], die_at: str | None, more: Mapping[str, str]) -> Member:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            EFFECTS: str(self.effects),
            **more,
        }
        if die_at is not None:
            environment["HOLDFAST_DIE_AT"] = die_at
        member = Member(command, environment)
        self.members.append(member)
        return member


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
