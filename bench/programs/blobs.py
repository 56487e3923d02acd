"""Blobs as a contender: small ones beside a bare loop over the library, and a large stream.

`python -m bench.programs.blobs VERB --url PLACE …`; the place is as for `--blobs`. The verbs:
`small` puts a number of blobs in turn with the bare loop, which syncs the same files and
directories; `large` streams one in and out, and measures by how much memory grows.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from obstore.store import LocalStore, ObjectStore

from bench.programs.replies import Reply, Stretch, Verb, reply_to
from holdfast.blobs.place import BucketPlace, read_place
from holdfast.ids import mint_secret
from holdfast.ports.blobs import Blobs
from holdfast.wiring import open_place

BYTES = 1_000
PIECE = b"x" * 100_000
WARM_BYTES = 200_000
"""What is streamed before memory is measured: the library is loaded and connected by then."""


async def small(given: argparse.Namespace) -> Reply:
    """Put small blobs, each right after one of the bare loop."""
    blobs = await open_place(read_place(given.url), "port")
    bare = BareLoop(given.url)
    ours, theirs = Times(), Times()
    for number in range(given.jobs):
        data = mint_secret(BYTES)
        key = f"artifacts/job/1/{number}"
        with theirs:
            await bare.put(key, data)
        with ours:
            await blobs.put(key, data)
    return {"jobs": given.jobs, "ms": ours.each, "bare_ms": theirs.each}


async def large(given: argparse.Namespace) -> Reply:
    """Stream one blob in and out again."""
    blobs = await open_place(read_place(given.url), "port")
    await _stream(blobs, WARM_BYTES)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # noqa: ASYNC240  forgets the peak
    stretch = Stretch()
    await _stream(blobs, given.bytes)
    return stretch.reply(1, grown=_memory("VmHWM") - before)


async def measure_growth(place: str, size: int) -> int:
    """Return by how many bytes memory grows while a blob is streamed in and out."""
    reply = await large(argparse.Namespace(url=place, bytes=size))
    return int(reply["grown"])


class BareLoop:
    """The library alone, with the syncs without which a blob may be lost."""

    def __init__(self, place: str) -> None:
        """Use a place that is there."""
        given = read_place(place)
        assert not isinstance(given, BucketPlace), "a bucket has nothing to sync"
        self._root = given.directory
        self._objects: ObjectStore = LocalStore(given.directory)

    async def put(self, key: str, data: bytes) -> None:
        """Put a blob, durably."""
        path = f"bare/{key}"
        await self._objects.put_async(path, data)
        file = self._root / path
        for one in (file, *file.parents):
            if one == self._root:
                break
            descriptor = os.open(one, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


class Times:
    """How long each of several things took, in milliseconds."""

    def __init__(self) -> None:
        """Start without any."""
        self.each: list[float] = []
        self._start = 0.0

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.each.append((time.perf_counter() - self._start) * 1000)


async def _stream(blobs: Blobs, size: int) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(size // len(PIECE)):
            yield PIECE

    stored = await blobs.put("artifacts/large", pieces())
    read = 0
    async for piece in blobs.read("artifacts/large"):
        read += len(piece)
    if read != stored.bytes:
        raise RuntimeError(f"{stored.bytes:,} bytes were written and {read:,} read")


def _memory(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"this system does not show {field}")


VERBS: dict[str, Verb] = {verb.__name__: verb for verb in (small, large)}

if __name__ == "__main__":
    reply_to(VERBS)
    # A thread of the library's may meet an interpreter that is ending, which aborts now and then.
    os._exit(0)
