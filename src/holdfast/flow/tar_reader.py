"""Reads a tar archive piece by piece: its entries in order, each with its data.

Whatever the archive claims, only the piece at hand and one extended header are in memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from hashlib import sha256

from msgspec import Struct

from holdfast.flow.tar_format import (
    BLOCK,
    EntryType,
    TarHeader,
    UploadFault,
    check_start,
    padding,
    read_header,
    read_pax,
    read_pax_size,
    refuse,
)
from holdfast.ports.threads import let_others_run

MOST_EXTENDED = 16 * 1024
"""How long an extended header may be: twice what the longest path and target have together."""
MOST_HEADERS = 500_000
"""Header blocks of one archive, also of those that name nothing: five for each entry."""
STEPS_BETWEEN = 64
"""Reads of what is at hand after which the rest of the process has its turn."""
_EXTENDED = (EntryType.PAX, EntryType.PAX_FOR_ALL, EntryType.GNU_NAME, EntryType.GNU_TARGET)


class TarEntry(Struct, frozen=True, kw_only=True):
    """An entry as the archive names it; nothing of it is checked yet."""

    path: str
    type: EntryType
    size: int
    mode: int
    target: str


class TarReader:
    """The entries of one archive. Each is read by `next`, its data by `data` before the next."""

    def __init__(self, pieces: AsyncIterable[bytes]) -> None:
        """Read an archive that comes in pieces of any length."""
        self._source = _Source(pieces)
        self._data_left = 0
        self._padding_left = 0
        """How much of the last entry's data, and then of its padding, is still to come."""
        self._headers = 0

    @property
    def digest(self) -> str:
        """The SHA-256 of the archive, as far as it was read."""
        return self._source.digest.hexdigest()

    async def next(self) -> TarEntry | None:
        """Return the next entry, None at the end; what was not read of the last one is skipped.

        Raise `UploadRefused` where the archive is not as tar demands.
        """
        extended: dict[str, bytes] = {}
        while True:
            header = await self._next_header()
            if header is None:
                if extended:
                    raise refuse(UploadFault.HEADER, "the archive ends after an extended header")
                return None
            if header.type not in _EXTENDED:
                return self._enter(header, extended)
            for name, value in (await self._read_extended(header)).items():
                if name in extended:
                    raise refuse(UploadFault.HEADER, f"two headers of one entry have its {name}")
                extended[name] = value

    async def data(self) -> AsyncGenerator[bytes]:
        """Return the data of the last entry in pieces."""
        while self._data_left:
            piece = await self._source.some(self._data_left)
            self._data_left -= len(piece)
            yield piece

    async def _next_header(self) -> TarHeader | None:
        await self._skip_rest()
        block = await self._source.upto(BLOCK)
        if self._headers == 0:
            check_start(block)
        self._headers += 1
        if self._headers > MOST_HEADERS:
            text = f"the archive has more than {MOST_HEADERS:,} headers, the limit"
            raise refuse(UploadFault.MANY, text)
        if len(block) < BLOCK:
            raise refuse(
                UploadFault.TRUNCATED, "the archive ends before its end mark; send all of it"
            )
        if any(block):
            return read_header(block)
        await self._check_end()
        return None

    async def _skip_rest(self) -> None:
        async for _ in self.data():
            pass
        await self._source.exactly(self._padding_left)
        self._padding_left = 0

    async def _check_end(self) -> None:
        """Check that a second empty block follows, and nothing but zeros from there on."""
        second = await self._source.upto(BLOCK)
        if len(second) < BLOCK:
            raise refuse(
                UploadFault.TRUNCATED, "the archive ends within its end mark; send all of it"
            )
        while second:
            if any(second):
                raise refuse(UploadFault.GARBAGE, "the archive has more data after its end mark")
            second = await self._source.upto(BLOCK)

    async def _read_extended(self, header: TarHeader) -> dict[str, bytes]:
        """Read a header that names the entry after it: its path, its target, its size."""
        if header.size > MOST_EXTENDED:
            text = f"an extended header of the archive has {header.size:,} bytes"
            raise refuse(UploadFault.LONG, f"{text}; the limit is {MOST_EXTENDED:,}")
        data = await self._source.exactly(header.size)
        await self._source.exactly(padding(header.size))
        if header.type is EntryType.GNU_NAME:
            return {"path": _strip_end(data)}
        if header.type is EntryType.GNU_TARGET:
            return {"linkpath": _strip_end(data)}
        records = read_pax(data)
        if any(name.startswith("GNU.sparse.") for name in records):
            raise refuse(UploadFault.SPARSE, "the archive has sparse files; send them whole")
        known = {name: value for name, value in records.items() if name in _KNOWN}
        if known and header.type is EntryType.PAX_FOR_ALL:
            names = ", ".join(known)
            raise refuse(
                UploadFault.HEADER, f"a header of the archive has one {names} for all entries"
            )
        return known

    def _enter(self, header: TarHeader, extended: dict[str, bytes]) -> TarEntry:
        """Return an entry by its own header and the extended ones before it."""
        size = read_pax_size(extended["size"]) if "size" in extended else header.size
        entry = TarEntry(
            path=_decode(extended.get("path", header.name)),
            type=header.type,
            size=size,
            mode=header.mode,
            target=_decode(extended.get("linkpath", header.target)),
        )
        self._data_left, self._padding_left = size, padding(size)
        return entry


_KNOWN = frozenset({"path", "linkpath", "size"})


def _strip_end(data: bytes) -> bytes:
    """Return a GNU long name without the NUL at its end."""
    return data.removesuffix(b"\x00")


def _decode(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        shown = name.decode("utf-8", "backslashreplace")
        raise refuse(UploadFault.NAME, "has a name that is not UTF-8", shown) from None


class _Source:
    """Bytes that come in pieces, read in lengths of our own."""

    def __init__(self, pieces: AsyncIterable[bytes]) -> None:
        self._pieces = aiter(pieces)
        self._piece = b""
        self._at = 0
        self._steps = 0
        self.digest = sha256()

    async def some(self, most: int) -> bytes:
        """Return at least one byte and not more than `most`; refuse the end of the archive."""
        if not (taken := await self._take(most)):
            raise refuse(UploadFault.TRUNCATED, _CUT)
        return taken

    async def upto(self, length: int) -> bytes:
        """Return this many bytes; fewer only at the end of the archive."""
        parts: list[bytes] = []
        while length:
            part = await self._take(length)
            if not part:
                break
            parts.append(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def exactly(self, length: int) -> bytes:
        """Return this many bytes; refuse an archive that ends before."""
        data = await self.upto(length)
        if len(data) < length:
            raise refuse(UploadFault.TRUNCATED, _CUT)
        return data

    async def _take(self, most: int) -> bytes:
        """Return some of the bytes at hand, or of the next piece; nothing at the end."""
        self._steps += 1
        if self._steps % STEPS_BETWEEN == 0:
            # A piece has thousands of headers, and leases must be renewed meanwhile.
            await let_others_run()
        while self._at == len(self._piece):
            piece = await anext(self._pieces, None)
            if piece is None:
                return b""
            self.digest.update(piece)
            self._piece, self._at = piece, 0
        taken = self._piece[self._at : self._at + most]
        self._at += len(taken)
        return taken


_CUT = "the archive ends within an entry; send all of it"
