"""The place of blobs, for code that rarely needs it: opened when something asks for it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from holdfast.errors import BlobsUnavailable, HoldfastError
from holdfast.ports.blobs import Blobs, GetBlobs, OpenBlobs
from holdfast.ports.store import Store


class BlobsPlan(Struct, frozen=True, kw_only=True):
    """Where the blobs of a store are, before it is opened."""

    open: OpenBlobs
    is_there: Callable[[], bool]
    """Returns whether there is anything to open: a directory that is not there has no blobs."""


class BlobsOnDemand:
    """The place of blobs of one store. Where there never were commands it is not even made."""

    def __init__(self, store: Store, plan: BlobsPlan | None) -> None:
        """Open what is planned, if anything is."""
        self._store = store
        self._plan = plan
        self._opened: Blobs | None = None

    async def get(self) -> Blobs:
        """Return the place, for a job that needs it; BlobsUnavailable if it cannot be reached."""
        if self._plan is None:
            raise BlobsUnavailable("no place of blobs is set")
        if self._opened is None:
            self._opened = await self._plan.open(self._store)
        return self._opened

    async def find(self) -> Blobs | None:
        """Return the place if it is there."""
        if self._opened is None and (self._plan is None or not self._plan.is_there()):
            return None
        return await self.get()


async def reach_blobs(get_blobs: GetBlobs | None) -> Blobs | str:
    """Return the place of blobs, or why it cannot be reached."""
    if get_blobs is None:
        return "no place of blobs is set"
    try:
        return await get_blobs()
    except (HoldfastError, OSError) as error:
        return str(error)
