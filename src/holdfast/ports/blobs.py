"""The port of blobs: large data beside the store, such as logs, artifacts and uploads.

A blob is bytes under a key, written once as a whole. One store has one place of blobs; another one
is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection
from typing import Protocol, TypeAlias

from msgspec import Struct

from holdfast.ports.store import Store

CHUNK_BYTES = 256 * 1024
"""About how much of a blob is in memory at a time while it is read or written."""


class StoredBlob(Struct, frozen=True):
    """What was written: how long it is, and its SHA-256 in hexadecimal."""

    bytes: int
    digest: str


class BlobEntry(Struct, frozen=True):
    """A blob that a listing found."""

    key: str
    bytes: int
    modified_at: int
    """In microseconds, by the clock of the place."""


class Blobs(Protocol):
    """Keeps blobs under keys that Holdfast makes. All calls come from one event loop.

    A key is words of `[A-Za-z0-9._-]` joined by slashes, and no key is below another. A place that
    cannot be reached, or has no room, raises `BlobsUnavailable`: what was asked for may be asked
    for again.
    """

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        """Write a blob; one that is there is replaced. When it returns, the blob survives a crash.

        If the data raises, or the call is cancelled before the data has ended, nothing is written
        under the key. A call that is cancelled or fails later has written all or nothing.
        """

    def read(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Read the bytes from `start` to before `end`, in pieces; `NoSuchBlob` if it is not there.

        A range beyond the end of the blob has no bytes.
        """

    async def size(self, key: str) -> int | None:
        """Return the length of a blob; None if it is not there."""

    def list(self, prefix: str) -> AsyncIterator[BlobEntry]:
        """List the blobs whose keys are below a prefix of whole words, in the order of keys."""

    async def delete(self, keys: Collection[str]) -> None:
        """Delete blobs; one that is not there is success."""

    async def room(self) -> int | None:
        """Return how many bytes more the place can take; None where nobody knows."""


OpenBlobs: TypeAlias = Callable[[Store], Awaitable[Blobs]]
"""Opens the place of blobs of a store that is open."""
GetBlobs: TypeAlias = Callable[[], Awaitable[Blobs]]
"""Returns the place of blobs, which is opened when it is first needed."""


async def read_blob(blobs: Blobs, key: str) -> bytes:
    """Read a small blob as a whole."""
    return b"".join([piece async for piece in blobs.read(key)])
