"""What a command printed: read from the blobs that its log is shipped to, in bounded memory.

Every reader reads the same bytes, on any host, with secrets masked. A position is an offset in
bytes: the same lines follow it at every read, so a reader that remembers it continues without a gap
and without a duplicate.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import BlobsUnavailable, HoldfastError, LogErased, LogUnreadable, NoSuchBlob
from holdfast.lifecycle.record import Job, JobId, KeptOutput
from holdfast.lifecycle.states import Retention
from holdfast.lifecycle.transitions import ENDS
from holdfast.ports.blobs import Blobs
from holdfast.ports.store import Store
from holdfast.queries.log_records import LineReader, OutputStream, PrintedLine, TailFinder
from holdfast.queries.log_segments import LogListing, list_log

PAGE_BYTES = 256 * 1024
"""How much text one page may have, give or take a line."""
SCAN_BYTES = 4 * 1024 * 1024
"""How much of a log is read for one page, however few of its lines are wanted."""
BLOCK_BYTES = 128 * 1024
SHARED_SECONDS = 0.15
"""How long the listing of a growing log serves all who read it."""
KNOWN_LOGS = 256
"""How many listings are kept: those of ended logs do not change."""
TRIES = 5
"""How often a log is listed again whose segments are replaced while it is read."""
PAUSE_SECONDS = 0.05

T = TypeVar("T")


class LogRange(Struct, frozen=True, kw_only=True):
    """Which lines of a command's log are wanted."""

    after: int = 0
    limit: int = 1000
    tail: int | None = None
    """Start this many lines before the end; parts of a line do not count."""
    stream: OutputStream | None = None


class PrintedPage(Struct, frozen=True, kw_only=True):
    """Some lines of a command's log, and what there is to know of it."""

    lines: list[PrintedLine]
    next: int
    """Where to continue. A page that ends where it started has reached the end, for now."""
    total_bytes: int = 0
    truncated: bool = False
    """Output was dropped beyond the limit of the log."""


class CommandLogs:
    """Reads what the commands of one store printed. All calls come from one event loop."""

    def __init__(self, store: Store, blobs: Blobs) -> None:
        """Read from a place of blobs; the store knows what an ended log must have."""
        self._store = store
        self._blobs = blobs
        self._ended: dict[tuple[JobId, int], LogListing] = {}
        self._growing: dict[tuple[JobId, int], tuple[float, asyncio.Task[LogListing]]] = {}

    async def read(self, job: Job, wanted: LogRange) -> PrintedPage:
        """Read lines of a job's log. Raise LogErased if retention has removed it.

        The last line is read once it is complete, or no more comes because the command has ended.
        """
        _check_kept(job)
        if job.started_at is None:
            return PrintedPage(lines=[], next=wanted.after)
        for attempt in range(TRIES):
            await asyncio.sleep(attempt * PAUSE_SECONDS)
            try:
                listing = await self._list(job)
                return await read_page(self._blobs, listing, wanted, ended=job.terminal)
            except (NoSuchBlob, _Incomplete):
                # Its segments were replaced by longer ones meanwhile, or removed.
                self._ended.pop((job.id, job.attempt), None)
                self._growing.pop((job.id, job.attempt), None)
        raise await self._absence_error(job)

    async def _list(self, job: Job) -> LogListing:
        """List a log: at once for all who ask in the same moment; an ended one once."""
        key = (job.id, job.attempt)
        if not job.terminal:
            return await asyncio.shield(self._list_growing(key))
        if key not in self._ended:
            kept = await self._kept_log(job)
            listing = await list_log(self._blobs, *key)
            if kept is not None:
                if listing.end < kept.bytes:
                    raise _Incomplete(f"{listing.end} of {kept.bytes} bytes are there")
                listing = replace(listing, truncated=kept.truncated)
            _make_room(self._ended)
            self._ended[key] = listing
        return self._ended[key]

    def _list_growing(self, key: tuple[JobId, int]) -> asyncio.Task[LogListing]:
        now = asyncio.get_running_loop().time()
        # From when it was started: a slow answer must not make it newer.
        at, listing = self._growing.get(key, (0.0, None))
        if listing is None or now - at > SHARED_SECONDS:
            listing = asyncio.create_task(list_log(self._blobs, *key))
            _make_room(self._growing)
            self._growing[key] = (now, listing)
        return listing

    async def _kept_log(self, job: Job) -> KeptOutput | None:
        """Return what the end of the job states of its log; None if nobody was there to ship it."""
        ends = await self._store.latest_events(job.id, ENDS, limit=1)
        return ends[0].facts.log if ends else None

    async def _absence_error(self, job: Job) -> HoldfastError:
        """Return why a log is not there: retention removes it after the job was read."""
        [current] = await self._store.get([job.id], signals=False)
        if current is not None:
            _check_kept(current)
        if job.terminal:
            text = f"the log of job {job.public_id} is not complete in the place of blobs"
            return LogUnreadable(text, job_id=job.public_id)
        return BlobsUnavailable(f"the log of job {job.public_id} changed while it was read")


class _Incomplete(Exception):
    """A listing has less than the end of the job states."""


def _check_kept(job: Job) -> None:
    if job.retention is not Retention.LIVE:
        raise LogErased(f"the log of job {job.public_id} was erased", job_id=job.public_id)


def _make_room(known: dict[tuple[JobId, int], T]) -> None:
    while len(known) >= KNOWN_LOGS:
        del known[next(iter(known))]


async def read_page(
    blobs: Blobs, listing: LogListing, wanted: LogRange, *, ended: bool
) -> PrintedPage:
    """Read lines of a log that was listed. Raise NoSuchBlob if a segment was replaced since."""
    after = wanted.after
    if wanted.tail is not None:
        finder = TailFinder(listing.end, wanted.tail, wanted.stream, ended=ended)
        after = max(after, await _find_tail(blobs, listing, finder))
    page = _Page(after, wanted)
    await _fill(blobs, listing, page, ended=ended)
    return PrintedPage(
        lines=page.lines,
        next=page.reached,
        total_bytes=listing.end,
        truncated=listing.truncated,
    )


class _Page:
    """Lines that are wanted, until there are enough of them."""

    def __init__(self, after: int, wanted: LogRange) -> None:
        self.after = self.reached = after
        self.lines: list[PrintedLine] = []
        self._wanted = wanted
        self._size = 0
        self._reader = LineReader(after)

    @property
    def position(self) -> int:
        """Where the next block starts."""
        return self._reader.position

    def add(self, block: bytes | None) -> bool:
        """Add the next block, None once nothing follows; return whether the page is full."""
        for line in self._reader.finish() if block is None else self._reader.feed(block):
            self.reached = line.position
            if self._wanted.stream in (None, line.stream):
                self.lines.append(line)
                self._size += len(line.text)
            if self._is_full():
                return True
        return False

    def _is_full(self) -> bool:
        return (
            len(self.lines) >= self._wanted.limit
            or self._size >= PAGE_BYTES
            or self.reached - self.after >= SCAN_BYTES
        )


async def _fill(blobs: Blobs, listing: LogListing, page: _Page, *, ended: bool) -> None:
    if page.after >= listing.end:
        return
    while page.position < listing.end:
        block = await _read(blobs, listing, page.position, page.position + BLOCK_BYTES)
        # In a thread: there may be thousands of lines, of many readers.
        if await asyncio.to_thread(page.add, block):
            return
    if ended:
        page.add(None)


async def _find_tail(blobs: Blobs, listing: LogListing, finder: TailFinder) -> int:
    while finder.until > 0:
        start = max(0, finder.until - BLOCK_BYTES)
        block = await _read(blobs, listing, start, finder.until)
        if (found := await asyncio.to_thread(finder.feed, block)) is not None:
            return found
    return 0


async def _read(blobs: Blobs, listing: LogListing, start: int, end: int) -> bytes:
    """Read some bytes of a log, which may be in several segments."""
    return b"".join([piece async for piece in _read_pieces(blobs, listing, start, end)])


async def _read_pieces(
    blobs: Blobs, listing: LogListing, start: int, end: int
) -> AsyncIterator[bytes]:
    for segment in listing.segments:
        if segment.end > start and start < end:
            until = min(end, segment.end)
            size = until - start
            first, last = start - segment.start, until - segment.start
            async for piece in blobs.read(segment.key, start=first, end=last):
                size -= len(piece)
                yield piece
            if size != 0:
                raise NoSuchBlob(f"blob {segment.key} is shorter than its name")
            start = until
