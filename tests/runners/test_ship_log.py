"""What a command prints is shipped while it runs, whole, once, and with secrets masked."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import tracemalloc
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from holdfast.blobs.objects import ObjectBlobs
from holdfast.blobs.place import read_place
from holdfast.errors import BlobsUnavailable
from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job, KeptOutput
from holdfast.ports.blobs import BlobEntry, Blobs, StoredBlob, read_blob
from holdfast.ports.box import LOG_FILE, TRUNCATED_FILE, Box
from holdfast.queries import command_log
from holdfast.queries.blob_keys import logs_prefix
from holdfast.queries.command_log import CommandLogs, LogRange
from holdfast.queries.log_records import LineReader, PrintedLine
from holdfast.queries.log_segments import LogListing, list_log, make_segment
from holdfast.runners.command import ship_log
from holdfast.runners.command.redact import Redactor
from holdfast.runners.command.ship_log import MOST_SMALL_SEGMENTS, LogShipper
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do
from holdfast.wiring import Address, open_place, opened
from tests.support.s3 import S3Server
from tests.support.spool import make_box, record, running_command, spool

LIMIT_SECONDS = 60.0


@pytest.fixture
async def blobs(blobs_address: str) -> Blobs:
    """A directory, then a bucket."""
    return await open_place(read_place(blobs_address), "store")


@pytest.fixture
def memory() -> Blobs:
    """Where it does not matter what keeps the blobs."""
    return ObjectBlobs(MemoryStore(), "store")


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A box; its directory is there."""
    directory = tmp_path / "box"
    directory.mkdir()
    return make_box(mint_id(), 1, directory)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look often."""
    monkeypatch.setattr(ship_log, "POLL_SECONDS", 0.005)
    monkeypatch.setattr(ship_log, "SHIP_SECONDS", 0.005)
    monkeypatch.setattr(ship_log, "FIRST_PAUSE_SECONDS", 0.005)


@asynccontextmanager
async def running(shipper: LogShipper) -> AsyncIterator[asyncio.Task[None]]:
    """Ship as long as the block runs; then it is cancelled."""
    task = asyncio.create_task(shipper.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def listing_of(blobs: Blobs, box: Box) -> LogListing:
    """List the log of a box."""
    return await list_log(blobs, box.job, box.attempt)


async def shipped(blobs: Blobs, box: Box, size: int) -> LogListing:
    """Wait until so many bytes of a log are shipped."""
    return await listed(blobs, box, lambda listing: listing.end >= size)


async def listed(blobs: Blobs, box: Box, wanted: Callable[[LogListing], bool]) -> LogListing:
    """List a log until the listing is as wanted."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            listing = await listing_of(blobs, box)
            if wanted(listing):
                return listing
            await asyncio.sleep(0.005)


async def keys_of(blobs: Blobs, box: Box) -> list[str]:
    """Return the names of all blobs of a log."""
    prefix = logs_prefix(box.job, box.attempt)
    return [entry.key.removeprefix(f"{prefix}/") async for entry in blobs.list(prefix)]


async def content_of(blobs: Blobs, box: Box) -> bytes:
    """Read the one blob of an ended log."""
    [segment] = (await listing_of(blobs, box)).found
    return await read_blob(blobs, segment.key)


async def test_a_log_grows_while_its_command_runs_and_is_one_blob_at_the_end(
    blobs: Blobs, box: Box
) -> None:
    shipper = LogShipper(blobs, box)
    written = b""
    async with running(shipper):
        for number in range(3):
            one = record(f"line {number}")
            written += one
            spool(box.directory, one)
            await shipped(blobs, box, len(written))
    # The start of a record that the command did not live to complete.
    half = record("half")[:-1]
    spool(box.directory, half)
    written += half
    kept = await shipper.finish()
    assert kept == KeptOutput(digest=sha256(written).hexdigest(), bytes=len(written))
    assert await keys_of(blobs, box) == [f"{0:016}-{len(written)}"]
    assert await content_of(blobs, box) == written
    assert await shipper.finish() == kept
    assert await LogShipper(blobs, box).finish() == kept


async def test_only_whole_records_are_shipped_while_the_command_runs(
    memory: Blobs, box: Box
) -> None:
    whole, start = record("one"), record("two")[:-3]
    async with running(LogShipper(memory, box)):
        spool(box.directory, whole, start)
        assert (await shipped(memory, box, len(whole))).end == len(whole)
        spool(box.directory, record("two")[-3:])
        await shipped(memory, box, 2 * len(whole))


async def test_a_command_that_prints_nothing_leaves_no_blob(blobs: Blobs, box: Box) -> None:
    shipper = LogShipper(blobs, box)
    async with running(shipper):
        await asyncio.sleep(0.03)
    empty = KeptOutput(digest=sha256().hexdigest(), bytes=0)
    assert await shipper.finish() == empty
    spool(box.directory)
    assert await shipper.finish() == empty
    assert await keys_of(blobs, box) == []


async def test_a_truncated_log_is_marked_while_its_command_runs(blobs: Blobs, box: Box) -> None:
    shipper = LogShipper(blobs, box)
    spool(box.directory, record("one"))
    (box.directory / TRUNCATED_FILE).touch()
    async with running(shipper):
        await listed(blobs, box, lambda listing: listing.truncated)
    assert (await shipper.finish()).truncated
    assert (await listing_of(blobs, box)).truncated


async def test_a_log_of_many_small_parts_stays_a_short_listing(memory: Blobs, box: Box) -> None:
    size = 0
    shipper = LogShipper(memory, box)
    async with running(shipper):
        for number in range(100):
            size += len(record(f"{number:03}"))
            spool(box.directory, record(f"{number:03}"))
            listing = await shipped(memory, box, size)
            assert len(listing.segments) <= MOST_SMALL_SEGMENTS
    written = (box.directory / LOG_FILE).read_bytes()
    assert (await shipper.finish()).digest == sha256(written).hexdigest()


async def test_fifty_megabytes_take_bounded_memory(blobs: Blobs, box: Box) -> None:
    data = record(8100 * b"x")
    for _ in range(13):
        spool(box.directory, 512 * data)
    written = (box.directory / LOG_FILE).stat().st_size
    assert written > 50 * 1024 * 1024
    shipper = LogShipper(blobs, box)
    tracemalloc.start()
    kept = await shipper.finish()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept.bytes == written
    assert await keys_of(blobs, box) == [f"{0:016}-{written}"]
    # Parts of a large upload to a bucket are about 5 MB, and two are on their way.
    assert most < 25 * 1024 * 1024


async def test_another_shipper_continues_where_the_last_one_stopped(blobs: Blobs, box: Box) -> None:
    spool(box.directory, record("one"))
    async with running(LogShipper(blobs, box)):
        first = await shipped(blobs, box, 1)
    spool(box.directory, record("two"))
    async with running(LogShipper(blobs, box)):
        both = await shipped(blobs, box, 2 * first.end)
    assert [(one.start, one.end) for one in both.found] == [
        (0, first.end),
        (first.end, 2 * first.end),
    ]


async def test_a_shipper_that_is_stopped_while_it_reads_ships_the_rest_once(
    memory: Blobs, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool(box.directory, record("one"), record("half")[:-2])
    has_read, may_return = threading.Event(), threading.Event()
    read_masked = ship_log._read_masked

    def read_slowly(path: Path, start: int, redactor: Redactor) -> tuple[int, bytes]:
        found = read_masked(path, start, redactor)
        has_read.set()
        may_return.wait(LIMIT_SECONDS)
        return found

    monkeypatch.setattr(ship_log, "_read_masked", read_slowly)
    shipper = LogShipper(memory, box)
    async with running(shipper):
        assert await asyncio.to_thread(has_read.wait, LIMIT_SECONDS)
    may_return.set()
    await shipper.finish()
    assert await content_of(memory, box) == (box.directory / LOG_FILE).read_bytes()


async def test_what_a_shipper_left_that_died_while_it_joined_is_removed(
    blobs: Blobs, box: Box
) -> None:
    data = record("one") + record("two")
    spool(box.directory, data)
    size = len(record("one"))
    # Both parts, an overlapping one, and a whole that lacks the last line.
    for start, end in ((0, size), (size, 2 * size), (size, 2 * size - 1), (0, size + 2)):
        await blobs.put(make_segment(box.job, 1, start, end).key, data[start:end])
    kept = await LogShipper(blobs, box).finish()
    assert kept.bytes == len(data)
    assert await keys_of(blobs, box) == [f"{0:016}-{len(data)}"]
    assert await content_of(blobs, box) == data


async def test_a_segment_that_vanished_or_was_damaged_is_shipped_again(
    blobs: Blobs, box: Box
) -> None:
    shipper = LogShipper(blobs, box)
    size = 0
    async with running(shipper):
        for number in range(3):
            size += spool_one(box, f"{number}")
            await shipped(blobs, box, size)
        listing = await shipped(blobs, box, size)
    damaged, vanished, _ = listing.segments
    await blobs.put(damaged.key, b"x")
    await blobs.delete([vanished.key])
    kept = await shipper.finish()
    assert (kept.bytes, await keys_of(blobs, box)) == (size, [f"{0:016}-{size}"])
    assert await content_of(blobs, box) == (box.directory / LOG_FILE).read_bytes()


def spool_one(box: Box, text: str) -> int:
    """Print a line; return how long its record is."""
    spool(box.directory, record(text))
    return len(record(text))


async def test_what_was_shipped_is_kept_though_the_spool_is_gone(blobs: Blobs, box: Box) -> None:
    size = spool_one(box, "one") + spool_one(box, "two")
    async with running(LogShipper(blobs, box)):
        await shipped(blobs, box, size)
    (box.directory / LOG_FILE).unlink()
    kept = await LogShipper(blobs, box).finish()
    assert (kept.bytes, kept.truncated) == (size, True)


@pytest.mark.parametrize("kind", ["link", "pipe"])
async def test_nothing_but_a_file_is_shipped(
    memory: Blobs, box: Box, tmp_path: Path, kind: str
) -> None:
    other = tmp_path / "other"
    other.write_bytes(record("not for you"))
    if kind == "link":
        (box.directory / LOG_FILE).symlink_to(other)
    else:
        os.mkfifo(box.directory / LOG_FILE)
    shipper = LogShipper(memory, box)
    async with running(shipper) as task:
        await asyncio.sleep(0.03)
        assert not task.done()
    assert (await shipper.finish()).bytes == 0
    assert await keys_of(memory, box) == []


class TroubledBlobs(ObjectBlobs):
    """Blobs that fail as often as is set, before or after they have done what was asked for."""

    def __init__(self) -> None:
        objects = MemoryStore()
        super().__init__(objects, "store")
        self.calm = ObjectBlobs(objects, "store")
        """The same, without trouble."""
        self.failures = 0

    def _fail(self) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise BlobsUnavailable("not now")

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        """Write, and answer or not."""
        if self.failures % 2 == 0:
            self._fail()
        stored = await super().put(key, data)
        self._fail()
        return stored

    async def list(self, prefix: str) -> AsyncIterator[BlobEntry]:
        """List, or not."""
        self._fail()
        async for entry in super().list(prefix):
            yield entry


async def test_trouble_of_the_blobs_is_waited_out_and_logged_once(
    box: Box, caplog: pytest.LogCaptureFixture
) -> None:
    blobs = TroubledBlobs()
    caplog.set_level(logging.INFO)
    size = spool_one(box, "one")
    shipper = LogShipper(blobs, box)
    async with running(shipper):
        await shipped(blobs.calm, box, size)
        blobs.failures = 5
        size += spool_one(box, "two")
        await shipped(blobs.calm, box, size)
        await listed(blobs.calm, box, lambda _: blobs.failures == 0)
    warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 1, caplog.text
    blobs.failures = 3
    size += spool_one(box, "three")
    for _ in range(3):
        with pytest.raises(BlobsUnavailable):
            await shipper.finish()
    kept = await shipper.finish()
    assert kept.digest == sha256((box.directory / LOG_FILE).read_bytes()).hexdigest()
    assert await keys_of(blobs, box) == [f"{0:016}-{size}"]


async def test_a_bucket_that_is_gone_for_a_while_has_the_whole_log_in_the_end(
    s3_server: S3Server, s3_bucket: str, s3_address: str, box: Box
) -> None:
    blobs = await open_place(read_place(s3_address), "store")
    size = spool_one(box, "one")
    shipper = LogShipper(blobs, box)
    async with running(shipper):
        await shipped(blobs, box, size)
        s3_server.drop_bucket(s3_bucket)
        size += spool_one(box, "two")
        with pytest.raises(BlobsUnavailable):
            await LogShipper(blobs, box).finish()
        s3_server.create_bucket(s3_bucket)
        await shipped(blobs, box, size)
    assert (await shipper.finish()).bytes == size
    assert await content_of(blobs, box) == (box.directory / LOG_FILE).read_bytes()


@pytest.mark.parametrize("is_continued", [True, False])
async def test_a_secret_is_masked_also_across_shippers(
    blobs: Blobs, box: Box, is_continued: bool
) -> None:
    secrets = [b"hunter22", b"abc"]
    first, held = record("is hunter22 abc") + record("x", tag="P"), record("my hunt", tag="P")
    spool(box.directory, first, held)
    shipper = LogShipper(blobs, box, secrets)
    async with running(shipper):
        listing = await shipped(blobs, box, len(first))
        assert listing.end == len(first)
    if is_continued:
        shipper = LogShipper(blobs, box, secrets)
    spool(box.directory, record("er22 yes"))
    await shipper.finish()
    shown = record("is ******** abc") + record("x", tag="P")
    shown += record("my ****", tag="P") + record("**** yes")
    assert await content_of(blobs, box) == shown


async def test_other_lines_do_not_wait_for_the_rest_of_what_may_be_a_secret(
    memory: Blobs, box: Box
) -> None:
    spool(box.directory, record("my hunt", tag="P"), record("one", "stderr"))
    shipper = LogShipper(memory, box, [b"hunter22"])
    async with running(shipper):
        both = await shipped(memory, box, (box.directory / LOG_FILE).stat().st_size)
    assert b"hunt" not in await read_blob(memory, both.segments[0].key)


@pytest.mark.parametrize("seed", range(4))
async def test_whatever_is_killed_when_readers_read_exactly_the_spool(
    blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(ship_log, "MOST_SMALL_SEGMENTS", 3)
    monkeypatch.setattr(ship_log, "SEGMENT_BYTES", 400)
    monkeypatch.setattr(command_log, "SHARED_SECONDS", 0)
    secrets = [b"hunter22"] if seed % 2 else []
    async with opened(Address(engine="sqlite", place=":memory:")) as store:
        job = await running_command(store)
        box = make_box(job.id, job.attempt, tmp_path / "box")
        reader = RandomReader(CommandLogs(store, blobs), chance)
        shipper = LogShipper(blobs, box, secrets)
        for _ in range(25):
            if chance.random() < 0.5:
                shipper = LogShipper(blobs, box, secrets)
            async with running(shipper):
                for _ in range(chance.randrange(4)):
                    print_something(box, chance)
                    await asyncio.sleep(chance.choice([0, 0.001, 0.01]))
                    await reader.read(job)
        for _ in range(5):
            # The end is cut short, too, and repeated.
            finishing = asyncio.create_task(shipper.finish())
            await asyncio.wait([finishing], timeout=chance.choice([0, 0.001, 0.01]))
            finishing.cancel()
            await asyncio.gather(finishing, return_exceptions=True)
            await reader.read(job)
        kept = await LogShipper(blobs, box, secrets).finish()
        await reader.read(
            await do(store, job, c.Complete(actor=owner_of(job), exit_code=0, log=kept))
        )
    written = (box.directory / LOG_FILE).read_bytes()
    if secrets:
        assert b"hunter22" in written
        written = written.replace(b"hunter22", b"********")
    assert await content_of(blobs, box) == written
    assert kept.digest == sha256(written).hexdigest()
    lines = LineReader(0)
    assert reader.lines == [*lines.feed(written), *lines.finish()]


class RandomReader:
    """Reads a log in pages of random sizes."""

    def __init__(self, logs: CommandLogs, chance: random.Random) -> None:
        self.lines: list[PrintedLine] = []
        self._logs, self._chance = logs, chance
        self._after = 0

    async def read(self, job: Job) -> None:
        """Read up to the present end."""
        while True:
            limit = self._chance.choice([1, 2, 5, 100])
            page = await self._logs.read(job, LogRange(after=self._after, limit=limit))
            self.lines += page.lines
            if page.next == self._after:
                return
            self._after = page.next


def print_something(box: Box, chance: random.Random) -> None:
    """Print to a box; a piece is not a part of a secret."""
    texts = [b"x" * chance.randrange(300), b"is hunter22 ok", b"done", b""]
    lines = [
        record(chance.choice(texts), chance.choice(["stdout", "stderr"]), chance.choice("FFP"))
        for _ in range(chance.randrange(1, 5))
    ]
    # A write may end within a record, which the next one completes.
    data = b"".join(lines)
    cut = chance.randrange(len(data))
    spool(box.directory, data[:cut])
    spool(box.directory, data[cut:])
