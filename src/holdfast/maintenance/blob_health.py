"""What can be wrong with a store's place of blobs: not reached, not writable, not its own, full."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from holdfast.blobs.bound import NOTE, elsewhere, find_marker, read_note
from holdfast.blobs.place import BlobPlace, DirectoryPlace
from holdfast.errors import BlobsUnavailable
from holdfast.ids import mint_secret
from holdfast.ports.store import Store
from holdfast.queries.box_files import store_identity
from holdfast.stores.findings import Finding, FindingSeverity, fine, judge_disk, problem, warning

if TYPE_CHECKING:
    from holdfast.blobs.objects import ObjectBlobs

CHECK = "blobs"
DISK_CHECK = "blobs disk"
FIX = "check --blobs, and the credentials in the environment (AWS_ACCESS_KEY_ID, …)"

OpenPlace: TypeAlias = Callable[[str], Awaitable["ObjectBlobs"]]
"""Opens what is below a prefix of the place."""


async def examine_blobs(store: Store, place: BlobPlace, open_place: OpenPlace) -> list[Finding]:
    """Examine whether blobs can be kept at a place, and whether it is this store's.

    What is written to find out is removed again; a directory is not even made.
    """
    try:
        if isinstance(place, DirectoryPlace):
            return await _examine_directory_place(store, place, open_place)
        blobs = await open_place(await store_identity(store))
        await _write_and_delete(blobs)
        return [await _judge_binding(store, place, await find_marker(blobs))]
    except BlobsUnavailable as error:
        return [problem(CHECK, str(error), FIX)]


async def _examine_directory_place(
    store: Store, place: DirectoryPlace, open_place: OpenPlace
) -> list[Finding]:
    found = await asyncio.to_thread(_examine_directory, place.directory)
    if any(one.verdict is FindingSeverity.PROBLEM and one.check == CHECK for one in found):
        return found
    identity = await store_identity(store)
    is_there = await asyncio.to_thread((place.directory / identity).is_dir)
    marker = await find_marker(await open_place(identity)) if is_there else None
    return [await _judge_binding(store, place, marker), *found]


def _examine_directory(directory: Path) -> list[Finding]:
    existing = next(one for one in (directory, *directory.parents) if one.exists())
    fix = "set another --blobs, or run the worker as a user that may write there"
    if not existing.is_dir():
        return [problem(CHECK, f"{existing} is not a directory", fix)]
    disk = judge_disk(DISK_CHECK, existing, "make room, or move the directory and set --blobs")
    if os.access(existing, os.W_OK | os.X_OK):
        return [disk]
    return [warning(CHECK, f"this user cannot write to {existing}", fix), disk]


async def _judge_binding(store: Store, place: BlobPlace, marker: str | None) -> Finding:
    text = await store.note(NOTE)
    if text is None:
        return fine(CHECK, f"the store has none yet; a worker would keep them at {place.address}")
    note = read_note(text)
    if note.id == marker:
        return fine(CHECK, f"logs, artifacts and uploads are kept at {place.address}")
    return problem(CHECK, str(elsewhere(note, place.address)), f"set --blobs to {note.address}")


async def _write_and_delete(blobs: ObjectBlobs) -> None:
    key = f"doctor/{mint_secret(8).hex()}"
    await blobs.put(key, b"written to see whether it can be")
    await blobs.delete([key])
