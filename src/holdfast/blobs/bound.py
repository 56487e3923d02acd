"""One store, one place: a worker with a place of its own would split logs and artifacts.

A blob at the place has a random id, and a note in the store has the same id and where the place
is. A place with another id, or none, is refused. The blob is written first: a crash between the
two writes leaves an id that nothing names, which the next process at this place uses.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Collection
from typing import Protocol

import msgspec
from msgspec import Struct

from holdfast.errors import BlobsElsewhere, NoSuchBlob
from holdfast.ids import mint_secret
from holdfast.ports.blobs import BlobEntry, Blobs, StoredBlob, read_blob
from holdfast.ports.store import Store

MARKER = "place"
"""The key of the blob that has the id of the place."""
NOTE = "place of blobs"
"""The name of the store's note."""


class PlaceNote(Struct, frozen=True):
    """What a store knows of its place."""

    id: str
    address: str
    """Where it was when it was last opened. Only for people: what counts is the id."""


class MarkedBlobs(Blobs, Protocol):
    """Blobs at a place that can be marked."""

    async def create(self, key: str, data: bytes) -> bool:
        """Write a small blob unless there is one; False if there is."""


class BoundBlobs:
    """The blobs of one store at its one place. Implements `Blobs`.

    A store that has no place yet gets this one with the first write; until then, what is read is
    looked for here, and another process may give it another place.
    """

    def __init__(self, blobs: MarkedBlobs, store: Store, address: str) -> None:
        """Use a place for a store; `address` is where it is, for people."""
        self._blobs = blobs
        self._store = store
        self._address = address
        self._is_bound = False

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        """Write a blob."""
        await self.bind()
        return await self._blobs.put(key, data)

    async def read(
        self, key: str, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """Read a part of a blob."""
        await self.check()
        async for piece in self._blobs.read(key, start=start, end=end):
            yield piece

    async def size(self, key: str) -> int | None:
        """Return the length of a blob."""
        await self.check()
        return await self._blobs.size(key)

    async def list(self, prefix: str) -> AsyncIterator[BlobEntry]:
        """List blobs by prefix."""
        await self.check()
        async for entry in self._blobs.list(prefix):
            yield entry

    async def delete(self, keys: Collection[str]) -> None:
        """Delete blobs."""
        await self.check()
        await self._blobs.delete(keys)

    async def room(self) -> int | None:
        """Return how many bytes more it can take."""
        return await self._blobs.room()

    async def check(self) -> None:
        """Raise if the store has another place; one that has none is left so."""
        if self._is_bound:
            return
        text = await self._store.note(NOTE)
        if text is not None:
            await self._compare(text, await find_marker(self._blobs))

    async def bind(self) -> None:
        """Make this the place of the store; raise if it has another one."""
        if self._is_bound:
            return
        # The note first: a place is marked before it is noted, so that a note has its mark.
        text = await self._store.note(NOTE)
        id_ = await find_marker(self._blobs)
        if text is None:
            id_ = id_ or await self._mark()
            note = _write(PlaceNote(id_, self._address))
            if await self._store.move_note(NOTE, before=None, to=note):
                self._is_bound = True
                return
            text = await self._store.note(NOTE)
            assert text is not None, "a note is never removed"
        await self._compare(text, id_)

    async def _mark(self) -> str:
        """Write an id, unless another process does; return which one is there."""
        id_ = mint_secret().hex()
        if await self._blobs.create(MARKER, id_.encode()):
            return id_
        return (await read_blob(self._blobs, MARKER)).decode()

    async def _compare(self, text: str, id_: str | None) -> None:
        note = read_note(text)
        if note.id != id_:
            raise elsewhere(note, self._address)
        if note.address != self._address:
            # Moved by an operator, or reached by another path. A process that notes another one
            # at the same moment is as right as this one.
            moved = _write(PlaceNote(note.id, self._address))
            await self._store.move_note(NOTE, before=text, to=moved)
        self._is_bound = True


async def find_marker(blobs: Blobs) -> str | None:
    """Return the id of a place; None if it has none."""
    try:
        return (await read_blob(blobs, MARKER)).decode()
    except NoSuchBlob:
        return None


def elsewhere(note: PlaceNote, address: str) -> BlobsElsewhere:
    """Refuse an address: the store has another place."""
    return BlobsElsewhere(
        f"the logs, artifacts and uploads of this store are at {note.address}, and not at "
        f"{address}; set --blobs to their place, which all hosts must reach: s3://bucket, or a "
        f"directory that they share. If they were moved here, move the file {MARKER!r} beside "
        "them as well"
    )


def read_note(text: str) -> PlaceNote:
    """Read what the store has noted."""
    return msgspec.json.decode(text, type=PlaceNote)


def _write(note: PlaceNote) -> str:
    return msgspec.json.encode(note).decode()
