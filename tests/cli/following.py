"""Commands that keep running, as a person uses them: started, read line by line, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_SECONDS = 60.0


class Followed:
    """A command that runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Read what a process prints."""
        assert process.stdout is not None
        self._out = process.stdout
        self._process = process

    def line(self) -> str:
        """Wait for its next line; empty once it has ended."""
        return self._out.readline().rstrip("\n")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return its exit code and the rest of its output."""
        text, _ = self._process.communicate(timeout=LIMIT_SECONDS)
        return self._process.returncode, text


@contextmanager
def following(*words: str) -> Iterator[Followed]:
    """Run a command; it is killed if it has not ended by itself."""
    # Tests may run in a shell's background, where Ctrl-C is ignored, and that is inherited.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    signal.signal(signal.SIGINT, before)
    try:
        yield Followed(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()
