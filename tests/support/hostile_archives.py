"""Archives that must be refused: each with the code of its refusal."""

import io
import tarfile

from holdfast.flow.tar_format import END
from tests.support.archives import directory, entry, link, pack, patch_header


def sparse() -> bytes:
    """Return an archive with a sparse member of 10 TB in pax."""
    info, data = entry("sparse", b"0" * 512)
    info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.realsize": str(10 * 2**40)}
    return pack((info, data))


def with_pax(**records: str) -> bytes:
    """Return an archive of one file with a pax header."""
    info, data = entry("a", b"data")
    info.pax_headers = dict(records)
    return pack((info, data))


def global_pax(**records: str) -> bytes:
    """Return an archive with a pax header for all entries."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", pax_headers=records) as archive:
        archive.addfile(tarfile.TarInfo("a"))
    return made.getvalue()


ONE = pack(entry("a", b"data"))
SIZE, TYPE = 124, 156
HOSTILE = {
    "up": (pack(entry("../canary")), "entry_leaves"),
    "up inside": (pack(entry("a/../../canary")), "entry_leaves"),
    "up as a directory": (pack(directory("..")), "entry_leaves"),
    "absolute": (pack(entry("/canary")), "entry_absolute"),
    "two slashes": (pack(entry("a//b")), "entry_name"),
    "here inside": (pack(entry("a/./b")), "entry_name"),
    "backslash": (pack(entry("..\\canary")), "entry_name"),
    "newline": (pack(entry("a\nb")), "entry_name"),
    "escape": (pack(entry("a\x1b[2Jb")), "entry_name"),
    "line separator": (pack(entry("a\u2028b")), "entry_name"),
    "NUL in a header": (patch_header(ONE, 0, b"a\0b"), "entry_name"),
    "NUL in pax": (with_pax(path="a\0b"), "entry_name"),
    "not UTF-8": (patch_header(ONE, 0, b"a\xff\xfe"), "entry_name"),
    "no name": (patch_header(ONE, 0, b"\0"), "entry_name"),
    "a file as root": (pack(entry("./")), "entry_name"),
    "long part": (pack(entry("n" * 256)), "entry_name_too_long"),
    "long path": (pack(entry("/".join(["n" * 250] * 17))), "entry_name_too_long"),
    "deep": (pack(entry("/".join("n" * 65))), "entry_too_deep"),
    "twice": (pack(entry("a"), entry("a")), "entry_duplicate"),
    "twice with ./": (pack(entry("a"), entry("./a")), "entry_duplicate"),
    "directory twice": (pack(directory("a"), directory("a")), "entry_duplicate"),
    "directory and file": (pack(directory("a"), entry("a")), "entry_duplicate"),
    "other case": (pack(entry("a/x"), entry("A/y")), "entry_duplicate"),
    "other form": (pack(entry("\u00e9"), entry("e\u0301")), "entry_duplicate"),
    "below a file": (pack(entry("a"), entry("a/b")), "entry_duplicate"),
    "hard link": (pack(entry("a", type_=tarfile.LNKTYPE, target="b")), "entry_hard_link"),
    "hard link to link": (
        pack(link("l", "x"), entry("a", type_=tarfile.LNKTYPE, target="l")),
        "entry_hard_link",
    ),
    "character device": (pack(entry("a", type_=tarfile.CHRTYPE)), "entry_device"),
    "block device": (pack(entry("a", type_=tarfile.BLKTYPE)), "entry_device"),
    "FIFO": (pack(entry("a", type_=tarfile.FIFOTYPE)), "entry_fifo"),
    "setuid": (pack(entry("a", mode=0o4755)), "entry_setuid"),
    "setgid": (pack(entry("a", mode=0o2755)), "entry_setuid"),
    "GNU sparse": (patch_header(ONE, TYPE, b"S"), "entry_sparse"),
    "pax sparse of 10 TB": (sparse(), "entry_sparse"),
    "unknown type": (patch_header(ONE, TYPE, b"V"), "entry_type"),
    "absolute link": (pack(link("a", "/etc/shadow")), "link_leaves"),
    "link without target": (pack(link("a", "")), "link_leaves"),
    "link up": (pack(link("a", "..")), "link_leaves"),
    "link up from below": (pack(link("d/a", "../../x")), "link_leaves"),
    "chain of links": (pack(link("a/b/c", "../.."), link("m", "a/b/c/../..")), "link_leaves"),
    "through a link": (pack(link("d", "e"), entry("d/canary")), "entry_through_link"),
    "through a late link": (pack(entry("d/canary"), link("d", "e")), "entry_duplicate"),
    "10 TB": (with_pax(size=str(10 * 2**40)), "upload_too_large"),
    "8 EB": (patch_header(ONE, SIZE, b"\x80\0\0\0\x7f" + b"\xff" * 7), "entry_size"),
    "negative": (patch_header(ONE, SIZE, b"\xff" * 12), "entry_size"),
    "negative in pax": (with_pax(size="-1"), "entry_size"),
    "no number": (patch_header(ONE, SIZE, b"00000000zzz\0"), "archive_header"),
    "longer than it is": (patch_header(ONE, SIZE, b"00000077777\0"), "archive_truncated"),
    "shorter than it is": (patch_header(ONE, SIZE, b"00000000000\0"), "archive_checksum"),
    "a directory with data": (patch_header(ONE, TYPE, b"5"), "entry_size"),
    "damaged": (ONE[:5] + b"!" + ONE[6:], "archive_checksum"),
    "a second archive": (ONE + pack(entry("b")), "archive_garbage"),
    "garbage at the end": (ONE + b"x", "archive_garbage"),
    "one empty block": (ONE[:1024] + bytes(512) + ONE[:1024], "archive_garbage"),
    "cut in a header": (ONE[:300], "archive_truncated"),
    "cut in data": (ONE[:600], "archive_truncated"),
    "cut before the end": (ONE[:1024], "archive_truncated"),
    "cut in the end": (ONE[:1536], "archive_truncated"),
    "empty": (b"", "archive_truncated"),
    "gzip": (b"\x1f\x8b\x08" + bytes(600), "archive_compressed"),
    "short gzip": (b"\x1f\x8b\x08", "archive_compressed"),
    "zip": (b"PK\x03\x04" + bytes(600), "archive_compressed"),
    "text": (b"hello " * 200, "archive_not_tar"),
    "one path for all": (global_pax(path="x"), "archive_header"),
    "two long names": (
        pack(entry("n" * 200), format_=tarfile.GNU_FORMAT)[:1024]
        + pack(entry("m" * 200), format_=tarfile.GNU_FORMAT),
        "archive_header",
    ),
    "a header that names nothing": (
        pack(entry("n" * 200), format_=tarfile.GNU_FORMAT)[:1024] + END,
        "archive_header",
    ),
    "long extended header": (
        patch_header(pack(entry("n" * 200), format_=tarfile.GNU_FORMAT), SIZE, b"00077777777\0"),
        "entry_name_too_long",
    ),
    "long pax header": (with_pax(comment="x" * 17_000), "entry_name_too_long"),
    "many pax records": (
        with_pax(**{f"holdfast.{number}": "" for number in range(101)}),
        "archive_header",
    ),
}
