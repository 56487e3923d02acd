"""What a command left in /artifacts: the manifest of what was kept, and reading it.

The event that ends a job has the digest of the manifest, and the manifest the digest of every file:
what is read is what was collected, or an error.
"""

from __future__ import annotations

import unicodedata
from collections.abc import AsyncIterator
from contextlib import suppress
from enum import StrEnum
from hashlib import sha256
from typing import Protocol

import msgspec
from msgspec import Struct

from holdfast.errors import (
    ArtifactsDamaged,
    ArtifactsErased,
    NoSuchArtifact,
    NoSuchBlob,
    Refused,
)
from holdfast.lifecycle.record import Job, JobId, KeptOutput
from holdfast.lifecycle.states import BOXED, Retention
from holdfast.ports.blobs import Blobs, GetBlobs, read_blob
from holdfast.ports.store import Store
from holdfast.queries.blob_keys import artifacts_prefix
from holdfast.queries.outcomes import last_event

MANIFEST = "manifest"


class SkipReason(StrEnum):
    """Why something in /artifacts was not kept."""

    LINK = "link"
    FIFO = "fifo"
    SOCKET = "socket"
    DEVICE = "device"
    NAME_NOT_TEXT = "name_not_text"
    """Its name is not UTF-8, is not in normal form C, or has control characters or a backslash."""
    TOO_DEEP = "too_deep"
    PATH_TOO_LONG = "path_too_long"
    UNREADABLE = "unreadable"
    """The worker's user may not read it; root may read everything."""
    OTHER_FILESYSTEM = "other_filesystem"


BY_LIMIT = frozenset({SkipReason.TOO_DEEP, SkipReason.PATH_TOO_LONG})
"""Reasons that are limits of Holdfast, not properties of a thing that is not a file."""


class Artifact(Struct, frozen=True, kw_only=True):
    """One file that was kept."""

    path: str
    """Below /artifacts, with slashes."""
    bytes: int
    sha256: str


class KeptArtifact(Artifact, frozen=True, kw_only=True):
    """One file in the manifest, and the key of its blob."""

    key: str


class SkippedArtifact(Struct, frozen=True, kw_only=True):
    """Something that was not kept."""

    path: str
    """Shortened where it is long; what is not text is written as escapes."""
    reason: SkipReason


class ArtifactManifest(Struct, frozen=True, kw_only=True):
    """All that was kept of one attempt's artifacts, and what was not."""

    files: tuple[KeptArtifact, ...] = ()
    skipped: tuple[SkippedArtifact, ...] = ()
    """The first of them."""
    skipped_counts: dict[SkipReason, int] = {}
    """How many, by reason."""

    @property
    def truncated(self) -> bool:
        """Whether a limit kept something out."""
        return not BY_LIMIT.isdisjoint(self.skipped_counts)

    @property
    def total_bytes(self) -> int:
        """The bytes of all files."""
        return sum(one.bytes for one in self.files)

    def find(self, path: str) -> KeptArtifact | None:
        """Return the file with a path; None if there is none."""
        return next((one for one in self.files if one.path == path), None)


NO_ARTIFACTS = KeptOutput(
    digest=sha256(msgspec.json.encode(ArtifactManifest())).hexdigest(), bytes=0
)
"""What the end of a command names that left nothing: there is no blob of it."""


def manifest_key(job: JobId, attempt: int) -> str:
    """Return the key of an attempt's manifest."""
    return f"{artifacts_prefix(job, attempt)}/{MANIFEST}"


def is_artifact_name(name: str) -> bool:
    """Return whether a name is one that an artifact, or a directory of artifacts, may have.

    It is UTF-8 in normal form C without control characters, so that it is the same name on every
    system and shows as what it is; and it is one name: not a way to another directory.
    """
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        return False
    with suppress(UnicodeEncodeError):
        if len(name.encode()) > NAME_BYTES:
            return False
        return unicodedata.is_normalized("NFC", name) and _is_printed(name)
    return False


def _is_printed(name: str) -> bool:
    return not any(unicodedata.category(one) in _UNPRINTED for one in name)


NAME_BYTES = 255
"""The most that file systems take."""
_UNPRINTED = frozenset({"Cc", "Cf", "Zl", "Zp"})
"""Control characters, those that change how others show, the separators of lines and paragraphs."""


async def read_manifest(store: Store, blobs: GetBlobs, job: Job) -> ArtifactManifest:
    """Read what was kept of an ended job's artifacts; an empty manifest if there were none.

    Refused if they could not be kept, ArtifactsErased if retention has removed them,
    ArtifactsDamaged if the manifest is not the one that the end of the job names.
    """
    if job.retention is not Retention.LIVE:
        raise erased_error(job)
    if not job.terminal:
        text = f"job {job.public_id} is {job.state}: its artifacts are collected at the end"
        raise Refused(text, code="not_ended", job_id=job.public_id)
    end = await last_event(store, job.id)
    kept = None if end is None else end.facts.artifacts
    if end is None or kept is None:
        if job.kind in BOXED and job.started_at is not None:
            text = f"the artifacts of job {job.public_id} could not be kept when it ended"
            raise Refused(text, code="artifacts_not_kept", job_id=job.public_id)
        return ArtifactManifest()
    if kept == NO_ARTIFACTS:
        return ArtifactManifest()
    try:
        manifest = await read_blob(await blobs(), manifest_key(job.id, end.attempt))
    except NoSuchBlob as error:
        raise erased_error(job) from error
    if sha256(manifest).hexdigest() != kept.digest:
        raise _damaged_error(job, "their list is not the one that was collected")
    return msgspec.json.decode(manifest, type=ArtifactManifest)


class ReadableArtifact(Protocol):
    """One file of a job's artifacts, on this machine or behind a server."""

    def read(self, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Read the bytes from `start` to before `end` in pieces, by default all of them.

        If it ends without an error, the bytes are those that were collected.
        """


class PieceCheck:
    """Holds back the last piece of what is read of a file, until all of it is known to be right."""

    def __init__(self, what: str, job_id: str) -> None:
        """Check what is read of `what`, as an error names it."""
        self._what, self._job_id = what, job_id
        self._digest, self._length = sha256(), 0
        self._held = b""

    def add(self, piece: bytes) -> bytes:
        """Take a piece; return the one before it."""
        self._digest.update(piece)
        self._length += len(piece)
        before, self._held = self._held, piece
        return before

    def finish(self, length: int, digest: str | None) -> bytes:
        """Return the last piece; raise ArtifactsDamaged if the length or the digest is another.

        The digest is that of a whole file: a part of one has none.
        """
        if self._length != length:
            raise self._damaged_error(f"{self._length:,} bytes were read of {length:,}")
        if digest is not None and self._digest.hexdigest() != digest:
            raise self._damaged_error("its content is not what was collected")
        return self._held

    def _damaged_error(self, why: str) -> ArtifactsDamaged:
        text = f"artifact {self._what!r} of job {self._job_id} is damaged: {why}"
        return ArtifactsDamaged(text, job_id=self._job_id)


class StoredArtifact:
    """One file of a job's artifacts, ready to be read in pieces."""

    def __init__(self, blobs: Blobs, job: Job, file: KeptArtifact) -> None:
        """Read `file` from a place of blobs."""
        self.file: Artifact = file
        self._key = file.key
        self._blobs = blobs
        self._job = job

    async def check(self) -> None:
        """Raise ArtifactsErased if the file is gone, ArtifactsDamaged if its length differs."""
        size = await self._blobs.size(self._key)
        if size is None:
            raise erased_error(self._job)
        if size != self.file.bytes:
            raise _damaged_error(self._job, f"{self.file.path!r} has another length")

    async def read(self, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Read the bytes from `start` to before `end`; an error if they are not those collected."""
        stop = self.file.bytes if end is None else min(end, self.file.bytes)
        is_whole = (start, stop) == (0, self.file.bytes)
        check = PieceCheck(self.file.path, self._job.public_id)
        async for piece in self._pieces(start, stop):
            if ready := check.add(piece):
                yield ready
        if last := check.finish(max(0, stop - start), self.file.sha256 if is_whole else None):
            yield last

    async def _pieces(self, start: int, stop: int) -> AsyncIterator[bytes]:
        if start >= stop:
            return
        try:
            async for piece in self._blobs.read(self._key, start=start, end=stop):
                yield piece
        except NoSuchBlob as error:
            raise erased_error(self._job) from error


async def open_artifact(store: Store, blobs: GetBlobs, job: Job, path: str) -> StoredArtifact:
    """Return one file of a job's artifacts; NoSuchArtifact if it has none with that path."""
    file = (await read_manifest(store, blobs, job)).find(path)
    if file is None:
        text = f"job {job.public_id} has no artifact {path!r}"
        raise NoSuchArtifact(text, job_id=job.public_id)
    opened = StoredArtifact(await blobs(), job, file)
    await opened.check()
    return opened


def erased_error(job: Job) -> ArtifactsErased:
    """Return the error about artifacts that retention has removed."""
    text = f"the artifacts of job {job.public_id} were erased"
    return ArtifactsErased(text, job_id=job.public_id)


def _damaged_error(job: Job, what: str) -> ArtifactsDamaged:
    text = f"the artifacts of job {job.public_id} are damaged: {what}"
    return ArtifactsDamaged(text, job_id=job.public_id)
