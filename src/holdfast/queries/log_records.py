"""The records that a command's log is made of, and the lines that they make: pure.

The format is that of `ports.box.LOG_FILE`. A position is an offset in bytes. Whatever a log is cut
into while it is read, and wherever it grows, the lines and their positions are the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from holdfast.durations import micros

LINE_BYTES = 16 * 1024
"""How much of a line is shown as one. A longer one is shown in parts, of whole records."""
MOST_LINE_BYTES = 4 * LINE_BYTES
"""How long a part may become so that it does not end within a character."""
RECORD_BYTES = LINE_BYTES
"""The longest text of one record. No writer of these files exceeds it; the rest is left out."""
HEADER_BYTES = 64
"""At least as long as what precedes the text of a record."""
_HEADER = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) (stdout|stderr) ([FP])"
    rb"(?: |\Z)"
)
"""The time, the stream, and whether the record ends its line."""


class OutputStream(StrEnum):
    """Where a command printed to."""

    STDOUT = "stdout"
    STDERR = "stderr"


class PrintedLine(Struct, frozen=True, kw_only=True):
    """A line that a command printed, or a part of one."""

    position: int
    """Where the next line starts."""
    at: int
    """When its first bytes were read from the command, by the clock of its host."""
    stream: OutputStream
    text: str
    """Bytes that are not UTF-8 are shown as U+FFFD; the log keeps them."""
    partial: bool
    """The next line of its stream continues it: it is long, or was printed in parts with lines of
    the other stream in between."""


class SpoolRecord(NamedTuple):
    """One line of the file."""

    end: int
    at: int
    stream: OutputStream
    is_last: bool
    """It ends a line of the command; the others are pieces of one that continues."""
    text: bytes


_STREAMS = {stream.value.encode(): stream for stream in OutputStream}


def read_record(line: bytes, end: int) -> SpoolRecord:
    """Read a record; what is not one, as after a torn write, is shown as it is."""
    header = _HEADER.match(line)
    at = None if header is None else _read_time(header[1])
    if header is None or at is None:
        return SpoolRecord(end, 0, OutputStream.STDOUT, True, line[:RECORD_BYTES])
    stream = _STREAMS[header[2]]
    return SpoolRecord(end, at, stream, header[3] == b"F", line[header.end() :][:RECORD_BYTES])


def _read_time(text: bytes) -> int | None:
    try:
        return max(0, micros(datetime.fromisoformat(text.decode())))
    except ValueError:
        return None


class LineReader:
    """Makes lines of the bytes of a log, which it is given block by block, in bounded memory.

    What a record has beyond its limit is left out.
    """

    def __init__(self, position: int) -> None:
        """Read from a position on; one within a record counts as the start of the next.

        So the byte before it is read, too: what is left out ends there, or later.
        """
        self._within = position > 0
        self.position = self._start = position - self._within
        """Where the next block starts."""
        self._kept = b""
        self._line = _LineParts()

    def feed(self, block: bytes) -> Iterator[PrintedLine]:
        """Return the lines that the next bytes complete."""
        *lines, rest = block.split(b"\n")
        for line in lines:
            self.position += len(line) + 1
            text, self._kept, self._start = self._keep(line), b"", self.position
            if not self._within:
                yield from self._line.add(read_record(text, self.position))
            self._within = False
        self._kept = self._keep(rest)
        self.position += len(rest)

    def finish(self) -> Iterator[PrintedLine]:
        """Return what was not completed, and will not be."""
        if self.position > self._start and not self._within:
            yield from self._line.add(read_record(self._kept, self.position))
        yield from self._line.cut()

    def _keep(self, more: bytes) -> bytes:
        return (self._kept + more)[: HEADER_BYTES + RECORD_BYTES]


class _LineParts:
    """Joins pieces that follow each other, as long as a line may be.

    Pieces with another stream's between them are not joined: no position could be between both.
    """

    def __init__(self) -> None:
        self._pieces: list[SpoolRecord] = []
        self._size = 0
        self._last = b""

    def add(self, record: SpoolRecord) -> Iterator[PrintedLine]:
        """Add a record; return the lines that end before it, and with it."""
        if self._pieces and record.stream != self._pieces[0].stream:
            yield from self.cut()
        self._pieces.append(record)
        # An empty piece counts, too: there may be a million of them.
        self._size += len(record.text) or 1
        self._last = (self._last + record.text)[-4:]
        if record.is_last or self._is_full():
            yield from self.cut()

    def cut(self) -> Iterator[PrintedLine]:
        """Return the line so far, if there is one."""
        if self._pieces:
            yield _make_line(self._pieces)
            self._pieces, self._size, self._last = [], 0, b""

    def _is_full(self) -> bool:
        if self._size >= MOST_LINE_BYTES:
            return True
        return self._size >= LINE_BYTES and not _ends_within_character(self._last)


def _ends_within_character(text: bytes) -> bool:
    """Return whether the last bytes start a character of UTF-8 that they do not complete."""
    for length, byte in enumerate(reversed(text), start=1):
        if byte & 0xC0 != 0x80:
            # The leading byte has as many ones as the character has bytes; ASCII has none.
            return byte >= 0xC0 and length < (2 + (byte >= 0xE0) + (byte >= 0xF0))
    return False


def _make_line(pieces: list[SpoolRecord]) -> PrintedLine:
    first, last = pieces[0], pieces[-1]
    return PrintedLine(
        position=last.end,
        at=first.at,
        stream=first.stream,
        text=b"".join(piece.text for piece in pieces).decode("utf-8", "replace"),
        partial=not last.is_last,
    )


class TailFinder:
    """Finds where the last lines of a log start, from its blocks in reverse order."""

    def __init__(self, size: int, count: int, stream: OutputStream | None, *, ended: bool) -> None:
        """Look for the last `count` lines of a stream, or of both, in a log of `size` bytes."""
        self._size = self._edge = self.until = size
        """Up to where blocks are still to be fed."""
        self._count, self._stream, self.positioned = count, stream, ended
        self._following = b""
        self._is_complete = False
        self._records = self._found = 0

    def feed(self, block: bytes) -> int | None:
        """Return where the last lines start, once the block before the last one shows it."""
        if self.until == self._size:
            self._is_complete = block.endswith(b"\n")
        self.until -= len(block)
        cut = len(block)
        while (newline := block.rfind(b"\n", 0, cut)) >= 0:
            start = self.until + newline + 1
            first = block[newline + 1 : min(cut, newline + 1 + HEADER_BYTES)]
            if start < self._size and self._count_record(start, first + self._following):
                return self._edge
            self._following, cut = b"", newline
        self._following = (block[:cut][:HEADER_BYTES] + self._following)[:HEADER_BYTES]
        if self.until > 0:
            return None
        return self._edge if self._count_record(0, self._following) else 0

    def _count_record(self, start: int, first: bytes) -> bool:
        """Count a record; return whether one more line starts there than is wanted."""
        record = read_record(first[:HEADER_BYTES], start)
        is_newest = self._records == 0
        self._records += 1
        # A piece at the end counts as a line only if nothing can complete it any more.
        ends_line = record.is_last and (self._is_complete or not is_newest)
        if self._stream in (None, record.stream) and (ends_line or (is_newest and self.positioned)):
            self._found += 1
            if self._found > self._count:
                return True
        self._edge = start
        return False
