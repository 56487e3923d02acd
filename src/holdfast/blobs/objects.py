"""Blobs in an object store: what the library does not promise by itself.

It bounds each wait, so that an outage is an error; distinguishes a blob that is not there from a
place that is not there; and ends an upload that was given up, whose parts the library would leave.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore, S3Store

from holdfast.blobs.place import BucketPlace
from holdfast.errors import BlobsUnavailable, NoSuchBlob
from holdfast.ports.blobs import CHUNK_BYTES, BlobEntry, StoredBlob

if TYPE_CHECKING:
    from obstore import GetResult, ObjectMeta, PutResult
    from obstore.store import ClientConfig, RetryConfig, S3Config

WAIT_SECONDS = 30.0
"""How long one request to the place may take, with all that the library repeats of it."""
PART_BYTES = 5 * 2**20
"""A part of a large upload; S3 takes no smaller ones."""
PARTS_AT_ONCE = 2
"""How many parts are on their way: with their sum in memory."""
DELETED_AT_ONCE = 1000
KEY = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")

_RETRIES: RetryConfig = {
    "max_retries": 5,
    "retry_timeout": timedelta(seconds=15),
    "backoff": {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=3),
        "base": 2,
    },
}
# No limit for a whole request: a large blob may be read by a slow client. A read that stalls ends.
_CLIENT: ClientConfig = {
    "connect_timeout": timedelta(seconds=5),
    "read_timeout": timedelta(seconds=10),
    "timeout": timedelta(days=1),
}

T = TypeVar("T")


def open_bucket(place: BucketPlace, prefix: str) -> ObjectBlobs:
    """Keep blobs in a bucket; nothing is requested yet."""
    config: S3Config = {}
    if place.endpoint is not None:
        config["endpoint"] = place.endpoint
    if place.region is not None:
        config["region"] = place.region
    objects = S3Store(
        place.bucket,
        prefix=place.prefix or None,
        config=config,
        client_options={**_CLIENT, "allow_http": place.allow_http},
        retry_config=_RETRIES,
    )
    return ObjectBlobs(objects, prefix)


class ObjectBlobs:
    """Keeps blobs in an object store, below a prefix. Implements `Blobs`."""

    def __init__(self, objects: ObjectStore, prefix: str) -> None:
        """Keep blobs below a prefix, which distinguishes one store's from another's."""
        self._objects = objects
        self._prefix = prefix

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        """Write a blob."""
        path = self._path(key)
        if isinstance(data, bytes) and len(data) <= PART_BYTES:
            with translated(f"blob {key} was not written"):
                await within_limit(self._objects.put_async(path, data, use_multipart=False))
            return StoredBlob(len(data), sha256(data).hexdigest())
        return await self._put_parts(key, in_chunks(data))

    async def create(self, key: str, data: bytes) -> bool:
        """Write a small blob unless there is one; False if there is."""
        with translated(f"blob {key} was not written"):
            try:
                path = self._path(key)
                await within_limit(self._objects.put_async(path, data, mode="create"))
            except AlreadyExistsError:
                return False
        return True

    async def read(
        self, key: str, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """Read a part of a blob."""
        with translated(f"blob {key} cannot be read"):
            try:
                got = await self._get(self._path(key), start, end)
            except FileNotFoundError:
                await self._check_there()
                raise NoSuchBlob(f"there is no blob {key}") from None
            if got is None:
                return
            left = got.range[1] - got.range[0]
            pieces = got.stream(min_chunk_size=CHUNK_BYTES)
            while (piece := await within_limit(anext(pieces, None))) is not None:
                left -= len(piece)
                yield bytes(piece)
            if left:
                raise BlobsUnavailable(f"blob {key} cannot be read: {left:,} bytes are missing")

    async def size(self, key: str) -> int | None:
        """Return the length of a blob."""
        with translated(f"blob {key} cannot be read"):
            try:
                return (await within_limit(self._objects.head_async(self._path(key))))["size"]
            except FileNotFoundError:
                await self._check_there()
                return None

    async def list(self, prefix: str) -> AsyncIterator[BlobEntry]:
        """List blobs by prefix."""
        with translated(f"blobs below {prefix} cannot be listed"):
            async for one in self._list(self._path(prefix)):
                key = one["path"].removeprefix(f"{self._prefix}/")
                at = int(one["last_modified"].timestamp() * 1_000_000)
                yield BlobEntry(key, one["size"], at)

    async def delete(self, keys: Collection[str]) -> None:
        """Delete blobs."""
        with translated("blobs cannot be deleted"):
            paths = [self._path(key) for key in keys]
            for start in range(0, len(paths), DELETED_AT_ONCE):
                some = paths[start : start + DELETED_AT_ONCE]
                await within_limit(self._objects.delete_async(some))

    async def room(self) -> int | None:
        """Return None: an object store does not report its room."""
        return None

    def _path(self, key: str) -> str:
        if not KEY.fullmatch(key) or {".", ".."} & set(key.split("/")):
            raise ValueError(f"invalid key of a blob: {key!r}")
        return f"{self._prefix}/{key}"

    async def _get(self, path: str, start: int, end: int | None) -> GetResult | None:
        """Ask for a range; None if it has no bytes. S3 refuses a range beyond the end."""
        if start == 0 and end is None:
            return await within_limit(self._objects.get_async(path))
        size = (await within_limit(self._objects.head_async(path)))["size"]
        end = size if end is None else min(end, size)
        if start >= end:
            return None
        return await within_limit(self._objects.get_async(path, options={"range": (start, end)}))

    async def _check_there(self) -> None:
        """Raise if the place itself is not there; then nothing is known of its blobs.

        S3 answers to a question about one object of a missing bucket as if only that was missing.
        """
        await within_limit(self._objects.list_with_delimiter_async(f"{self._prefix}/none"))

    async def _list(self, path: str) -> AsyncIterator[ObjectMeta]:
        """List objects in the order of their paths, which is the order of S3's answers."""
        batches = self._objects.list(path)
        while (batch := await within_limit(anext(batches, None))) is not None:
            for one in batch:
                yield one

    async def _put_parts(self, key: str, pieces: AsyncIterable[bytes]) -> StoredBlob:
        digest, size = sha256(), 0
        pipe = _Pipe()
        sent = asyncio.ensure_future(
            self._objects.put_async(
                self._path(key), pipe, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )
        )
        try:
            async for piece in pieces:
                digest.update(piece)
                size += len(piece)
                with translated(f"blob {key} was not written"):
                    await pipe.send(piece, sent)
            with translated(f"blob {key} was not written"):
                await pipe.send(None, sent)
                await within_limit(asyncio.shield(sent))
        finally:
            await pipe.close(sent)
        return StoredBlob(size, digest.hexdigest())


class _GivenUp(Exception):
    """The source of a put raised, or the caller was cancelled."""


class _Pipe:
    """Hands pieces to the library, which takes them when it can.

    The library aborts an upload whose source raises. One whose call is cancelled leaves its parts
    in the bucket, so the call is never cancelled: the pipe raises.
    """

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[bytes | _GivenUp | None] = asyncio.Queue(maxsize=1)

    def __aiter__(self) -> _Pipe:
        return self

    async def __anext__(self) -> bytes:
        piece = await self._waiting.get()
        if piece is None:
            raise StopAsyncIteration
        if isinstance(piece, _GivenUp):
            raise piece
        return piece

    async def send(self, piece: bytes | None, sent: asyncio.Future[PutResult]) -> None:
        """Hand over a piece, or the end; raise what the library raised instead of taking it."""
        handing = asyncio.ensure_future(self._waiting.put(piece))
        try:
            either: set[asyncio.Future[None] | asyncio.Future[PutResult]] = {handing, sent}
            await asyncio.wait(either, timeout=WAIT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not handing.done():
                if not sent.done():
                    raise TimeoutError
                sent.result()
                raise BaseError("it was ended before all was sent")
        finally:
            handing.cancel()

    async def close(self, sent: asyncio.Future[PutResult]) -> None:
        """Return when the library has ended; what it has not completed is aborted."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(_GivenUp())
        await asyncio.wait({sent}, timeout=WAIT_SECONDS)
        if not sent.cancel() and not sent.cancelled():
            # Marks it as seen: what matters of it was raised.
            sent.exception()


async def in_chunks(data: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Regroup data: no piece is much smaller than a chunk, except for the last."""
    if isinstance(data, bytes):
        view = memoryview(data)
        for start in range(0, len(data), CHUNK_BYTES):
            yield bytes(view[start : start + CHUNK_BYTES])
        return
    gathered: list[bytes] = []
    size = 0
    async for piece in data:
        gathered.append(bytes(piece))
        size += len(piece)
        if size >= CHUNK_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


async def within_limit(answer: Awaitable[T]) -> T:
    """Wait for an answer of the place, not for ever."""
    async with asyncio.timeout(WAIT_SECONDS):
        return await answer


@contextmanager
def translated(failure: str) -> Iterator[None]:
    """Raise what the library raises as `BlobsUnavailable`."""
    try:
        yield
    except TimeoutError as error:
        raise BlobsUnavailable(f"{failure}: no answer within {WAIT_SECONDS:g} s") from error
    except (BaseError, OSError) as error:
        # The first line: what follows is the library's own state.
        raise BlobsUnavailable(f"{failure}: {str(error).partition(chr(10))[0]}") from error
