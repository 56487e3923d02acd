"""Many Python processes, spawned and started together, for races that threads cannot show."""

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

# A function, or "module:function" where importing it here is not wanted.
Target = Callable[..., object] | str

_ROOT = Path(__file__).parents[2]


class ProcessesFailed(Exception):
    """Some processes raised, died or took too long; the message has what each of them said."""


def run_together(
    target: Target, arguments: Sequence[Mapping[str, Any]], *, limit_seconds: float = 60.0
) -> list[Any]:
    """Run a function in one process per entry, all at once; the results in that order.

    It may be a coroutine function, at the top of a module that is quick to import; its keyword
    arguments and its result are JSON. Raises ProcessesFailed with every traceback, or when the
    limit has passed. None is left over.
    """
    with ProcessGroup(target, arguments, limit_seconds=limit_seconds) as group:
        group.go()
        return group.results()


class ProcessGroup:
    """Processes behind a barrier; use it as a context manager, at the end of which all are dead.

    On entering, each is started and has imported its target. `limit_seconds` is for everything.
    """

    def __init__(
        self, target: Target, arguments: Sequence[Mapping[str, Any]], *, limit_seconds: float = 60.0
    ) -> None:
        self._target = target if isinstance(target, str) else _path_of(target)
        self._arguments = arguments
        self._limit_seconds = limit_seconds
        self._limit = 0.0
        self._members: list[_Member] = []

    def __enter__(self) -> Self:
        self._limit = time.monotonic() + self._limit_seconds
        try:
            for arguments in self._arguments:
                self._members.append(_Member(len(self._members), self._target, arguments))
            self._await_answers("ready")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def pids(self) -> list[int]:
        return [member.process.pid for member in self._members]

    def go(self) -> None:
        """Let all of them run."""
        for member in self._members:
            member.send(b"go\n")

    def kill(self, index: int) -> None:
        """End one by SIGKILL, whatever it is doing; its result is None."""
        self._members[index].kill()

    def results(self) -> list[Any]:
        """What each returned, once all have."""
        answers = self._await_answers("result")
        return [answer and answer["result"] for answer in answers]

    def _await_answers(self, key: str) -> list[dict[str, Any] | None]:
        waiting = [member for member in self._members if not member.killed]
        _read_answers(waiting, self._limit)
        failures = [member.failure(key) for member in waiting if not member.has(key)]
        if failures:
            raise ProcessesFailed(
                f"{len(failures)} of {len(self._members)} failed\n" + "\n".join(failures)
            )
        return [member.answer if member.has(key) else None for member in self._members]

    def _end(self) -> None:
        for member in self._members:
            member.process.kill()
        for member in self._members:
            member.close()


class _Member:
    """One process, what it answered and what it wrote to its stderr."""

    def __init__(self, index: int, target: str, arguments: Mapping[str, Any]) -> None:
        self.index = index
        self.killed = False
        self.answer: dict[str, Any] | None = None
        self._received = bytearray()
        # A file and not a pipe: nobody has to read it for the process to go on. Closed by `close`.
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.process_entry"],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(),
        )
        self.send(json.dumps({"target": target, "arguments": arguments}).encode() + b"\n")

    @property
    def answers(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line)
            self.process.stdin.flush()
        except BrokenPipeError:
            # It died before its start; `results` tells with what words.
            return

    def receive(self) -> bool:
        """Read what there is; True when that completes an answer or ends the stream."""
        chunk = os.read(self.answers.fileno(), 65536)
        self._received += chunk
        if not chunk:
            self.process.wait()
            return True
        if not self._received.endswith(b"\n"):
            return False
        self.answer = json.loads(self._received)
        self._received.clear()
        return True

    def has(self, key: str) -> bool:
        return self.answer is not None and key in self.answer

    def failure(self, key: str) -> str:
        """Why there is no such answer: a traceback if it gave one, and its stderr."""
        if self.answer is not None and "error" in self.answer:
            reason = str(self.answer["error"])
        elif self.process.poll() is None:
            reason = f"not {key} within the limit\n"
        else:
            reason = f"ended with {self.process.returncode}\n"
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")[-4000:]
        return f"process {self.index}: {reason}{said}"

    def kill(self) -> None:
        self.killed = True
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.answers.close()
        self._errors.close()
        self.process.wait()


def _read_answers(members: Sequence[_Member], limit: float) -> None:
    """Read until each has answered once more or ended, or the limit has passed."""
    with selectors.DefaultSelector() as selector:
        for member in members:
            selector.register(member.answers, selectors.EVENT_READ, member)
        while selector.get_map() and (left := limit - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if key.data.receive():
                    selector.unregister(key.fileobj)


def _path_of(function: Callable[..., object]) -> str:
    return f"{function.__module__}:{function.__qualname__}"


def _environment() -> dict[str, str]:
    """Ours, with the way to the tests and the code under test in front."""
    places = [str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
