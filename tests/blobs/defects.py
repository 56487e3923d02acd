"""Places of blobs that are subtly wrong, each in one way: a wrapper around one that is right.

Each names the tests of the contract that must fail on it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Collection
from typing import ClassVar

from msgspec.structs import replace

from holdfast.blobs.objects import ObjectBlobs
from holdfast.errors import NoSuchBlob
from holdfast.ports.blobs import BlobEntry, StoredBlob

READ_BACK = "test_what_is_put_is_read_back"
STREAM = "test_a_stream_is_put_as_one_blob"
EMPTY_STREAM = "test_an_empty_stream_is_an_empty_blob"
PIECES = "test_a_large_blob_comes_back_in_pieces"
REPLACES = "test_a_put_replaces_what_was_there"
RANGE = "test_a_range_has_its_bytes_and_no_others"
EMPTY_RANGE = "test_a_range_of_an_empty_blob_has_no_bytes"
MISSING = "test_a_blob_that_is_not_there_is_not_an_empty_one"
BROKEN = "test_a_source_that_raises_leaves_nothing"
BROKEN_KEEPS = "test_a_source_that_raises_leaves_what_was_there"
CANCELLED = "test_a_cancelled_put_leaves_nothing"
COMPLETE = "test_a_blob_has_no_key_before_it_is_complete"
ORDER = "test_a_listing_has_what_is_below_a_prefix_in_the_order_of_keys"
LONG_LISTING = "test_a_listing_is_complete_however_long_it_is"
MODIFIED = "test_a_listing_knows_when_a_blob_was_written"
DELETES = "test_what_is_deleted_is_gone_and_the_rest_is_not"
DELETES_MISSING = "test_deleting_what_is_not_there_is_success"
REUSE = "test_a_key_can_be_used_again_after_it_was_deleted"
BESIDE = "test_puts_and_deletes_beside_each_other_do_not_disturb"
AT_ONCE = "test_of_puts_at_once_under_one_key_one_is_there_as_a_whole"
BAD_KEY = "test_a_key_that_holdfast_would_not_make_is_refused"


class WrappedBlobs:
    """A place that is right, to be made wrong by a subclass."""

    caught_by: ClassVar[tuple[str, ...]] = ()

    def __init__(self, inner: ObjectBlobs) -> None:
        self.inner = inner

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        return await self.inner.put(key, data)

    async def create(self, key: str, data: bytes) -> bool:
        return await self.inner.create(key, data)

    def read(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        return self.inner.read(key, start=start, end=end)

    async def size(self, key: str) -> int | None:
        return await self.inner.size(key)

    def list(self, prefix: str) -> AsyncIterator[BlobEntry]:
        return self.inner.list(prefix)

    async def room(self) -> int | None:
        return await self.inner.room()

    async def delete(self, keys: Collection[str]) -> None:
        await self.inner.delete(keys)


async def _whole(data: bytes | AsyncIterable[bytes]) -> bytes:
    return data if isinstance(data, bytes) else b"".join([piece async for piece in data])


class ReturnsTheDigestOfTheKey(WrappedBlobs):
    caught_by = (READ_BACK, STREAM, EMPTY_STREAM, PIECES)

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        stored = await self.inner.put(key, data)
        return replace(stored, digest=hashlib.sha256(key.encode()).hexdigest())


class LosesTheLastPiece(WrappedBlobs):
    caught_by = (STREAM, PIECES)

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        if isinstance(data, bytes):
            return await self.inner.put(key, data)
        pieces = [piece async for piece in data]
        return await self.inner.put(key, b"".join([one for one in pieces if one][:-1]))


class WritesNoEmptyBlob(WrappedBlobs):
    caught_by = (READ_BACK, EMPTY_STREAM, EMPTY_RANGE)

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        whole = await _whole(data)
        if not whole:
            return StoredBlob(0, hashlib.sha256().hexdigest())
        return await self.inner.put(key, whole)


class ReadsAllAtOnce(WrappedBlobs):
    caught_by = (PIECES,)

    async def read(
        self, key: str, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        pieces = [piece async for piece in self.inner.read(key, start=start, end=end)]
        yield b"".join(pieces)


class KeepsTheFirst(WrappedBlobs):
    caught_by = (REPLACES,)

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        whole = await _whole(data)
        if await self.inner.size(key) is None:
            return await self.inner.put(key, whole)
        return StoredBlob(len(whole), hashlib.sha256(whole).hexdigest())


class OverwritesInPlace(WrappedBlobs):
    """A shorter blob keeps the rest of a longer one."""

    caught_by = (REPLACES,)

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        whole = await _whole(data)
        there = b""
        if await self.inner.size(key) is not None:
            there = b"".join([piece async for piece in self.inner.read(key)])
        await self.inner.put(key, whole + there[len(whole) :])
        return StoredBlob(len(whole), hashlib.sha256(whole).hexdigest())


class IncludesTheEnd(WrappedBlobs):
    caught_by = (RANGE,)

    def read(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        return self.inner.read(key, start=start, end=None if end is None else end + 1)


class ReadsWhatIsMissingAsEmpty(WrappedBlobs):
    caught_by = (MISSING,)

    async def read(
        self, key: str, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        try:
            async for piece in self.inner.read(key, start=start, end=end):
                yield piece
        except NoSuchBlob:
            return


class SizeOfWhatIsMissingIsZero(WrappedBlobs):
    caught_by = (MISSING, BROKEN, CANCELLED, COMPLETE, DELETES)

    async def size(self, key: str) -> int | None:
        return await self.inner.size(key) or 0


class WritesAsItComes(WrappedBlobs):
    """What was written before the source failed is under the key."""

    caught_by = (BROKEN, BROKEN_KEEPS, CANCELLED, COMPLETE)

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        if isinstance(data, bytes):
            return await self.inner.put(key, data)
        whole = b""
        stored = await self.inner.put(key, whole)
        async for piece in data:
            whole += piece
            stored = await self.inner.put(key, whole)
        return stored


class ListsInReverse(WrappedBlobs):
    caught_by = (ORDER, LONG_LISTING)

    async def list(self, prefix: str) -> AsyncIterator[BlobEntry]:
        for entry in reversed([entry async for entry in self.inner.list(prefix)]):
            yield entry


class ListsByDirectory(WrappedBlobs):
    """In the order of a sorted walk: `b/c` before `b-/z`."""

    caught_by = (ORDER,)

    async def list(self, prefix: str) -> AsyncIterator[BlobEntry]:
        entries = [entry async for entry in self.inner.list(prefix)]
        for entry in sorted(entries, key=lambda one: one.key.split("/")):
            yield entry


class ListsByText(WrappedBlobs):
    """A prefix of `a` includes `aa/b`."""

    caught_by = (ORDER,)

    async def list(self, prefix: str) -> AsyncIterator[BlobEntry]:
        for word in (prefix, f"{prefix}{prefix[-1]}"):
            async for entry in self.inner.list(word):
                yield entry


class ListsOnePage(WrappedBlobs):
    caught_by = (LONG_LISTING,)

    async def list(self, prefix: str) -> AsyncIterator[BlobEntry]:
        number = 0
        async for entry in self.inner.list(prefix):
            if number < 1000:
                yield entry
            number += 1


class KnowsNoTime(WrappedBlobs):
    caught_by = (MODIFIED,)

    async def list(self, prefix: str) -> AsyncIterator[BlobEntry]:
        async for entry in self.inner.list(prefix):
            yield replace(entry, modified_at=0)


class DeletesOnlyOne(WrappedBlobs):
    caught_by = (DELETES, LONG_LISTING)

    async def delete(self, keys: Collection[str]) -> None:
        await self.inner.delete([*keys][:1])


class DeletesWhatIsBeside(WrappedBlobs):
    caught_by = (DELETES,)

    async def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            beside = [entry.key async for entry in self.inner.list(key.partition("/")[0])]
            await self.inner.delete(beside)


class RefusesToDeleteWhatIsMissing(WrappedBlobs):
    caught_by = (DELETES_MISSING,)

    async def delete(self, keys: Collection[str]) -> None:
        for key in keys:
            if await self.inner.size(key) is None:
                raise NoSuchBlob(key)
            await self.inner.delete([key])


class RemembersWhatWasDeleted(WrappedBlobs):
    """A key that was deleted stays so, as behind a cache."""

    caught_by = (REUSE, BESIDE)

    def __init__(self, inner: ObjectBlobs) -> None:
        super().__init__(inner)
        self._deleted: set[str] = set()

    async def delete(self, keys: Collection[str]) -> None:
        await self.inner.delete(keys)
        self._deleted |= set(keys)

    async def read(
        self, key: str, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        if key in self._deleted:
            raise NoSuchBlob(key)
        async for piece in self.inner.read(key, start=start, end=end):
            yield piece


class SharesOneTemporaryFile(WrappedBlobs):
    """Streams under one key are written through one file."""

    caught_by = (AT_ONCE,)

    def __init__(self, inner: ObjectBlobs) -> None:
        super().__init__(inner)
        self._files: dict[str, bytearray] = {}

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        if isinstance(data, bytes):
            return await self.inner.put(key, data)
        file = self._files.setdefault(key, bytearray())
        async for piece in data:
            file += piece
        return await self.inner.put(key, bytes(file))


class CleansKeys(WrappedBlobs):
    """Makes a valid key of an invalid one."""

    caught_by = (BAD_KEY,)

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        return await self.inner.put("".join(filter(str.isalnum, key)) or "x", data)


DEFECTS: tuple[type[WrappedBlobs], ...] = (
    ReturnsTheDigestOfTheKey,
    LosesTheLastPiece,
    WritesNoEmptyBlob,
    ReadsAllAtOnce,
    KeepsTheFirst,
    OverwritesInPlace,
    IncludesTheEnd,
    ReadsWhatIsMissingAsEmpty,
    SizeOfWhatIsMissingIsZero,
    WritesAsItComes,
    ListsInReverse,
    ListsByDirectory,
    ListsByText,
    ListsOnePage,
    KnowsNoTime,
    DeletesOnlyOne,
    DeletesWhatIsBeside,
    RefusesToDeleteWhatIsMissing,
    RemembersWhatWasDeleted,
    SharesOneTemporaryFile,
    CleansKeys,
)
