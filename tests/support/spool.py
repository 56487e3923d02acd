"""Spool files of commands as their writers write them, and logs in blobs as they are shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.ids import host_name
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import Kind
from holdfast.ports.blobs import Blobs
from holdfast.ports.box import LOG_FILE, Box
from holdfast.ports.store import Store
from holdfast.queries.log_segments import list_log, make_segment
from holdfast.testing.store_actions import running_job
from holdfast.wiring import plan_blobs

AT = b"2023-11-14T22:13:20.123456789+00:00"
CONMON = b"".join(
    [
        b"2026-11-17T18:17:22.490434491+00:00 stdout F hello\n",
        b"2026-11-17T18:17:22.490434491+00:00 stdout P no newline yet\n",
        b"2026-11-17T18:17:22.490705915+00:00 stderr F warn\n",
        b"2026-11-17T18:17:22.791541876+00:00 stdout F  and now\n",
        b"2026-11-17T18:17:22.791541876+00:00 stdout F a\tb\x1b[31mred\x1b[0m\n",
        b"2026-11-17T18:17:22.792744616+00:00 stdout P " + 8192 * b"x" + b"\n",
        b"2026-11-17T18:17:22.792813528+00:00 stdout P " + 8192 * b"x" + b"\n",
        b"2026-11-17T18:17:22.792851915+00:00 stdout P " + 3616 * b"x" + b"\n",
        b"2026-11-17T18:17:22.793068958+00:00 stdout F \n",
        b"2026-11-17T18:17:22.793068958+00:00 stdout F \xff\xfe bad\n",
        b"2026-11-17T18:17:23.395760458+00:00 stdout P last\n",
    ]
)
"""What conmon 2.1.6 wrote of a command that printed to both, in parts, and no last newline."""


def record(text: bytes | str, stream: str = "stdout", tag: str = "F") -> bytes:
    """Write one record."""
    data = text.encode() if isinstance(text, str) else text
    return b"%b %b %b %b\n" % (AT, stream.encode(), tag.encode(), data)


def spool(directory: Path, *records: bytes) -> Path:
    """Add records to the log in an attempt's directory."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOG_FILE
    with path.open("ab") as file:
        file.write(b"".join(records))
    return path


async def running_command(store: Store, **fields: Any) -> Job:
    """Return a command that runs on this host."""
    given = {"kind": Kind.COMMAND, "task": "worker", "owner": f"{host_name()}:1:aa"} | fields
    return await running_job(store, **given)


async def ship(blobs: Blobs, job: Job, *records: bytes) -> int:
    """Add bytes to a log in blobs, as one more segment; return how long it is then."""
    start = (await list_log(blobs, job.id, job.attempt)).end
    data = b"".join(records)
    if data:
        segment = make_segment(job.id, job.attempt, start, start + len(data))
        await blobs.put(segment.key, data)
    return start + len(data)


async def ship_into(store: Store, command_dir: Path, job: Job, *records: bytes) -> int:
    """Add bytes to a log in the blobs below a directory of commands."""
    return await ship(await plan_blobs(None, command_dir)(store), job, *records)


def make_box(job: JobId, attempt: int, directory: Path) -> Box:
    """Make the box of an attempt: what ships its log needs no more of it than this."""
    return Box(
        job=job,
        attempt=attempt,
        epoch=1,
        host="here",
        store="store",
        type="worker",
        argv=("true",),
        image=None,
        cpus=1,
        memory_mb=64,
        env={},
        work=directory / "work",
        work_writable=False,
        artifacts=directory / "artifacts",
        directory=directory,
    )
