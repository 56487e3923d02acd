"""The headers of a tar archive, read and written. Pure.

Read are ustar, GNU long names and pax headers, as far as they name a file, its length and where a
link leads. Times, owners and anything else that an archive may carry are left alone. The standard
library has a reader, too; it follows what an archive claims, and this one refuses what is unclear.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from holdfast.errors import UploadRefused

BLOCK = 512
MOST_SIZE = 2**62
"""More than any file has; a header may claim it."""
MOST_RECORDS = 100
"""Records of one pax header; programs write about ten."""
_POSIX, _GNU = b"ustar\x0000", b"ustar  \x00"
_CHECKSUM = slice(148, 156)
_OCTAL = frozenset(b"01234567")
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK": "zip",
}


class UploadFault(StrEnum):
    """Why an upload is refused: the code of its `UploadRefused`."""

    COMPRESSED = "archive_compressed"
    NOT_TAR = "archive_not_tar"
    HEADER = "archive_header"
    CHECKSUM = "archive_checksum"
    TRUNCATED = "archive_truncated"
    GARBAGE = "archive_garbage"
    SIZE = "entry_size"
    NAME = "entry_name"
    ABSOLUTE = "entry_absolute"
    LEAVES = "entry_leaves"
    LONG = "entry_name_too_long"
    DEEP = "entry_too_deep"
    DUPLICATE = "entry_duplicate"
    HARD_LINK = "entry_hard_link"
    DEVICE = "entry_device"
    FIFO = "entry_fifo"
    SPARSE = "entry_sparse"
    TYPE = "entry_type"
    PRIVILEGED = "entry_setuid"
    LINK = "link_leaves"
    THROUGH_LINK = "entry_through_link"
    MANY = "too_many_entries"
    LARGE = "upload_too_large"
    CHANGED = "upload_changed"


class EntryType(StrEnum):
    """What an entry of an archive is, by the flag of its header."""

    FILE = "0"
    HARD_LINK = "1"
    LINK = "2"
    CHARACTER_DEVICE = "3"
    BLOCK_DEVICE = "4"
    DIRECTORY = "5"
    FIFO = "6"
    PAX = "x"
    PAX_FOR_ALL = "g"
    GNU_NAME = "L"
    GNU_TARGET = "K"
    GNU_SPARSE = "S"


class TarHeader(Struct, frozen=True, kw_only=True):
    """One header block."""

    name: bytes
    type: EntryType
    size: int
    mode: int
    target: bytes


def refuse(fault: UploadFault, text: str, entry: str | None = None) -> UploadRefused:
    """Return the error of an upload that cannot be accepted; it names the entry at fault."""
    about = "" if entry is None else f"{entry!a} "
    return UploadRefused(f"{about}{text}", code=fault)


def check_start(block: bytes) -> None:
    """Refuse what is not a tar at all, by its first bytes."""
    for magic, name in _COMPRESSED.items():
        if block.startswith(magic):
            text = f"the archive is compressed or packed by {name}; send an uncompressed tar"
            raise refuse(UploadFault.COMPRESSED, text)
    if len(block) < BLOCK:
        raise refuse(UploadFault.TRUNCATED, "the archive is empty, or ends within its first header")
    if any(block) and block[257:265] not in (_POSIX, _GNU):
        raise refuse(UploadFault.NOT_TAR, "this is not a tar archive; send an uncompressed tar")


def read_header(block: bytes) -> TarHeader:
    """Read a header block; raise `UploadRefused` if it is damaged or unclear."""
    _verify_checksum(block)
    magic = block[257:265]
    if magic not in (_POSIX, _GNU):
        raise refuse(UploadFault.HEADER, "a header of the archive is neither ustar nor GNU")
    name = _read_text(block[0:100])
    if magic == _POSIX and (prefix := _read_text(block[345:500])):
        name = prefix + b"/" + name
    return TarHeader(
        name=name,
        type=_read_type(block[156], name),
        size=_read_number(block[124:136], "size"),
        mode=_read_number(block[100:108], "mode"),
        target=_read_text(block[157:257]),
    )


def _verify_checksum(block: bytes) -> None:
    stored = _read_number(block[_CHECKSUM], "checksum")
    if stored != _compute_checksum(block):
        raise refuse(
            UploadFault.CHECKSUM, "a header of the archive is damaged: its checksum is wrong"
        )


def _compute_checksum(block: bytes) -> int:
    """Return the sum of a header, whose own field counts as blanks."""
    return sum(block) - sum(block[_CHECKSUM]) + 8 * ord(" ")


def _read_text(field: bytes) -> bytes:
    """Read a field that ends with NUL, or is full; refuse one with more after its end."""
    text, _, rest = field.partition(b"\x00")
    if any(rest):
        raise refuse(UploadFault.NAME, "has a NUL within its name", _show(text))
    return text


def _read_type(flag: int, name: bytes) -> EntryType:
    if flag == 0:
        return EntryType.FILE
    try:
        return EntryType(chr(flag))
    except ValueError:
        text = f"is of a type that is not accepted: {chr(flag)!a}"
        raise refuse(UploadFault.TYPE, text, _show(name)) from None


def _read_number(field: bytes, what: str) -> int:
    """Read a number: octal digits, or binary where the first bit is set (GNU)."""
    if field[0] & 0x80:
        value = int.from_bytes(field[1:], "big")
        if field[0] != 0x80 or value > MOST_SIZE:
            raise refuse(UploadFault.SIZE, f"a header of the archive has an impossible {what}")
        return value
    digits = field.strip(b" \x00")
    if not _OCTAL.issuperset(digits):
        raise refuse(UploadFault.HEADER, f"a header of the archive has no valid {what}")
    return int(digits or b"0", 8)


def read_pax(data: bytes) -> dict[str, bytes]:
    """Read the records of a pax header: `LENGTH KEYWORD=VALUE\\n`."""
    records: dict[str, bytes] = {}
    start = count = 0
    while start < len(data):
        count += 1
        if count > MOST_RECORDS:
            text = f"a pax header of the archive has more than {MOST_RECORDS} records, the limit"
            raise refuse(UploadFault.HEADER, text)
        digits, space, _ = data[start : start + 20].partition(b" ")
        end = start + (int(digits) if digits.isdigit() else 0)
        keyword, equals, value = data[start + len(digits) + 1 : end - 1].partition(b"=")
        if not space or not equals or data[end - 1 : end] != b"\n":
            raise refuse(UploadFault.HEADER, "a pax header of the archive is damaged")
        records[keyword.decode("utf-8", "replace")] = value
        start = end
    return records


def read_pax_size(value: bytes) -> int:
    """Read the size in a pax header: decimal digits."""
    if not value.isdigit() or len(value) > 19 or int(value) > MOST_SIZE:
        raise refuse(
            UploadFault.SIZE, f"a pax header of the archive has an impossible size {value!a}"
        )
    return int(value)


def _show(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def padding(size: int) -> int:
    """Return how many bytes follow data of this length, up to the next block."""
    return -size % BLOCK


END = bytes(2 * BLOCK)
"""Two empty blocks end an archive."""


def write_header(
    path: str, kind: EntryType, *, size: int = 0, executable: bool = False, target: str = ""
) -> bytes:
    """Write the header of an entry; a name or size that ustar has no room for goes into pax."""
    name, link = path.encode(), target.encode()
    records = {}
    if len(name) > 100:
        records["path"] = name
    if len(link) > 100:
        records["linkpath"] = link
    if size >= 8**11:
        records["size"] = str(size).encode()
    mode = 0o755 if executable or kind is EntryType.DIRECTORY else 0o644
    own = _write_block(name[:100], kind, 0 if "size" in records else size, mode, link[:100])
    if not records:
        return own
    data = b"".join(_write_record(*one) for one in records.items())
    head = _write_block(b"pax", EntryType.PAX, len(data), 0o644, b"")
    return head + data + bytes(padding(len(data))) + own


def _write_block(name: bytes, kind: EntryType, size: int, mode: int, target: bytes) -> bytes:
    block = bytearray(BLOCK)
    block[0 : len(name)] = name
    block[100:108] = b"%07o\x00" % mode
    block[108:116] = block[116:124] = b"%07o\x00" % 0
    block[124:136] = b"%011o\x00" % size
    block[136:148] = b"%011o\x00" % 0
    block[156] = ord(kind)
    block[157 : 157 + len(target)] = target
    block[257:265] = _POSIX
    block[_CHECKSUM] = b"%06o\x00 " % _compute_checksum(bytes(block))
    return bytes(block)


def _write_record(keyword: str, value: bytes) -> bytes:
    rest = b" " + keyword.encode() + b"=" + value + b"\n"
    length = len(rest) + 1
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return str(length).encode() + rest
