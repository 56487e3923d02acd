"""The log of a command by its operations, at hand and through a server: read, cut and followed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import UNSET

from holdfast import Holdfast
from holdfast.client.remote import RemoteOperations
from holdfast.client.transport import Transport, make_headers, make_http
from holdfast.errors import LogErased, LogUnreadable, NoSuchJob, Refused
from holdfast.http.app import make_server
from holdfast.ids import host_name
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job, KeptOutput
from holdfast.lifecycle.states import Kind, State
from holdfast.operations import follow_logs, read_logs
from holdfast.operations.follow_logs import follow_lines
from holdfast.operations.local import LocalOperations
from holdfast.operations.request import Operations, R, Request
from holdfast.operations.requests import GetLogs, GetOutput
from holdfast.operations.session import StoreSession
from holdfast.ports.models import LogEntry
from holdfast.ports.store import Store
from holdfast.queries.log_records import OutputStream
from holdfast.testing.factories import JANITOR, owner_of
from holdfast.testing.store_actions import claim_one, do, job_in, running_job, stored, submit_one
from holdfast.wiring import plan_blobs
from tests.operations.conftest import Trusting
from tests.support.spool import record, running_command, ship_into

LIMIT_SECONDS = 60.0
Write = Callable[..., Awaitable[int]]


@pytest.fixture(params=["at hand", "through a server"])
async def everybody(
    request: pytest.FixtureRequest, store: Store, tmp_path: Path
) -> AsyncIterator[Operations]:
    """The operations of a caller for all tenants, on a host with commands."""
    async with AsyncExitStack() as stack:
        if request.param == "at hand":
            session = StoreSession(store, open_blobs=plan_blobs(None, tmp_path))
            await session.open()
            stack.push_async_callback(session.close)
            yield LocalOperations(session, name="root", tenant=None)
            return
        server = make_server(store, Trusting(), open_blobs=plan_blobs(None, tmp_path))
        await stack.enter_async_context(server.lifespan_context(server))
        http = make_http("http://test", make_headers("root@", None), httpx.ASGITransport(server))
        stack.push_async_callback(http.aclose)
        yield RemoteOperations(Transport(http, patience_seconds=5.0))


@pytest.fixture
def write(store: Store, tmp_path: Path) -> Write:
    """Add records to a job's log; return how long it is."""

    async def add(job: Job, *records: bytes) -> int:
        return await ship_into(store, tmp_path, job, *records)

    return add


async def end(store: Store, job: Job, log: KeptOutput | None = None) -> Job:
    """End a running command well."""
    current = await stored(store, job.id)
    return await do(store, current, c.Complete(actor=owner_of(current), exit_code=0, log=log))


@pytest.mark.parametrize("kind", [Kind.COMMAND, Kind.AGENT])
async def test_the_lines_of_a_command_have_streams_and_a_size(
    everybody: Operations, store: Store, write: Write, kind: Kind
) -> None:
    job = await running_command(store, kind=kind)
    size = await write(job, record("one"), record("two", "stderr"), record("more", tag="P"))
    log = await everybody.do(GetLogs(job=job.id))
    shown = [(line.stream, line.message, line.partial, line.attempt) for line in log.lines]
    assert shown == [
        (OutputStream.STDOUT, "one", False, 1),
        (OutputStream.STDERR, "two", False, 1),
    ]
    assert (log.ended, log.truncated, log.total_bytes) == (False, False, size)
    assert log.next == log.lines[-1].position
    await end(store, job)
    rest = await everybody.do(GetLogs(job=job.id, after=log.next))
    assert [(line.message, line.partial) for line in rest.lines] == [("more", True)]
    assert rest.ended


async def test_a_log_is_cut_by_tail_stream_and_limit(
    everybody: Operations, store: Store, write: Write
) -> None:
    job = await running_command(store)
    await write(job, *(record(f"{n}", "stderr" if n % 3 == 0 else "stdout") for n in range(10)))

    async def messages(**fields: Any) -> list[str]:
        log = await everybody.do(GetLogs(job=job.id, **fields))
        return [line.message for line in log.lines]

    assert await messages(tail=2) == ["8", "9"]
    assert await messages(stream=OutputStream.STDERR) == ["0", "3", "6", "9"]
    assert await messages(stream=OutputStream.STDERR, tail=2) == ["6", "9"]
    assert await messages(tail=5, limit=2) == ["5", "6"]


async def test_the_log_of_a_function_has_no_stream_and_no_size(
    everybody: Operations, store: Store
) -> None:
    job = await running_job(store)
    lines = [LogEntry(id=job.id, attempt=1, at=n, level=20, message=f"{n}") for n in range(5)]
    await store.keep_logs(lines)
    log = await everybody.do(GetLogs(job=job.id, tail=2))
    assert [line.message for line in log.lines] == ["3", "4"]
    assert log.lines[0].stream is log.truncated is log.total_bytes is UNSET
    assert (await everybody.do(GetLogs(job=job.id, stream=OutputStream.STDOUT))).lines == []
    with pytest.raises(Refused, match="prints nothing") as refused:
        await everybody.do(GetOutput(job=job.id))
    assert refused.value.code == "no_output"


async def test_a_command_that_has_not_started_has_printed_nothing(
    everybody: Operations, store: Store
) -> None:
    job = await job_in(store, State.QUEUED, kind=Kind.COMMAND)
    log = await everybody.do(GetLogs(job=job.id))
    assert (log.lines, log.next, log.truncated) == ([], 0, False)
    assert (await everybody.do(GetOutput(job=job.id))).output == ""


async def test_what_cannot_be_read_has_its_own_error(
    everybody: Operations, store: Store, write: Write
) -> None:
    gone = await running_command(store)
    await end(store, gone, KeptOutput(digest="ab", bytes=1))
    with pytest.raises(LogUnreadable):
        await everybody.do(GetOutput(job=gone.id))
    cleaned = await running_command(store)
    await write(cleaned, record("old"))
    await do(store, await end(store, cleaned), c.Clean(actor=JANITOR))
    with pytest.raises(LogErased):
        await everybody.do(GetLogs(job=cleaned.id))


async def test_another_tenants_output_is_not_there(store: Store, tmp_path: Path) -> None:
    session = StoreSession(store, open_blobs=plan_blobs(None, tmp_path))
    await session.open()
    theirs = await running_command(store, tenant="theirs")
    await ship_into(store, tmp_path, theirs, record("secret"))
    mine = LocalOperations(session, name="ann", tenant="mine")
    for request in (GetLogs(job=theirs.id), GetOutput(job=theirs.id)):
        with pytest.raises(NoSuchJob):
            await mine.do(request)
    await session.close()


async def test_an_output_is_the_last_lines_as_one_text(
    everybody: Operations, store: Store, write: Write, tmp_path: Path
) -> None:
    job = await running_command(store)
    await write(job, record("one"), record("two", "stderr"), record("thr", tag="P"))
    size = await write(job, record("ee"), record("a\u2028b\x85c"))
    output = await everybody.do(GetOutput(job=job.id, tail=3))
    assert (output.output, output.lines) == ("two\nthree\na\u2028b\x85c\n", 3)
    assert (output.total_bytes, output.truncated) == (size, False)


async def test_an_output_keeps_the_last_bytes_of_what_is_too_long(
    everybody: Operations, store: Store, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_logs, "OUTPUT_BYTES", 1000)
    job = await running_command(store)
    await write(job, *(record(f"{n:099}") for n in range(10_000)))
    output = await everybody.do(GetOutput(job=job.id, tail=10_000))
    assert 1000 < len(output.output) <= 1100
    assert output.output.endswith("9999\n")


async def test_a_followed_log_has_every_line_once_and_ends_with_its_job(
    everybody: Operations, store: Store, write: Write
) -> None:
    job = await running_command(store)
    seen: list[str] = []
    came = asyncio.Event()

    async def follow() -> None:
        async for line in follow_lines(everybody, GetLogs(job=job.id)):
            seen.append(line.message)
            came.set()

    following = asyncio.create_task(follow())
    async with asyncio.timeout(LIMIT_SECONDS):
        for number in range(5):
            # A record arrives in two writes, as it may when the file is read meanwhile.
            whole = record(f"line {number}")
            await write(job, whole[:20])
            await asyncio.sleep(0)
            await write(job, whole[20:])
            await came.wait()
            came.clear()
        await write(job, record("last", tag="P"))
        await end(store, job)
        await following
    assert seen == [*(f"line {number}" for number in range(5)), "last"]


async def test_a_follower_waits_for_a_command_to_start(
    everybody: Operations, store: Store, tmp_path: Path
) -> None:
    job = await submit_one(store, kind=Kind.COMMAND, queue="later")
    seen: list[str] = []

    async def follow() -> None:
        seen.extend([line.message async for line in follow_lines(everybody, GetLogs(job=job.id))])

    following = asyncio.create_task(follow())
    await asyncio.sleep(0.05)
    claimed = (await claim_one(store, "later", owner=f"{host_name()}:1:aa")).job
    await ship_into(store, tmp_path, claimed, record("hello"))
    await do(store, claimed, c.Start(actor=owner_of(claimed)))
    await end(store, claimed)
    async with asyncio.timeout(LIMIT_SECONDS):
        await following
    assert seen == ["hello"]


class LateLine:
    """Operations on a log whose last line is written only after it was read once."""

    def __init__(self, operations: Operations, store: Store, line: LogEntry) -> None:
        self._operations, self._store, self._line = operations, store, line
        self.reads = 0

    async def do(self, request: Request[R]) -> R:
        """Read, then write the line if it is the first time."""
        result = await self._operations.do(request)
        self.reads += 1
        if self.reads == 1:
            await self._store.keep_logs([self._line])
        return result


async def test_the_last_lines_of_a_handler_may_come_after_its_end(
    everybody: Operations, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_logs, "LAST_READ_SECONDS", 0)
    job = await job_in(store, State.SUCCEEDED)
    line = LogEntry(id=job.id, attempt=1, at=7, level=20, message="late")
    late = LateLine(everybody, store, line)
    lines = [line.message async for line in follow_lines(late, GetLogs(job=job.id))]
    assert lines == ["late"]


async def test_an_app_reads_the_logs_of_its_own_directory(tmp_path: Path) -> None:
    async with Holdfast(":memory:", command_dir=tmp_path / "files") as app:
        store = await app.store()
        job = await running_command(store)
        await ship_into(store, tmp_path / "files", job, record("mine"))
        log = await (await app.operations()).do(GetLogs(job=job.id))
        assert [line.message for line in log.lines] == ["mine"]
