"""The blobs that hold a command's log: segments, whose names alone state which bytes they have.

While a command runs, its log grows by segments, and small ones are replaced by longer ones; once
it has ended, one segment has everything. Segments may overlap for a moment: their bytes agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from holdfast.lifecycle.record import JobId
from holdfast.ports.blobs import BlobEntry, Blobs
from holdfast.queries.blob_keys import logs_prefix

TRUNCATED_KEY = "truncated"
"""The last word of the key of an empty blob: output was dropped beyond the limit of the log."""
_NAME = re.compile(r"(\d{16})-(\d{1,16})")


class LogSegment(Struct, frozen=True, order=True):
    """Some bytes of a log, in a blob of their own."""

    start: int
    end: int
    key: str


class LogListing(Struct, frozen=True, kw_only=True):
    """What a listing found of a log."""

    segments: tuple[LogSegment, ...]
    """In order, without a gap from the first byte on; where they overlap, the longest ones."""
    found: tuple[LogSegment, ...]
    """All of them."""
    truncated: bool

    @property
    def end(self) -> int:
        """How many bytes there are, without a gap."""
        return self.segments[-1].end if self.segments else 0


def make_segment(job: JobId, attempt: int, start: int, end: int) -> LogSegment:
    """Name the segment of these bytes."""
    return LogSegment(start, end, f"{logs_prefix(job, attempt)}/{start:016}-{end - start}")


def truncated_key(job: JobId, attempt: int) -> str:
    """Return the key of the mark of a truncated log."""
    return f"{logs_prefix(job, attempt)}/{TRUNCATED_KEY}"


async def list_log(blobs: Blobs, job: JobId, attempt: int) -> LogListing:
    """List what there is of an attempt's log."""
    return read_listing([entry async for entry in blobs.list(logs_prefix(job, attempt))])


def read_listing(entries: Iterable[BlobEntry]) -> LogListing:
    """Find the segments among the blobs of an attempt's log, and those that cover it."""
    found: list[LogSegment] = []
    whole: list[LogSegment] = []
    truncated = False
    for entry in entries:
        name = entry.key.rpartition("/")[2]
        truncated |= name == TRUNCATED_KEY
        if match := _NAME.fullmatch(name):
            segment = LogSegment(int(match[1]), int(match[1]) + int(match[2]), entry.key)
            found.append(segment)
            # One that was damaged does not count.
            if segment.end - segment.start == entry.bytes:
                whole.append(segment)
    return LogListing(segments=_cover(whole), found=tuple(found), truncated=truncated)


def _cover(found: list[LogSegment]) -> tuple[LogSegment, ...]:
    """Return as few segments as cover the log from its first byte on, up to the first gap."""
    cover: list[LogSegment] = []
    reached, longest = 0, None
    for segment in sorted(found):
        if segment.start > reached:
            if longest is None or segment.start > longest.end:
                break
            cover.append(longest)
            reached, longest = longest.end, None
        if segment.end > (reached if longest is None else longest.end):
            longest = segment
    if longest is not None:
        cover.append(longest)
    return tuple(cover)
