"""Writes the output of a box as its log: lines with time and stream, of which the first are kept.

The format is that of `ports.box.LOG_FILE`. Nothing is held back: what arrives without a newline is
written at once, as a piece of a longer line, so that memory is bounded by one chunk however
long a line is, and a reader sees a prompt.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from holdfast.ports.box import LOG_FILE, TRUNCATED_FILE

Stream = Literal["stdout", "stderr"]

CHUNK_BYTES = 16 * 1024
"""How much is read at once, and so the most of a line that one line of the log has."""
FIRST_BYTES = 500
"""How much of a stream is remembered for the message of an error."""
DROP_BYTES = 256 * 1024
"""How much is read at once of what is not kept."""


class OutputLog:
    """The log of one box. Writing never fails: what cannot be kept is dropped, with a mark."""

    def __init__(self, directory: Path, limit: int) -> None:
        """Open or continue the log in a box's directory; `limit` is the most bytes of the file."""
        self._mark = directory / TRUNCATED_FILE
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(directory / LOG_FILE, flags, 0o600)
        self._room = limit - os.fstat(self._file).st_size
        self._unfinished: set[Stream] = set()
        self.is_full = self._mark.exists()

    def write(self, stream: Stream, chunk: bytes) -> None:
        """Append output as it was read, at most `CHUNK_BYTES`."""
        if not self.is_full:
            self._append(self._lines(stream, chunk))

    def close(self) -> None:
        """Finish lines that had no newline, and close the file."""
        for stream in sorted(self._unfinished):
            self.write(stream, b"\n")
        os.close(self._file)

    def _lines(self, stream: Stream, chunk: bytes) -> bytes:
        head = f"{_now()} {stream} ".encode()
        whole, newline, rest = chunk.rpartition(b"\n")
        # One replace instead of a loop over lines: a chunk may hold thousands of them.
        lines = (
            head + b"F " + whole.replace(b"\n", b"\n" + head + b"F ") + b"\n" if newline else b""
        )
        if rest:
            self._unfinished.add(stream)
            return lines + head + b"P " + rest + b"\n"
        self._unfinished.discard(stream)
        return lines

    def _append(self, lines: bytes) -> None:
        if len(lines) > self._room:
            self._set_full()
            lines = _cut(lines, self._room)
        try:
            self._room -= _write_all(self._file, lines)
        except OSError:
            # A full disk is the host's trouble, and no reason to stop a command.
            self._set_full()

    def _set_full(self) -> None:
        self.is_full = True
        with suppress(OSError):
            self._mark.touch()


class OutputPipe:
    """Reads one stream of a box on the event loop, into its log. `ended` once it is closed."""

    def __init__(self, descriptor: int, stream: Stream, log: OutputLog) -> None:
        """Start to read; the descriptor is ours to close."""
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._stream = stream
        self._log = log
        self.first = b""
        self.ended = asyncio.Event()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    def close(self) -> None:
        """Stop reading, whatever is still to come."""
        if not self.ended.is_set():
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self.ended.set()

    def _read(self) -> None:
        # One chunk, then the loop's other work: a firehose gets no more than its turn.
        try:
            chunk = os.read(self._descriptor, DROP_BYTES if self._log.is_full else CHUNK_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        if not chunk:
            self.close()
            return
        self.first += chunk[: FIRST_BYTES - len(self.first)]
        self._log.write(self._stream, chunk)


def _now() -> str:
    # The host's clock, as container runtimes do: nothing is decided by it.
    seconds, nanos = divmod(time.time_ns(), 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanos:09d}+00:00"


def _cut(lines: bytes, room: int) -> bytes:
    """Return the lines at the start that fit as a whole."""
    fitting = lines[: max(room, 0)]
    return fitting[: fitting.rfind(b"\n") + 1]


def _write_all(descriptor: int, data: bytes) -> int:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return len(data)
