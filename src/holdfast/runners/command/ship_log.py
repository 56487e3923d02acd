"""Ships what a command prints to blobs while it runs, so that it can be read anywhere.

The spool file of an attempt is copied, with secrets masked, into segments (`queries.log_segments`).
A byte of the spool has the same position in blobs, and is shipped once: a shipper that takes over
continues where a listing shows that the last one stopped.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from itertools import takewhile
from pathlib import Path

from holdfast.errors import BlobsUnavailable, NoSuchBlob
from holdfast.lifecycle.record import KeptOutput
from holdfast.ports.blobs import CHUNK_BYTES, Blobs, StoredBlob
from holdfast.ports.box import LOG_FILE, TRUNCATED_FILE, Box
from holdfast.queries.log_segments import (
    LogListing,
    LogSegment,
    list_log,
    make_segment,
    truncated_key,
)
from holdfast.runners.command.redact import Redactor

log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
"""How often it is looked whether the spool has grown."""
SHIP_SECONDS = 0.4
"""How long output waits at most for more, after some was shipped."""
SEGMENT_BYTES = CHUNK_BYTES
"""How much is shipped at once, however little time has passed."""
MOST_SMALL_SEGMENTS = 16
"""This number of segments of less than that is replaced by one: a listing stays short."""
FIRST_PAUSE_SECONDS = 0.5
MOST_PAUSE_SECONDS = 15.0
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class LogShipper:
    """Ships the log of one attempt. One at a time does so: its host's worker."""

    def __init__(self, blobs: Blobs, box: Box, secrets: Sequence[bytes] = ()) -> None:
        """Ship the spool of a box; the exact values of secrets are masked (see `redact`)."""
        self._blobs = blobs
        self._box = box
        self._secrets = tuple(secrets)
        self._spool = box.directory / LOG_FILE
        self._segments: list[LogSegment] | None = None
        """What was shipped, without a gap; None: it is not known, nor what to ship next."""
        self._is_marked = False
        self._redactor = Redactor(())
        self._read = 0
        """Up to where the spool was read."""
        self._ready = bytearray()
        """What is to be shipped next."""

    async def run(self) -> None:
        """Ship while the box runs, until cancelled. Trouble of the blobs is waited out."""
        pause = 0.0
        while True:
            try:
                await self._find_segments()
                pause = self._report_end_of_trouble(pause)
                await self._ship_as_it_comes()
            except (BlobsUnavailable, NoSuchBlob, OSError) as error:
                if not pause:
                    log.warning("%s: its log cannot be shipped now: %s", self._box.name, error)
                pause = min(2 * pause or FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS)
                await asyncio.sleep(pause)

    def _report_end_of_trouble(self, pause: float) -> float:
        if pause:
            log.info("%s: its log can be shipped again", self._box.name)
        return 0.0

    async def finish(self) -> KeptOutput:
        """Ship the rest of a box that is proven dead, as one blob; return what was kept.

        Raise BlobsUnavailable or OSError if that is not possible now; it may be repeated.
        """
        try:
            return await self._finish()
        except NoSuchBlob as error:
            raise BlobsUnavailable(f"the log changed while it was shipped: {error}") from error

    async def _finish(self) -> KeptOutput:
        listing = await self._find_segments()
        is_whole = await self._ship_rest()
        await self._mark_if_truncated()
        kept = await self._join(0)
        whole = make_segment(self._box.job, self._box.attempt, 0, kept.bytes)
        # What a shipper that died has left behind.
        await self._blobs.delete([one.key for one in listing.found if one.key != whole.key])
        truncated = self._is_marked or not is_whole
        return KeptOutput(digest=kept.digest, bytes=kept.bytes, truncated=truncated)

    async def _find_segments(self) -> LogListing:
        """Find out what was shipped; what this shipper has prepared counts only if it follows."""
        listing = await list_log(self._blobs, self._box.job, self._box.attempt)
        if self._segments is None or listing.segments != tuple(self._segments):
            self._segments = list(listing.segments)
            self._redactor = Redactor(self._secrets)
            if not self._redactor.is_needed:
                self._redactor = Redactor((), listing.end)
            # A value may have started long before: from the start, then.
            self._read = self._redactor.position
            self._ready = bytearray()
        self._is_marked = listing.truncated
        return listing

    @property
    def _shipped(self) -> list[LogSegment]:
        assert self._segments is not None
        return self._segments

    @property
    def _end(self) -> int:
        """Up to where the log was shipped."""
        return self._shipped[-1].end if self._shipped else 0

    async def _ship_as_it_comes(self) -> None:
        held_at = -1
        while True:
            has_shipped = await self._ship_available()
            await self._mark_if_truncated()
            await asyncio.sleep(SHIP_SECONDS if has_shipped else POLL_SECONDS)
            if self._redactor.delays_others() and self._redactor.position == held_at:
                self._add(self._redactor.release())
            held_at = self._redactor.position

    async def _ship_available(self) -> bool:
        """Ship what was printed so far; return whether there was anything."""
        has_shipped = False
        while size := await self._fill():
            await self._ship()
            has_shipped = True
            if size < SEGMENT_BYTES:
                break
        return has_shipped

    async def _ship_rest(self) -> bool:
        """Ship everything; return False if the spool is not what it must be."""
        try:
            while await self._fill():
                await self._ship()
        except _NotAFile as error:
            log.warning("%s: the rest of its log is lost: %s", self._box.name, error)
            return False
        self._add(self._redactor.finish())
        if self._ready:
            await self._ship()
        # Less than was shipped: it was removed.
        return _measure(self._spool) >= self._end

    async def _fill(self) -> int:
        """Read from the spool until there is a segment; return how much there is to ship."""
        size = _measure(self._spool)
        while len(self._ready) < SEGMENT_BYTES and self._read < size:
            if not await self._read_block():
                break
        return len(self._ready)

    async def _read_block(self) -> int:
        """Read a block of the spool, and take what is final of it; return how long it is."""
        reading = asyncio.to_thread(_read_masked, self._spool, self._read, self._redactor)
        try:
            size, masked = await reading
        except asyncio.CancelledError:
            # The thread continues: nothing is known of the redactor any more.
            self._segments = None
            raise
        self._read += size
        self._add(masked)
        return size

    def _add(self, masked: bytes) -> None:
        """Take what the redactor has returned last, as far as it was not shipped before."""
        start = self._redactor.position - len(masked)
        self._ready += masked[max(0, self._end - start) :]

    async def _ship(self) -> None:
        """Ship what is ready as a segment."""
        end = self._end
        segment = make_segment(self._box.job, self._box.attempt, end, end + len(self._ready))
        await self._blobs.put(segment.key, bytes(self._ready))
        self._shipped.append(segment)
        self._ready = bytearray()
        small = _count_small(self._shipped)
        if small >= MOST_SMALL_SEGMENTS:
            await self._join(len(self._shipped) - small)

    async def _join(self, first: int) -> StoredBlob:
        """Replace the segments from one on by a single one."""
        parts = self._shipped[first:]
        if len(parts) <= 1:
            return await self._measure_parts(parts)
        whole = make_segment(self._box.job, self._box.attempt, parts[0].start, parts[-1].end)
        stored = await self._blobs.put(whole.key, self._read_parts(parts))
        self._shipped[first:] = [whole]
        await self._blobs.delete([one.key for one in parts])
        return stored

    async def _measure_parts(self, parts: Sequence[LogSegment]) -> StoredBlob:
        digest, size = sha256(), 0
        async for piece in self._read_parts(parts):
            digest.update(piece)
            size += len(piece)
        return StoredBlob(size, digest.hexdigest())

    async def _read_parts(self, parts: Sequence[LogSegment]) -> AsyncIterator[bytes]:
        """Read segments that follow each other, and may overlap."""
        reached = parts[0].start if parts else 0
        for part in parts:
            async for piece in self._blobs.read(part.key, start=reached - part.start):
                reached += len(piece)
                yield piece
            if reached != part.end:
                raise NoSuchBlob(f"blob {part.key} does not have the bytes of its name")

    async def _mark_if_truncated(self) -> None:
        if not self._is_marked and _exists(self._box.directory / TRUNCATED_FILE):
            await self._blobs.put(truncated_key(self._box.job, self._box.attempt), b"")
            self._is_marked = True


class _NotAFile(OSError):
    """What is in the place of the spool is not a file."""


def _count_small(segments: Sequence[LogSegment]) -> int:
    """Return how many of the last segments are small."""
    sizes = (one.end - one.start for one in reversed(segments))
    return sum(1 for _ in takewhile(lambda size: size < SEGMENT_BYTES, sizes))


def _measure(path: Path) -> int:
    """Return how long a file is; 0 if there is none."""
    try:
        return path.lstat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def _read_masked(path: Path, start: int, redactor: Redactor) -> tuple[int, bytes]:
    """Read a block of a spool; return how long it is, and what is final, masked."""
    block = _read_block(path, start)
    return len(block), redactor.feed(block)


def _read_block(path: Path, start: int) -> bytes:
    """Read from nothing but a file, and through no link: a command may be its directory's owner."""
    try:
        file = os.open(path, _OPEN)
    except FileNotFoundError:
        return b""
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _NotAFile(f"{path} is a link") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise _NotAFile(f"{path} is not a file")
        return os.pread(file, CHUNK_BYTES, start)
    finally:
        os.close(file)
