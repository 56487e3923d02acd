"""Archives for tests: good ones, and such as no honest program writes."""

import io
import tarfile
from collections.abc import AsyncIterable, AsyncIterator, Collection

from holdfast.errors import NoSuchBlob
from holdfast.ports.blobs import BlobEntry, StoredBlob
from holdfast.queries.blob_keys import upload_archive_key

UPLOAD = "0123456789abcdef"


def entry(
    name: str,
    data: bytes = b"",
    *,
    type_: bytes = tarfile.REGTYPE,
    mode: int = 0o644,
    target: str = "",
) -> tuple[tarfile.TarInfo, bytes]:
    """Return one entry; nothing about it is checked."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.linkname, info.size = type_, mode, target, len(data)
    return info, data


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    """Return a symbolic link."""
    return entry(name, type_=tarfile.SYMTYPE, target=target)


def directory(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    """Return a directory."""
    return entry(name, type_=tarfile.DIRTYPE, mode=mode)


def pack(*entries: tuple[tarfile.TarInfo, bytes], format_: int = tarfile.PAX_FORMAT) -> bytes:
    """Write an archive of entries, as the standard library writes it."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=format_) as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return made.getvalue()


def patch_header(archive: bytes, start: int, value: bytes, *, at: int = 0) -> bytes:
    """Replace bytes of the header at an offset, and correct its checksum."""
    header = bytearray(archive[at : at + 512])
    header[start : start + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return archive[:at] + bytes(header) + archive[at + 512 :]


class MemoryBlobs:
    """Blobs in memory, read in small pieces. Implements `Blobs` as far as archives need it."""

    def __init__(self, archive: bytes | None = None, piece_bytes: int = 700) -> None:
        """Hold an archive as the one of `UPLOAD`."""
        self.blobs: dict[str, bytes] = {}
        self._piece_bytes = piece_bytes
        if archive is not None:
            self.blobs[upload_archive_key(UPLOAD)] = archive

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        """Keep a blob."""
        if not isinstance(data, bytes):
            data = b"".join([piece async for piece in data])
        self.blobs[key] = data
        return StoredBlob(len(data), "")

    async def read(
        self, key: str, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """Return a blob in pieces."""
        if key not in self.blobs:
            raise NoSuchBlob(f"there is no blob {key}")
        data = self.blobs[key][start:end]
        for at in range(0, len(data), self._piece_bytes):
            yield data[at : at + self._piece_bytes]

    async def size(self, key: str) -> int | None:
        """Return the length of a blob."""
        return len(self.blobs[key]) if key in self.blobs else None

    async def list(self, prefix: str) -> AsyncIterator[BlobEntry]:
        """List blobs."""
        for key, data in sorted(self.blobs.items()):
            if key.startswith(prefix + "/"):
                yield BlobEntry(key, len(data), 0)

    async def delete(self, keys: Collection[str]) -> None:
        """Forget blobs."""
        for key in keys:
            self.blobs.pop(key, None)

    async def room(self) -> int | None:
        """Nobody knows."""
        return None
