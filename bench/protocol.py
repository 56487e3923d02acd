"""How the bench talks to a contender: a program, one verb a run, one line of JSON as its answer.

The line is the last on stdout; stderr is the program's own. `{"unsupported": "why"}` means that
it does not support the verb. A program that dies, prints something else or does not end in time is
reported in one message. The verbs and their options:

version; setup --url; fill --url --jobs [--bytes]; single --url --jobs [--callers];
drain --url --jobs [--mode] [--shared]; left --url; latency --url --samples.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeAlias

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 180.0
JOBS_PER_SECOND = 400
"""What the slowest may take per job, beyond the limit."""
STOP_SECONDS = 60.0
Reply: TypeAlias = dict[str, Any]
Option: TypeAlias = str | int | float | bool | None


class ProgramError(Exception):
    """A program did not answer as the protocol requires."""


class Unsupported(Exception):
    """The contender does not support this, and names the reason."""


class Program:
    """A contender's program, by the words that start it."""

    def __init__(self, name: str, argv: Sequence[str], directory: Path = ROOT) -> None:
        """Take the words, which the verb comes after, and the directory to start it in."""
        self.name = name
        self._argv = list(argv)
        self._directory = directory

    def ask(self, verb: str, *, limit_seconds: float | None = None, **options: Option) -> Reply:
        """Run one verb to its end, and give its answer."""
        running = self.start(verb, **options)
        return running.answer(limit_seconds or limit_for(options.get("jobs")))

    def start(self, verb: str, **options: Option) -> Running:
        """Start a verb that ends by itself or when it is stopped."""
        return Running(f"{self.name} {verb}", [*self._argv, verb, *words(options)], self._directory)


def words(options: dict[str, Option]) -> list[str]:
    """Write options as a command line has them; what is None or False is left out."""
    found: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        found.append(f"--{name}")
        if value is not True:
            found.append(str(value))
    return found


def limit_for(jobs: Option) -> float:
    """Return how long a run of a number of jobs may take before it counts as hung."""
    return LIMIT_SECONDS + int(jobs or 0) / JOBS_PER_SECOND


class Running:
    """A program that runs."""

    def __init__(self, name: str, argv: Sequence[str], directory: Path = ROOT) -> None:
        """Start it, in a session of its own: Ctrl-C is ours to hand on."""
        self._name = name
        self._stderr = TemporaryFile()  # noqa: SIM115  it lives as long as the program
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError as error:
            self._stderr.close()
            raise ProgramError(f"{name} could not be started: {error}") from error

    def answer(self, limit_seconds: float) -> Reply:
        """Wait for its end and read its output; kill it and all it started if that takes long."""
        try:
            stdout, _ = self._process.communicate(timeout=limit_seconds)
            if self._process.returncode != 0:
                code = self._process.returncode
                raise ProgramError(f"{self._name} ended with code {code}: {self.output()}")
            return read_reply(self._name, stdout.decode(errors="replace"))
        except subprocess.TimeoutExpired:
            raise ProgramError(
                f"{self._name} did not end within {limit_seconds:.0f} s: {self.output()}"
            ) from None
        finally:
            self.kill()

    def stop(self) -> Reply:
        """Ask it to stop, and read its last output."""
        self._process.send_signal(signal.SIGTERM)
        return self.answer(STOP_SECONDS)

    @property
    def ended(self) -> bool:
        """Return whether it ended without being asked to."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End it and everything it started; safe to repeat."""
        if self._stderr.closed:
            return  # its number may belong to another process by now
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._stderr.close()

    def output(self) -> str:
        """Give the end of what it wrote to stderr so far."""
        return last_words(self._stderr)


def last_words(file: IO[bytes]) -> str:
    """Give the end of what a program wrote to stderr."""
    # Without a seek: where one of us goes, the program that writes there goes, too.
    text = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)
    lines = text.decode(errors="replace").strip().splitlines()
    return " | ".join(lines[-3:]) or "it printed nothing"


def read_reply(name: str, stdout: str) -> Reply:
    """Read the last line; raise Unsupported if that is what it reports."""
    lines = stdout.strip().splitlines()
    if not lines:
        raise ProgramError(f"{name} printed nothing")
    try:
        reply = json.loads(lines[-1])
    except ValueError:
        raise ProgramError(f"{name} printed no JSON but {lines[-1][:200]!r}") from None
    if not isinstance(reply, dict):
        raise ProgramError(f"{name} printed no object but {lines[-1][:200]!r}")
    if "unsupported" in reply:
        raise Unsupported(f"{name}: {reply['unsupported']}")
    return reply


def number(name: str, reply: Reply, key: str) -> float:
    """Take a number out of an answer."""
    value = reply.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProgramError(f"{name} gave no number {key!r} but {reply}")
    return float(value)
