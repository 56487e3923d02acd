"""The contract that every place of blobs keeps, as a class of tests with one fixture.

    class TestMyBlobs(BlobContract):
        @pytest_asyncio.fixture
        async def blobs(self, tmp_path):
            yield MyBlobs(…)

The fixture gives an empty place. Where a test needs another process that looks at the same place,
it opens no second one: what was put must be there for every reader when the put returns.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from hashlib import sha256

import pytest

from holdfast.errors import NoSuchBlob
from holdfast.ports.blobs import CHUNK_BYTES, Blobs, StoredBlob, read_blob

LIMIT_SECONDS = 60.0
"""How long a test waits for what must come."""
BAD_KEYS = (
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    "..",
    "a/../b",
    "./a",
    "a/.",
    "a b",
    "a\0",
    "é",
    "a%2e",
    "a\n",
)
SIZES = (0, 1, 511, 8192, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7)
LARGE = 12_000_000
"""Larger than two parts of a multipart upload."""
RANGES = (
    (0, 1),
    (0, 0),
    (1, 3),
    (5, 10),
    (9, 10),
    (9, 11),
    (3, None),
    (10, None),
    (99, 100),
    (7, 3),
)


class SourceFailed(Exception):
    """What a source of the contract raises."""


async def stream(*pieces: bytes) -> AsyncIterator[bytes]:
    """Yield pieces, each after a turn of the loop."""
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


async def broken_stream(*pieces: bytes) -> AsyncIterator[bytes]:
    """Yield pieces, then raise."""
    async for piece in stream(*pieces):
        yield piece
    raise SourceFailed


def stored(data: bytes) -> StoredBlob:
    """Return what a put of these bytes must return."""
    return StoredBlob(len(data), sha256(data).hexdigest())


def data_of(size: int) -> bytes:
    """Return bytes in which no part is like another."""
    return random.Random(size).randbytes(size)


async def keys_below(blobs: Blobs, prefix: str) -> list[str]:
    """List the keys below a prefix."""
    return [entry.key async for entry in blobs.list(prefix)]


class BlobContract:
    """Subclass it and give the fixture `blobs`: an empty place."""

    @pytest.mark.parametrize("size", SIZES)
    async def test_what_is_put_is_read_back(self, blobs: Blobs, size: int) -> None:
        data = data_of(size)

        assert await blobs.put("a/b", data) == stored(data)
        assert await blobs.size("a/b") == size
        assert await read_blob(blobs, "a/b") == data

    async def test_a_stream_is_put_as_one_blob(self, blobs: Blobs) -> None:
        pieces = [data_of(size) for size in (1, 0, 70_000, 3, CHUNK_BYTES + 1, 0)]

        assert await blobs.put("a", stream(*pieces)) == stored(b"".join(pieces))
        assert await read_blob(blobs, "a") == b"".join(pieces)

    async def test_an_empty_stream_is_an_empty_blob(self, blobs: Blobs) -> None:
        assert await blobs.put("a", stream()) == stored(b"")
        assert (await blobs.size("a"), await read_blob(blobs, "a")) == (0, b"")

    @pytest.mark.parametrize("as_stream", [False, True])
    async def test_a_large_blob_comes_back_in_pieces(self, blobs: Blobs, as_stream: bool) -> None:
        data = data_of(LARGE)
        pieces = [data[start : start + 100_000] for start in range(0, LARGE, 100_000)]

        assert await blobs.put("a", stream(*pieces) if as_stream else data) == stored(data)

        digest, longest = sha256(), 0
        async for piece in blobs.read("a"):
            assert isinstance(piece, bytes)
            digest.update(piece)
            longest = max(longest, len(piece))
        assert digest.hexdigest() == stored(data).digest
        assert 0 < longest <= 4 * CHUNK_BYTES

    async def test_a_put_replaces_what_was_there(self, blobs: Blobs) -> None:
        await blobs.put("a", b"the first, and longer")
        await blobs.put("a", b"second")

        assert await read_blob(blobs, "a") == b"second"
        assert await blobs.size("a") == 6

    @pytest.mark.parametrize(("start", "end"), RANGES)
    async def test_a_range_has_its_bytes_and_no_others(
        self, blobs: Blobs, start: int, end: int | None
    ) -> None:
        await blobs.put("a", b"0123456789")

        got = b"".join([piece async for piece in blobs.read("a", start=start, end=end)])

        assert got == b"0123456789"[start:end]

    async def test_a_range_of_an_empty_blob_has_no_bytes(self, blobs: Blobs) -> None:
        await blobs.put("a", b"")

        assert [piece async for piece in blobs.read("a", start=0, end=5)] == []

    @pytest.mark.parametrize("wanted", [(0, None), (1, None), (0, 1)])
    async def test_a_blob_that_is_not_there_is_not_an_empty_one(
        self, blobs: Blobs, wanted: tuple[int, int | None]
    ) -> None:
        await blobs.put("a/b", b"1")

        assert await blobs.size("a/none") is None
        assert await blobs.size("a") is None
        with pytest.raises(NoSuchBlob, match="a/none"):
            await anext(blobs.read("a/none", start=wanted[0], end=wanted[1]), b"")

    @pytest.mark.parametrize("size", [0, 10, CHUNK_BYTES, LARGE])
    async def test_a_source_that_raises_leaves_nothing(self, blobs: Blobs, size: int) -> None:
        with pytest.raises(SourceFailed):
            await blobs.put("a/b", broken_stream(data_of(size)))

        assert await blobs.size("a/b") is None
        assert await keys_below(blobs, "a") == []

    async def test_a_source_that_raises_leaves_what_was_there(self, blobs: Blobs) -> None:
        await blobs.put("a", b"first")

        with pytest.raises(SourceFailed):
            await blobs.put("a", broken_stream(b"second"))

        assert await read_blob(blobs, "a") == b"first"

    @pytest.mark.parametrize("size", [10, LARGE])
    async def test_a_cancelled_put_leaves_nothing(self, blobs: Blobs, size: int) -> None:
        reached = asyncio.Event()

        async def stuck() -> AsyncIterator[bytes]:
            yield data_of(size)
            reached.set()
            await asyncio.Event().wait()

        putting = asyncio.create_task(blobs.put("a/b", stuck()))
        async with asyncio.timeout(LIMIT_SECONDS):
            await reached.wait()
            putting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await putting

        assert await blobs.size("a/b") is None
        assert await keys_below(blobs, "a") == []

    async def test_a_blob_has_no_key_before_it_is_complete(self, blobs: Blobs) -> None:
        seen: list[int | None] = []

        async def watched() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield data_of(CHUNK_BYTES)
                seen.append(await blobs.size("a"))

        await blobs.put("a", watched())

        assert seen == [None] * 3
        assert await blobs.size("a") == 3 * CHUNK_BYTES

    async def test_a_listing_has_what_is_below_a_prefix_in_the_order_of_keys(
        self, blobs: Blobs
    ) -> None:
        below = ["a/b/c", "a/b", "a-b/c", "a.b", "a/b.c", "a/b-/z", "a/B", "a/0", "a/b0/c/d/e"]
        # Without "a/b": no key is below another.
        keys = [key for key in below if key != "a/b"] + ["aa/b", "b/a/x"]
        for number, key in enumerate(keys):
            await blobs.put(key, bytes(number))

        found = [(entry.key, entry.bytes) async for entry in blobs.list("a")]

        expected = [(key, number) for number, key in enumerate(keys) if key.startswith("a/")]
        assert found == sorted(expected)
        assert await keys_below(blobs, "a/b") == ["a/b/c"]
        assert await keys_below(blobs, "none") == []

    async def test_a_listing_is_complete_however_long_it_is(self, blobs: Blobs) -> None:
        names = [f"{number % 7}/{number:04}" for number in range(1100)]
        for start in range(0, len(names), 20):
            some = names[start : start + 20]
            await asyncio.gather(*(blobs.put(f"many/{name}", b"x") for name in some))

        assert await keys_below(blobs, "many") == [f"many/{name}" for name in sorted(names)]

        await blobs.delete([f"many/{name}" for name in names])
        assert await keys_below(blobs, "many") == []

    async def test_a_listing_knows_when_a_blob_was_written(self, blobs: Blobs) -> None:
        await blobs.put("a/first", b"1")
        await blobs.put("a/second", b"2")

        first, second = [entry.modified_at async for entry in blobs.list("a")]

        assert 1_600_000_000_000_000 < first <= second

    async def test_what_is_deleted_is_gone_and_the_rest_is_not(self, blobs: Blobs) -> None:
        for key in ("a/1", "a/2", "a/3", "b/1"):
            await blobs.put(key, b"x")

        await blobs.delete(["a/1", "a/3"])

        assert await keys_below(blobs, "a") == ["a/2"]
        assert await blobs.size("a/1") is None
        assert await read_blob(blobs, "b/1") == b"x"

    async def test_deleting_what_is_not_there_is_success(self, blobs: Blobs) -> None:
        await blobs.put("a/2", b"x")

        await blobs.delete(["none", "a/1", "a/2", "a/3", "a/2"])
        await blobs.delete(["a/2"])
        await blobs.delete([])

        assert await keys_below(blobs, "a") == []

    async def test_a_key_can_be_used_again_after_it_was_deleted(self, blobs: Blobs) -> None:
        for text in (b"one", b"two"):
            await blobs.put("a/b/c", text)
            assert await read_blob(blobs, "a/b/c") == text
            await blobs.delete(["a/b/c"])

    async def test_puts_and_deletes_beside_each_other_do_not_disturb(self, blobs: Blobs) -> None:
        async def come_and_go(number: int) -> None:
            for turn in range(10):
                await blobs.put(f"a/b/{number}", f"{number} {turn}".encode())
                assert await read_blob(blobs, f"a/b/{number}") == f"{number} {turn}".encode()
                await blobs.delete([f"a/b/{number}"])

        await asyncio.gather(*map(come_and_go, range(8)))

        assert await keys_below(blobs, "a") == []

    async def test_of_puts_at_once_under_one_key_one_is_there_as_a_whole(
        self, blobs: Blobs
    ) -> None:
        texts = [bytes([number]) * 50_000 for number in range(8)]

        await asyncio.gather(*(blobs.put("a", stream(text[:1], text[1:])) for text in texts))

        assert await read_blob(blobs, "a") in texts

    @pytest.mark.parametrize("key", BAD_KEYS)
    async def test_a_key_that_holdfast_would_not_make_is_refused(
        self, blobs: Blobs, key: str
    ) -> None:
        with pytest.raises(ValueError, match="invalid key"):
            await blobs.put(key, b"")
        with pytest.raises(ValueError, match="invalid key"):
            await blobs.size(key)
        with pytest.raises(ValueError, match="invalid key"):
            await anext(blobs.read(key), b"")
        with pytest.raises(ValueError, match="invalid key"):
            await blobs.delete([key])
