"""What an upload contains: its archive or files are read once, and refused if they are hostile.

All that makes an archive dangerous is refused here, before any job sees it: names that leave, links
that leave, entries behind links, devices, privileges. What is left is a tree of plain files,
directories, and links that stay inside whatever else is in it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from hashlib import sha256

import msgspec
from msgspec import Struct

from holdfast.errors import UploadRefused
from holdfast.flow.tar_format import EntryType, UploadFault, refuse
from holdfast.flow.tar_reader import TarEntry, TarReader
from holdfast.ports.blobs import Blobs, read_blob
from holdfast.queries.blob_keys import upload_archive_key, upload_file_key, upload_manifest_key

UPLOAD_BYTES = 2 * 1024**3
"""The most that all files of an upload may have together."""
MOST_ENTRIES = 100_000
"""Files, directories and links, also directories that are only part of a path."""
MOST_NAME_BYTES = 32 * 1024**2
"""The most that all paths and targets have together: they are in memory."""
PART_BYTES, PATH_BYTES, DEPTH = 255, 4096, 64
PRIVILEGES = 0o6000
"""The bits setuid and setgid."""
_REFUSED_TYPES = {
    EntryType.HARD_LINK: (UploadFault.HARD_LINK, "is a hard link; send a copy of the file"),
    EntryType.CHARACTER_DEVICE: (UploadFault.DEVICE, "is a device"),
    EntryType.BLOCK_DEVICE: (UploadFault.DEVICE, "is a device"),
    EntryType.FIFO: (UploadFault.FIFO, "is a named pipe"),
    EntryType.GNU_SPARSE: (UploadFault.SPARSE, "is a sparse file; send it whole"),
}


class UploadedFile(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file, directory or link of an upload."""

    path: str
    type: str = "file"
    """`file`, `directory` or `link`."""
    bytes: int = 0
    executable: bool = False
    target: str | None = None
    """Where a link leads: a relative path that stays inside."""


class UploadManifest(Struct, frozen=True, kw_only=True):
    """All that an upload contains."""

    entries: tuple[UploadedFile, ...]
    bytes: int
    """What all files have together."""
    digest: str
    """The SHA-256 of the archive; of single files, that of a list of their paths and digests."""


class UploadTree:
    """The entries of one upload: each is checked by itself, and against those before it."""

    def __init__(self, most_bytes: int = UPLOAD_BYTES) -> None:
        """Accept files of `most_bytes` together."""
        self.entries: list[UploadedFile] = []
        self.bytes = 0
        self._most_bytes = most_bytes
        self._name_bytes = 0
        self._types: dict[str, str] = {}
        """What is at each path, also directories that no entry names; in the order of entries."""
        self._spelled: dict[str, str] = {}
        """Each path as a file system spells it that ignores case or the form of letters."""

    def add_entry(self, entry: TarEntry) -> UploadedFile | None:
        """Check an entry of an archive; return None for the root itself, which is always there."""
        path = entry.path
        if entry.type in _REFUSED_TYPES:
            raise refuse(*_REFUSED_TYPES[entry.type], path)
        if entry.mode & PRIVILEGES:
            raise refuse(UploadFault.PRIVILEGED, "is setuid or setgid", path)
        if entry.size and entry.type is not EntryType.FILE:
            raise refuse(UploadFault.SIZE, f"has {entry.size:,} bytes and is not a file", path)
        if entry.type is EntryType.DIRECTORY:
            path = path.removesuffix("/")
        path = _strip_here(path)
        if path in ("", ".") and entry.type is EntryType.DIRECTORY:
            return None
        match entry.type:
            case EntryType.DIRECTORY:
                return self._add(UploadedFile(path=path, type="directory"))
            case EntryType.LINK:
                _check_target(check_path(path), entry.target)
                return self._add(UploadedFile(path=path, type="link", target=entry.target))
            case _:
                return self.add_file(path, entry.size, executable=bool(entry.mode & 0o111))

    def add_file(self, path: str, size: int, *, executable: bool = False) -> UploadedFile:
        """Check a file by its path and length."""
        self.bytes += size
        if self.bytes > self._most_bytes:
            text = f"makes the upload larger than {self._most_bytes:,} bytes, the limit"
            raise refuse(UploadFault.LARGE, text, path)
        return self._add(UploadedFile(path=path, bytes=size, executable=executable))

    def _add(self, entry: UploadedFile) -> UploadedFile:
        check_path(entry.path)
        self._count_names(entry.path, entry.target or "")
        for end in (at for at, letter in enumerate(entry.path) if letter == "/"):
            self._pass_through(entry.path[:end], entry.path)
        known = self._types.get(entry.path)
        # A directory may come after what is in it: some programs write it so.
        if known is not None and (known, entry.type) != (_IMPLIED, "directory"):
            raise refuse(UploadFault.DUPLICATE, "is in the upload twice", entry.path)
        self._place(entry.path, entry.type)
        self.entries.append(entry)
        return entry

    def _pass_through(self, parent: str, path: str) -> None:
        """Check a directory that a path goes through; note it if no entry has named it."""
        known = self._types.get(parent)
        if known is None:
            self._place(parent, _IMPLIED)
        elif known == "link":
            raise refuse(UploadFault.THROUGH_LINK, f"is below {parent!a}, which is a link", path)
        elif known == "file":
            raise refuse(UploadFault.DUPLICATE, f"is below {parent!a}, which is a file", path)

    def _place(self, path: str, type_: str) -> None:
        if path not in self._types:
            self._count_names(path, path)
            if len(self._types) >= MOST_ENTRIES:
                text = f"is one too many: an upload may have {MOST_ENTRIES:,} entries"
                raise refuse(UploadFault.MANY, text, path)
        self._types[path] = type_
        other = self._spelled.setdefault(_spell(path), path)
        if other != path:
            text = f"and {other!a} differ only in case or in the form of their letters"
            raise refuse(UploadFault.DUPLICATE, text, path)

    def _count_names(self, path: str, name: str) -> None:
        self._name_bytes += len(name.encode())
        if self._name_bytes > MOST_NAME_BYTES:
            text = f"is one too many: all names may have {MOST_NAME_BYTES:,} bytes together"
            raise refuse(UploadFault.MANY, text, path)


_IMPLIED = "implied"


def _strip_here(path: str) -> str:
    """Return a path without `./` before it, which many programs write."""
    while path.startswith("./"):
        path = path[2:]
    return path


def check_path(path: str) -> str:
    """Return a path that stays below the directory it is unpacked in; refuse any other."""
    if _length(path) > PATH_BYTES:
        raise refuse(UploadFault.LONG, f"has a name of more than {PATH_BYTES:,} bytes", path[:100])
    if path.startswith("/"):
        raise refuse(UploadFault.ABSOLUTE, "is an absolute name", path)
    _check_letters(path, path)
    parts = path.split("/")
    if ".." in parts:
        raise refuse(UploadFault.LEAVES, "has '..' in its name", path)
    if "" in parts or "." in parts:
        raise refuse(UploadFault.NAME, "has an empty part or '.' in its name", path)
    if any(_length(part) > PART_BYTES for part in parts):
        text = f"has a part of more than {PART_BYTES} bytes in its name"
        raise refuse(UploadFault.LONG, text, path[:300])
    if len(parts) > DEPTH:
        raise refuse(UploadFault.DEEP, f"is more than {DEPTH} directories deep", path)
    return path


def _length(text: str) -> int:
    """Return how many bytes a name has; halves of characters are refused later."""
    return len(text.encode("utf-8", "surrogatepass"))


def _check_letters(text: str, path: str) -> None:
    if (found := _REFUSED_LETTER.search(text)) is not None:
        raise refuse(UploadFault.NAME, f"has {found[0]!a} in its name", path)


_REFUSED_LETTER = re.compile("[\\\\\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028\u2029]")
"""A backslash, control characters, halves of characters, and what ends a line."""


def _check_target(path: str, target: str) -> None:
    """Refuse a link that leaves, now or through another link.

    `..` may only come first: there it goes up from the link's own directory, which is a real one.
    After a name it would go up from wherever a link of that name leads.
    """
    if _length(target) > PATH_BYTES:
        raise refuse(UploadFault.LONG, f"is a link to more than {PATH_BYTES:,} bytes", path)
    _check_letters(target, path)
    parts = target.split("/")
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    names = [part for part in parts[up:] if part not in ("", ".")]
    if not target or target.startswith("/"):
        raise refuse(
            UploadFault.LINK, f"is a link to {target!a}; only a relative one is accepted", path
        )
    if up > path.count("/") or ".." in names:
        text = f"is a link to {target!a}, which leaves the upload, or has '..' after a name"
        raise refuse(UploadFault.LINK, text, path)


def _spell(path: str) -> str:
    """Return one spelling for all that a file system may take for the same name."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


class UploadContents:
    """All entries of an upload in order, each checked before it is returned."""

    def __init__(
        self,
        blobs: Blobs,
        upload: str,
        *,
        files: Sequence[str] = (),
        most_bytes: int = UPLOAD_BYTES,
    ) -> None:
        """Read the single files with these paths, or the archive if there are none."""
        self._blobs = blobs
        self._upload = upload
        self._files = files
        self._tree = UploadTree(most_bytes)
        self._digest = ""

    async def entries(self) -> AsyncGenerator[tuple[UploadedFile, AsyncIterator[bytes]]]:
        """Return each entry with its data, which may be read until the next one is asked for.

        Raise `UploadRefused` at the first that is hostile, broken or beyond a limit.
        """
        reading = self._read_files() if self._files else self._read_archive()
        async with aclosing(reading):
            async for entry in reading:
                yield entry

    async def _read_archive(self) -> AsyncGenerator[tuple[UploadedFile, AsyncIterator[bytes]]]:
        reader = TarReader(self._blobs.read(upload_archive_key(self._upload)))
        while (found := await reader.next()) is not None:
            if (entry := self._tree.add_entry(found)) is not None:
                yield entry, reader.data()
        self._digest = reader.digest

    async def _read_files(self) -> AsyncGenerator[tuple[UploadedFile, AsyncIterator[bytes]]]:
        together = sha256()
        for path in sorted(self._files):
            key = upload_file_key(self._upload, path)
            entry = self._tree.add_file(path, await self._blobs.size(key) or 0)
            data = _Digested(self._blobs.read(key))
            yield entry, data.pieces
            async for _ in data.pieces:
                pass
            if data.size != entry.bytes:
                raise refuse(UploadFault.CHANGED, "was changed while it was read", path)
            together.update(f"{data.digest.hexdigest()}  {path}\n".encode())
        self._digest = together.hexdigest()

    def manifest(self) -> UploadManifest:
        """Return what all entries were, once the last was read."""
        return UploadManifest(
            entries=tuple(self._tree.entries), bytes=self._tree.bytes, digest=self._digest
        )


class _Digested:
    """Data that is counted as it is read."""

    def __init__(self, data: AsyncIterator[bytes]) -> None:
        self.size = 0
        self.digest = sha256()
        self.pieces = self._count(data)

    async def _count(self, data: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in data:
            self.size += len(piece)
            self.digest.update(piece)
            yield piece


async def scan_upload(
    blobs: Blobs, upload: str, *, files: Sequence[str] = (), most_bytes: int = UPLOAD_BYTES
) -> UploadManifest:
    """Read what was uploaded, keep its manifest beside it, and return it.

    `files` are the paths of single files; without any there is an archive. Raise `UploadRefused` if
    it is hostile, broken or beyond a limit.
    """
    contents = UploadContents(blobs, upload, files=files, most_bytes=most_bytes)
    async with aclosing(contents.entries()) as entries:
        async for _ in entries:
            pass
    manifest = contents.manifest()
    await blobs.put(upload_manifest_key(upload), msgspec.json.encode(manifest))
    return manifest


async def read_manifest(blobs: Blobs, upload: str) -> UploadManifest:
    """Read the manifest that was kept when an upload was finalized; `NoSuchBlob` if it is gone."""
    text = await read_blob(blobs, upload_manifest_key(upload))
    try:
        return msgspec.json.decode(text, type=UploadManifest)
    except msgspec.MsgspecError as error:
        raise UploadRefused(f"the manifest of {upload} is damaged: {error}") from error
