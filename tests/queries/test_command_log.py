"""A command's log is read from blobs: whole, in bounded memory, wherever it is cut."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from holdfast.blobs.local import open_local
from holdfast.blobs.objects import ObjectBlobs
from holdfast.errors import LogErased, LogUnreadable
from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job, KeptOutput
from holdfast.lifecycle.states import State
from holdfast.ports.blobs import BlobEntry, read_blob
from holdfast.ports.store import Store
from holdfast.queries.command_log import (
    BLOCK_BYTES,
    PAGE_BYTES,
    CommandLogs,
    LogRange,
    PrintedPage,
    read_page,
)
from holdfast.queries.log_records import LINE_BYTES, MOST_LINE_BYTES, OutputStream, PrintedLine
from holdfast.queries.log_segments import list_log, make_segment, truncated_key
from holdfast.testing.factories import JANITOR, owner_of
from holdfast.testing.store_actions import do, job_in
from tests.support.spool import CONMON, record, running_command, ship


class CountingBlobs(ObjectBlobs):
    """Blobs in memory that count what is read of them."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), "blobs")
        self.read_bytes = 0

    async def read(
        self, key: str, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """Read a part of a blob."""
        async for piece in super().read(key, start=start, end=end):
            self.read_bytes += len(piece)
            yield piece


class ShippedLog:
    """A log in blobs, which grows by segments."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.blobs = CountingBlobs()
        self._run = runner.run
        self._job = mint_id()
        self._end = 0

    def add(self, *records: bytes) -> None:
        """Add records, as one segment."""
        data = b"".join(records)
        if data:
            segment = make_segment(self._job, 1, self._end, self._end + len(data))
            self._end = segment.end
            self._run(self.blobs.put(segment.key, data))

    def truncate(self) -> None:
        """Note that output was dropped."""
        self._run(self.blobs.put(truncated_key(self._job, 1), b""))

    def read(self, wanted: LogRange, *, ended: bool) -> PrintedPage:
        """Read a page."""
        return self._run(self._read(wanted, ended))

    async def _read(self, wanted: LogRange, ended: bool) -> PrintedPage:
        listing = await list_log(self.blobs, self._job, 1)
        return await read_page(self.blobs, listing, wanted, ended=ended)


@contextmanager
def shipped_log() -> Iterator[ShippedLog]:
    """Make an empty log."""
    with asyncio.Runner() as runner:
        yield ShippedLog(runner)


@pytest.fixture
def place() -> Iterator[ShippedLog]:
    """The log of an attempt."""
    with shipped_log() as log:
        yield log


@pytest.fixture
def store(either_store: Store) -> Store:
    """Each engine in turn."""
    return either_store


def read(
    place: ShippedLog,
    *,
    ended: bool = True,
    after: int = 0,
    limit: int = 1000,
    tail: int | None = None,
    stream: OutputStream | None = None,
) -> PrintedPage:
    """Read a page."""
    wanted = LogRange(after=after, limit=limit, tail=tail, stream=stream)
    return place.read(wanted, ended=ended)


def texts(page: PrintedPage) -> list[str]:
    """Return what was printed."""
    return [line.text for line in page.lines]


def read_all(place: ShippedLog, limit: int = 1000) -> list[PrintedLine]:
    """Read an ended command's log page by page."""
    lines: list[PrintedLine] = []
    after = 0
    while True:
        page = read(place, after=after, limit=limit)
        lines += page.lines
        if page.next == after:
            return lines
        after = page.next


def test_lines_have_their_time_stream_and_text(place: ShippedLog) -> None:
    place.add(record("one"), record("two", "stderr"))
    page = read(place)
    assert [(line.at, line.stream, line.text, line.partial) for line in page.lines] == [
        (1_700_000_000_123_456, OutputStream.STDOUT, "one", False),
        (1_700_000_000_123_456, OutputStream.STDERR, "two", False),
    ]
    assert page.total_bytes == page.next == page.lines[-1].position


def test_what_conmon_wrote_is_read(place: ShippedLog) -> None:
    place.add(CONMON)
    shown = [(line.stream.value, line.text, line.partial) for line in read(place).lines]
    assert shown == [
        ("stdout", "hello", False),
        ("stdout", "no newline yet", True),
        ("stderr", "warn", False),
        ("stdout", " and now", False),
        ("stdout", "a\tb\x1b[31mred\x1b[0m", False),
        ("stdout", 16384 * "x", True),
        ("stdout", 3616 * "x", False),
        ("stdout", "\ufffd\ufffd bad", False),
        ("stdout", "last", True),
    ]


def test_a_running_commands_last_line_is_read_once_it_is_complete(place: ShippedLog) -> None:
    start, rest = record("whole")[:50], record("whole")[50:]
    place.add(record("one"), record("pie", tag="P"), start)
    first = read(place, ended=False)
    assert texts(first) == ["one"]
    place.add(rest, record("after"))
    assert texts(read(place, ended=False, after=first.next)) == ["piewhole", "after"]


def test_an_ended_commands_last_line_is_read_though_it_is_not_complete(place: ShippedLog) -> None:
    place.add(record("one"), record("half")[:-1])
    page = read(place)
    assert texts(page) == ["one", "half"]
    assert read(place, after=page.next).lines == []


def test_a_position_continues_without_gap_or_duplicate(place: ShippedLog) -> None:
    place.add(*(record(f"line {number}") for number in range(25)))
    assert read_all(place, limit=3) == read_all(place)
    assert [line.text for line in read_all(place)] == [f"line {number}" for number in range(25)]


def test_a_position_that_was_never_given_counts_as_the_next_line(place: ShippedLog) -> None:
    place.add(record("one"), record("two"), record("three"))
    assert texts(read(place, after=3)) == ["two", "three"]
    assert texts(read(place, after=10**9)) == []
    assert read(place, after=10**9).next == 10**9


RECORDS = st.lists(
    st.one_of(
        st.builds(
            record,
            st.binary(max_size=40).map(lambda text: text.replace(b"\n", b"")),
            st.sampled_from(["stdout", "stderr"]),
            st.sampled_from("FP"),
        ),
        st.binary(max_size=80),
        st.sampled_from(
            [b"\n", b"\x00", b"2023-99-99T00:00:00Z stdout F x\n", record("", tag="P")]
        ),
    ),
    max_size=12,
).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(data=RECORDS, cuts=st.lists(st.integers(min_value=0, max_value=2000), max_size=6))
@example(data=record("é".encode()[:1], tag="P") + record("é".encode()[1:]), cuts=[5, 60])
def test_any_bytes_read_as_they_come_give_the_same_lines_as_read_at_once(
    data: bytes, cuts: list[int]
) -> None:
    with shipped_log() as whole, asyncio.Runner() as runner:
        _read_as_it_comes(whole, ShippedLog(runner), data, cuts)


def _read_as_it_comes(whole: ShippedLog, growing: ShippedLog, data: bytes, cuts: list[int]) -> None:
    whole.add(data)
    lines: list[PrintedLine] = []
    after = 0
    for part, is_last in _parts(data, cuts):
        growing.add(part)
        # Two small pages, then what is left: a reader may stop anywhere.
        for limit in (1, 2, 1000):
            page = read(growing, ended=is_last, after=after, limit=limit)
            lines += page.lines
            after = page.next
    assert lines == read_all(whole)
    assert after == (lines[-1].position if lines else 0)
    assert not data or len(data) in (after, after + 1) or not lines


def _parts(data: bytes, cuts: list[int]) -> Iterator[tuple[bytes, bool]]:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        yield data[start:end], False
    yield b"", True


@settings(max_examples=200, deadline=None)
@given(data=RECORDS, count=st.integers(min_value=1, max_value=5), only=st.booleans())
def test_a_tail_is_the_end_of_the_log(data: bytes, count: int, only: bool) -> None:
    with shipped_log() as place:
        place.add(data)
        _check_tail(place, count, only)


def _check_tail(place: ShippedLog, count: int, only: bool) -> None:
    stream = OutputStream.STDERR if only else None
    everything = [line for line in read_all(place) if stream in (None, line.stream)]
    shown = read(place, tail=count, stream=stream).lines
    assert shown == everything[len(everything) - len(shown) :]
    whole = sum(not line.partial for line in shown)
    assert whole == min(count, sum(not line.partial for line in everything)) or (
        # What was never completed counts as one, too.
        whole == count - 1 and shown[-1].partial
    )


def test_a_tail_is_read_from_the_end(place: ShippedLog) -> None:
    place.add(*(record(f"{number:06}") for number in range(100_000)))
    assert texts(read(place, tail=3)) == ["099997", "099998", "099999"]
    assert place.blobs.read_bytes <= 4 * BLOCK_BYTES


def test_the_end_of_a_log_is_reached_without_reading_it(place: ShippedLog) -> None:
    place.add(record("one"))
    position = read(place).next
    read_bytes = place.blobs.read_bytes
    assert read(place, after=position, ended=False).lines == []
    assert place.blobs.read_bytes == read_bytes


def test_a_tail_counts_lines_of_its_stream_across_blocks(place: ShippedLog) -> None:
    rare = [record("rare 1", "stderr"), record("rare 2", "stderr")]
    place.add(rare[0], *(record(1000 * "x") for _ in range(200)), rare[1])
    place.add(*(record(1000 * "y") for _ in range(200)))
    stderr = OutputStream.STDERR
    assert texts(read(place, tail=1, stream=stderr)) == ["rare 2"]
    assert texts(read(place, tail=2, stream=stderr)) == ["rare 1", "rare 2"]
    assert texts(read(place, tail=9, stream=stderr)) == ["rare 1", "rare 2"]


def test_a_line_without_an_end_takes_bounded_memory_and_loses_nothing(place: ShippedLog) -> None:
    pieces = 20 * 1024 * 1024 // 8192
    place.add(*(record(8192 * b"z", tag="P") for _ in range(pieces)), record("end"))
    tracemalloc.start()
    after, size = 0, 0
    while (page := read(place, after=after, ended=False)).next != after:
        assert all(len(line.text) <= MOST_LINE_BYTES for line in page.lines)
        size += sum(len(line.text) for line in page.lines)
        after = page.next
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size == pieces * 8192 + 3
    assert most < 8 * PAGE_BYTES


@pytest.mark.parametrize("text", [b"", b"q"])
def test_a_million_tiny_pieces_take_bounded_memory(place: ShippedLog, text: bytes) -> None:
    place.add(200_000 * record(text, tag="P"))
    tracemalloc.start()
    page = read(place, ended=False, limit=1)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(page.lines) == 1
    assert most < 32 * 1024 * 1024


def test_a_record_that_no_writer_writes_is_cut(place: ShippedLog) -> None:
    place.add(record(1_000_000 * b"w"), record("after"))
    tracemalloc.start()
    page = read(place)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert texts(page) == [LINE_BYTES * "w", "after"]
    assert texts(read(place, tail=1)) == ["after"]
    assert most < 512 * 1024


def test_a_long_line_is_not_cut_within_a_character(place: ShippedLog) -> None:
    text = (20_000 * "€").encode()
    pieces = [text[start : start + 8192] for start in range(0, len(text), 8192)]
    place.add(*(record(piece, tag="P") for piece in pieces), record(""))
    lines = read_all(place)
    assert len(lines) > 1
    assert "".join(line.text for line in lines) == text.decode()


def test_a_page_is_bounded_however_few_lines_are_wanted(place: ShippedLog) -> None:
    place.add(*(record(10_000 * b"x") for _ in range(1000)))
    assert len(read(place).lines) <= PAGE_BYTES // 10_000 + 1
    skipped = read(place, stream=OutputStream.STDERR)
    assert skipped.lines == []
    assert 0 < skipped.next < skipped.total_bytes


def test_nul_bytes_are_kept_in_the_text(place: ShippedLog) -> None:
    place.add(record(b"a\x00b"))
    assert texts(read(place)) == ["a\x00b"]


def test_a_log_that_was_truncated_is_reported_so(place: ShippedLog) -> None:
    place.add(record("one"))
    assert not read(place).truncated
    place.truncate()
    assert read(place).truncated


def test_a_command_that_has_printed_nothing_yet_has_an_empty_log(place: ShippedLog) -> None:
    assert read(place, ended=False) == PrintedPage(lines=[], next=0)
    assert read(place, tail=3) == PrintedPage(lines=[], next=0)


async def end(store: Store, job: Job, log: KeptOutput | None) -> Job:
    """End a command well, with what was kept of its log."""
    return await do(store, job, c.Complete(actor=owner_of(job), exit_code=0, log=log))


async def test_a_job_that_has_not_started_has_an_empty_log(store: Store, tmp_path: Path) -> None:
    logs = CommandLogs(store, open_local(tmp_path, "store"))
    for state in (State.QUEUED, State.CLAIMED):
        page = await logs.read(await job_in(store, state), LogRange())
        assert page.lines == []


async def test_an_ended_log_has_what_the_end_of_its_job_states(
    store: Store, tmp_path: Path
) -> None:
    blobs = open_local(tmp_path, "store")
    job = await running_command(store)
    size = await ship(blobs, job, record("one"))
    job = await end(store, job, KeptOutput(digest="ab", bytes=size, truncated=True))
    page = await CommandLogs(store, blobs).read(job, LogRange())
    assert (texts(page), page.total_bytes, page.truncated) == (["one"], size, True)


async def test_an_ended_log_that_is_not_complete_is_an_error_and_not_a_short_log(
    store: Store, tmp_path: Path
) -> None:
    blobs = open_local(tmp_path, "store")
    job = await running_command(store)
    size = await ship(blobs, job, record("one"))
    job = await end(store, job, KeptOutput(digest="ab", bytes=size + 1))
    with pytest.raises(LogUnreadable, match="not complete"):
        await CommandLogs(store, blobs).read(job, LogRange())


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_log_that_retention_removed_is_erased(
    store: Store, tmp_path: Path, is_known: bool
) -> None:
    blobs = open_local(tmp_path, "store")
    logs = CommandLogs(store, blobs)
    job = await running_command(store)
    size = await ship(blobs, job, record("old"))
    ended = await end(store, job, KeptOutput(digest="ab", bytes=size))
    if is_known:
        await logs.read(ended, LogRange())
    cleaning = await do(store, ended, c.Clean(actor=JANITOR))
    with pytest.raises(LogErased):
        await logs.read(cleaning, LogRange())
    await blobs.delete([one.key async for one in blobs.list("logs")])
    # Also to one who read the job just before.
    with pytest.raises(LogErased):
        await logs.read(ended, LogRange())


async def test_readers_of_one_moment_share_a_listing(store: Store, tmp_path: Path) -> None:
    blobs = _CountedListings()
    logs = CommandLogs(store, blobs)
    jobs = [await running_command(store) for _ in range(2)]
    await asyncio.gather(*(logs.read(job, LogRange()) for job in jobs for _ in range(20)))
    assert blobs.listings == 2
    ended = await end(store, jobs[0], None)
    for _ in range(3):
        await logs.read(ended, LogRange())
    assert blobs.listings == 3


class _CountedListings(ObjectBlobs):
    """Local blobs that count how often they are listed."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), "blobs")
        self.listings = 0

    def list(self, prefix: str) -> AsyncIterator[BlobEntry]:
        """List blobs."""
        self.listings += 1
        return super().list(prefix)


async def test_a_log_whose_segments_are_replaced_while_it_is_read_is_read_whole(
    store: Store, tmp_path: Path
) -> None:
    blobs = _Compacting()
    job = await running_command(store)
    for number in range(5):
        await ship(blobs, job, record(f"{number}"))
    blobs.job = job
    page = await CommandLogs(store, blobs).read(job, LogRange())
    assert texts(page) == [f"{number}" for number in range(5)]
    assert blobs.job is None


class _Compacting(ObjectBlobs):
    """Local blobs whose segments are joined after the first byte of the second one was read."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), "blobs")
        self.job: Job | None = None

    async def read(
        self, key: str, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """Read a blob."""
        async for piece in super().read(key, start=start, end=end):
            yield piece
        if (job := self.job) is not None:
            self.job = None
            found = (await list_log(self, job.id, 1)).segments
            data = b"".join([await read_blob(self, one.key) for one in found])
            await self.put(make_segment(job.id, 1, 0, len(data)).key, data)
            await self.delete([one.key for one in found])
