"""An app on one event loop: the open store, and what batches, watches and caches there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, nullcontext

from holdfast.errors import BlobsUnavailable
from holdfast.operations.batches import BatchedStore
from holdfast.operations.store_cache import KnownLimits, KnownTerms
from holdfast.operations.wait_for_end import JobWatcher
from holdfast.ports.blobs import Blobs, OpenBlobs
from holdfast.ports.store import Store
from holdfast.queries.command_log import CommandLogs

FINALIZES = 4
"""Uploads that are read at a time to be finalized: each may have gigabytes."""


class StoreSession:
    """One store on one loop. It opens when first used, and closes at the latest with its loop."""

    def __init__(
        self,
        store: Store,
        *,
        open_blobs: OpenBlobs | None = None,
        around: Callable[[Store], AbstractAsyncContextManager[None]] | None = None,
    ) -> None:
        """Use a store; `open_blobs` opens the place of its logs, artifacts and uploads.

        `around` is entered once the store is open, before anything else uses it.
        """
        self.store = store
        self.batched = BatchedStore(store)
        self.watcher = JobWatcher(store)
        self.terms = KnownTerms(store)
        self.limits = KnownLimits(store)
        self.finalizing = asyncio.Semaphore(FINALIZES)
        """Held while an upload is read to be finalized."""
        self.is_open = False
        self.users = 0
        """How many `async with` blocks hold it."""
        self._open_blobs = open_blobs
        self._around = around
        self._blobs: Blobs | None = None
        self._blobs_lock = asyncio.Lock()
        self._command_logs: CommandLogs | None = None
        self._opening: asyncio.Task[None] | None = None
        self._life = self._hold_open()

    async def open(self) -> None:
        """Open the store once, however many callers need it."""
        if self.is_open:
            return
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        # A cancelled caller leaves it to the others.
        await asyncio.shield(self._opening)

    async def close(self) -> None:
        """Send what was submitted, then close the store; one that is not open yet stays so."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        await self.batched.finish()
        await self._life.aclose()

    async def blobs(self) -> Blobs:
        """Return the place of this store's blobs; it is opened when it is first needed."""
        if self._open_blobs is None:
            raise BlobsUnavailable("no place of blobs was set for this store")
        async with self._blobs_lock:
            if self._blobs is None:
                self._blobs = await self._open_blobs(self.store)
        return self._blobs

    async def command_logs(self) -> CommandLogs:
        """Return what reads the logs of this store's commands."""
        if self._command_logs is None:
            self._command_logs = CommandLogs(self.store, await self.blobs())
        return self._command_logs

    async def _open(self) -> None:
        try:
            await anext(self._life)
        except BaseException:
            # A generator that failed is over; the next attempt needs a new one.
            self._life = self._hold_open()
            raise
        finally:
            self._opening = None

    async def _hold_open(self) -> AsyncGenerator[None]:
        # A generator, because a loop that ends closes those that it has started: so an app that is
        # used without `async with` leaves no database open.
        await self.store.open()
        try:
            async with nullcontext() if self._around is None else self._around(self.store):
                self.is_open = True
                yield
        finally:
            self.is_open = False
            await self.store.close()
