"""The outputs of a box: what it prints is shipped while it runs, and all is kept before its end.

The order is a promise (B29): the box is dead, its log is whole, its artifacts are put, and only
then is the end of its job written. A crash in between repeats all of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from holdfast.crash_points import reach
from holdfast.errors import BlobsUnavailable
from holdfast.lifecycle.record import KeptOutput
from holdfast.ports.blobs import Blobs
from holdfast.ports.box import Box
from holdfast.queries.artifacts import NO_ARTIFACTS
from holdfast.runners.command.collect_artifacts import (
    DEFAULT_LIMITS,
    ArtifactLimits,
    collect_artifacts,
)
from holdfast.runners.command.ship_log import LogShipper
from holdfast.runners.command.watch_artifacts import watch_artifacts

log = logging.getLogger(__name__)

T = TypeVar("T")
KEEP_SECONDS = 600.0
"""How long outputs are tried to be kept of a command that ended by itself."""
STOPPED_KEEP_SECONDS = 60.0
"""The same for one that was stopped: the record of its cancel waits for it."""
WORK_LIMITS = ArtifactLimits(
    files=500_000, file_bytes=8 * 1024**3, total_bytes=8 * 1024**3, entries=500_000, depth=200
)
"""How much an agent may have in /work, its upload included."""
EXCHANGE_LIMITS = ArtifactLimits(
    files=1000, file_bytes=32 * 1024**2, total_bytes=64 * 1024**2, entries=1000, depth=4
)
"""How much it may write as reports; far less of that is read."""


class OutputKeeper(Struct, kw_only=True, eq=False):
    """Keeps the outputs of one box."""

    blobs: Blobs
    box: Box
    secrets: Sequence[bytes] | None = ()
    """What must not be in its log; None if that is no longer known: then no more of it is kept."""
    limits: ArtifactLimits = DEFAULT_LIMITS
    pause_seconds: float
    """Before what failed is tried again."""
    log: KeptOutput | None = None
    """What was kept of its log, once that is whole."""
    artifacts: KeptOutput | None = None
    _made: LogShipper | None = None

    async def watch(self) -> str:
        """Ship what the box prints, until cancelled; return why as soon as it leaves too much."""
        watched = [asyncio.create_task(one) for one in self._watches()]
        beside: list[asyncio.Task[Any]] = [*watched]
        if (shipper := self._shipper()) is not None:
            beside.append(asyncio.create_task(shipper.run()))
        try:
            done, _ = await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    def _watches(self) -> Iterator[Coroutine[Any, Any, str]]:
        """Watch the directories that the box can fill: nothing else limits them."""
        yield self._watch_directory("/artifacts", self.box.artifacts, self.limits)
        if self.box.work_writable:
            yield self._watch_directory("/work", self.box.work, WORK_LIMITS)
        if self.box.exchange is not None:
            yield self._watch_directory("its reports", self.box.exchange, EXCHANGE_LIMITS)

    async def _watch_directory(self, name: str, directory: Path, limits: ArtifactLimits) -> str:
        while True:
            try:
                return f"{name}: {await watch_artifacts(directory, limits)}"
            except OSError as error:
                # Artifacts are counted again when they are collected.
                log.warning("%s: %s cannot be watched: %s", self.box.name, name, error)
                await asyncio.sleep(self.pause_seconds)

    async def keep(self, seconds: float = KEEP_SECONDS) -> None:
        """Keep all outputs of a box that is dead; what was kept before is not kept again.

        Raise ArtifactsTooLarge, or, if the place of blobs does not take them in this time,
        BlobsUnavailable or OSError.
        """
        until = asyncio.get_running_loop().time() + seconds
        await self._keep_log(until)
        if self.artifacts is None:
            self.artifacts = await self._retry(self._collect, until) or NO_ARTIFACTS
            reach("artifacts.kept")

    async def keep_log(self, seconds: float) -> None:
        """Keep the log alone, of a box that is lost: how far its artifacts are is not known."""
        await self._keep_log(asyncio.get_running_loop().time() + seconds)

    async def _keep_log(self, until: float) -> None:
        shipper = self._shipper()
        if self.log is None and shipper is not None:
            self.log = await self._retry(shipper.finish, until)
            reach("log.kept")

    def _shipper(self) -> LogShipper | None:
        if self._made is None and self.secrets is not None:
            self._made = LogShipper(self.blobs, self.box, self.secrets)
        return self._made

    async def _collect(self) -> KeptOutput | None:
        return await collect_artifacts(self.blobs, self.box, self.limits)

    async def _retry(self, work: Callable[[], Awaitable[T]], until: float) -> T:
        """Do work again until it succeeds or the time is over; then it is broken off."""
        while True:
            try:
                async with asyncio.timeout_at(until):
                    return await work()
            except (BlobsUnavailable, OSError) as error:
                if asyncio.get_running_loop().time() >= until:
                    raise
                log.warning("%s: its outputs are not kept yet: %s", self.box.name, error)
            await asyncio.sleep(self.pause_seconds)
