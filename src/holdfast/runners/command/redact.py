"""Masks the values of secrets in what a command printed: pure, and as it comes.

An exact value is replaced by as many asterisks as it has bytes, so that positions in the log stay.
It is found wherever a writer or a reader cut the log, and in the joined pieces of a long line. A
value of several lines is masked line by line. What is shorter than `SHORTEST_BYTES` is not masked,
because it would be found everywhere; nor is an encoding of a value, such as base64.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from holdfast.queries.log_records import HEADER_BYTES, OutputStream, read_record

SHORTEST_BYTES = 4
"""The shortest value, or line of one, that is masked."""
HELD_BYTES = 256 * 1024
"""How much output may wait for the rest of what looks like the start of a value."""
PIECE_BYTES = 64 * 1024
"""A record that is longer, which no writer makes, is read in pieces."""
_MASK = b"*"
_PIECES = (b" stdout P", b" stderr P")
"""What a record has that does not end its line; others may have it in their text."""


class Redactor:
    """Masks values in the bytes of a log, which it is given in order."""

    def __init__(self, secrets: Sequence[bytes], position: int = 0) -> None:
        """Mask these; the log is given from a position on.

        That is the start of the log, unless there is nothing to mask: a line may have started
        long before.
        """
        self._values = [_Value(one) for one in sorted(split_values(secrets))]
        self.position = position
        """Up to where bytes were returned."""
        self._waiting = bytearray()
        """What was given and not returned; values that were found in it are masked."""
        self._read = position
        """Up to where the records of it were read."""
        self._last = position
        """Where the last one of them starts."""
        self._lines: dict[OutputStream, _OpenLine] = {}
        """By stream, the lines that are not complete."""
        self._long: _Header | None = None
        """The record that is read in pieces, if it is one."""

    @property
    def is_needed(self) -> bool:
        """Return whether there is anything to mask."""
        return bool(self._values)

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return those that are final, whole records only."""
        self._waiting += data
        self._read_records()
        return self.release() if len(self._waiting) > HELD_BYTES else self._take_final()

    def delays_others(self) -> bool:
        """Return whether records wait because one before them may have the start of a value."""
        return self._find_held() < self._last

    def release(self) -> bytes:
        """Wait no longer for the rest of what looks like the start of a value, but mask it.

        Return what is final then.
        """
        for line in self._lines.values():
            for start, end in line.doubtful():
                self._mask(start, end)
            line.is_held = False
        return self._take_final()

    def finish(self) -> bytes:
        """Return everything: nothing follows."""
        self._read_piece(len(self._waiting) - (self._read - self.position), is_last=True)
        return self.release()

    def _take_final(self) -> bytes:
        return self._take(self._find_held())

    def _take(self, until: int) -> bytes:
        size = until - self.position
        taken = bytes(self._waiting[:size])
        del self._waiting[:size]
        self.position = until
        return taken

    def _find_held(self) -> int:
        """Return where the first record starts that may have the start of a value."""
        held = (line.first_record(self.position) for line in self._lines.values() if line.is_held)
        return min(held, default=self._read)

    def _read_records(self) -> None:
        start = self._read - self.position
        end = self._waiting.rfind(b"\n", start) + 1
        if end > start and self._has_nothing(start, end):
            self._last, self._read = self._read, self.position + end
            start = end
        while (newline := self._waiting.find(b"\n", start)) >= 0:
            self._read_piece(newline + 1 - start, is_last=True)
            start = newline + 1
        unread = len(self._waiting) - (self._read - self.position)
        if unread > PIECE_BYTES:
            self._read_piece(unread, is_last=False)

    def _has_nothing(self, start: int, end: int) -> bool:
        """Return whether records have no value, and no part of one: most have not, by far."""
        if not self._values:
            return True
        if self._lines or self._long is not None:
            return False
        parts = (*_PIECES, *(value.text for value in self._values))
        return all(self._waiting.find(part, start, end) < 0 for part in parts)

    def _read_piece(self, size: int, *, is_last: bool) -> None:
        """Read a record, or a piece of one, and mask what it completes."""
        start, self._read = self._read, self._read + size
        self._last = start
        if not self._values or size == 0:
            return
        first = start - self.position
        record = bytes(self._waiting[first : first + size]).removesuffix(b"\n")
        header = self._long or _read_header(record)
        text = record if self._long else record[header.size :]
        ends_line = header.ends_line and is_last
        self._long = None if is_last else header
        is_whole = ends_line and header.stream not in self._lines
        if is_whole and not any(value.text in text for value in self._values):
            return
        line = self._lines.setdefault(header.stream, _OpenLine())
        text_start = start + len(record) - len(text)
        line.add(_Piece(text_start, text_start + len(text), start), text)
        self._mask_values(line, len(line.text) - len(text))
        if ends_line:
            del self._lines[header.stream]
        else:
            line.keep(max(value.count_started(line.text) for value in self._values))

    def _mask_values(self, line: _OpenLine, known: int) -> None:
        """Mask the values in a line, as far as they are not within its first, known bytes."""
        for value in self._values:
            for start, end in value.find(line.text, known):
                for place in line.places(start, end):
                    self._mask(*place)

    def _mask(self, start: int, end: int) -> None:
        """Mask what was not returned of these bytes."""
        start, end = max(0, start - self.position), end - self.position
        if end > start:
            self._waiting[start:end] = _MASK * (end - start)


def split_values(secrets: Iterable[bytes]) -> set[bytes]:
    """Return what is masked of secrets: their lines, as far as they are not too short."""
    lines = {line.removesuffix(b"\r") for secret in secrets for line in secret.split(b"\n")}
    return {line for line in lines if len(line) >= SHORTEST_BYTES}


class _Header(Struct, frozen=True):
    """What precedes the text of a record; nothing where it is not one."""

    stream: OutputStream
    ends_line: bool
    size: int


def _read_header(record: bytes) -> _Header:
    """Read what a reader of the log leaves out of a record."""
    first = record[:HEADER_BYTES]
    read = read_record(first, 0)
    return _Header(read.stream, read.is_last, len(first) - len(read.text))


class _Piece(Struct):
    """Where a piece of a line is in the log, without its header."""

    start: int
    end: int
    record_start: int


class _OpenLine:
    """The end of a line that is not complete: what a value may have started in."""

    def __init__(self) -> None:
        self.text = b""
        self.is_held = False
        self._pieces: list[_Piece] = []

    def first_record(self, position: int) -> int:
        """Return where its first record starts after a position."""
        starts = (piece.record_start for piece in self._pieces)
        return next(start for start in starts if start >= position)

    def add(self, piece: _Piece, text: bytes) -> None:
        """Add a piece; there may be a million empty ones."""
        if text:
            self.text += text
            self._pieces.append(piece)

    def keep(self, size: int) -> None:
        """Drop all but the last bytes, and hold them back."""
        self.is_held = size > 0
        drop = len(self.text) - size
        self.text = self.text[drop:]
        while self._pieces and drop >= (length := self._pieces[0].end - self._pieces[0].start):
            drop -= length
            del self._pieces[0]
        if self._pieces:
            self._pieces[0].start += drop

    def places(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Return where a part of the text is in the log."""
        before = 0
        for piece in self._pieces:
            length = piece.end - piece.start
            first, last = max(start - before, 0), min(end - before, length)
            if first < last:
                yield piece.start + first, piece.start + last
            before += length

    def doubtful(self) -> Iterator[tuple[int, int]]:
        """Return what is to be masked if nothing is waited for; a few bytes give nothing away."""
        if self.is_held and len(self.text) >= SHORTEST_BYTES:
            yield from self.places(0, len(self.text))


class _Value:
    """A text that is searched for."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._borders = _find_borders(text)

    def find(self, text: bytes, known: int) -> Iterator[tuple[int, int]]:
        """Find all occurrences, overlapping ones too, that are not within the first bytes."""
        start = max(0, known - len(self.text) + 1)
        while (start := text.find(self.text, start)) >= 0:
            yield start, start + len(self.text)
            start += 1

    def count_started(self, text: bytes) -> int:
        """Return how many of the last bytes of a text are the start of the value."""
        size = 0
        # In time that grows with the value, whatever a command prints (Knuth, Morris and Pratt).
        for byte in text[max(0, len(text) - len(self.text) + 1) :]:
            while size and self.text[size] != byte:
                size = self._borders[size - 1]
            size += self.text[size] == byte
        return size


def _find_borders(text: bytes) -> list[int]:
    """Return for each start of a text how many of its last bytes are its first bytes, too."""
    borders = [0]
    for byte in text[1:]:
        size = borders[-1]
        while size and text[size] != byte:
            size = borders[size - 1]
        borders.append(size + (text[size] == byte))
    return borders
