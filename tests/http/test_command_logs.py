"""The log of a command over HTTP: a page, a text, and a stream that is resumed without a gap."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from holdfast.http import logs
from holdfast.http.app import make_server
from holdfast.http.router import Application
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job, KeptOutput
from holdfast.lifecycle.states import State
from holdfast.ports.models import LogEntry
from holdfast.ports.store import Store
from holdfast.runners.command.ship_log import LogShipper
from holdfast.testing.factories import JANITOR, owner_of
from holdfast.testing.store_actions import do, job_in, stored
from holdfast.wiring import Address, make_store, migrate, opened, plan_blobs
from tests.http.conftest import Names
from tests.http.listening import LIMIT_SECONDS, Listener, listening
from tests.support.spool import make_box, record, running_command, ship_into, spool


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Application]:
    """A server on a host with commands."""
    store = make_store(Address(engine="sqlite", place=":memory:"))
    app = make_server(store, Names(), open_blobs=plan_blobs(None, tmp_path))
    async with app.lifespan_context(app):
        yield app


@pytest.fixture
def store(server: Application) -> Store:
    """The store of the server."""
    return server.state.session.store


@pytest.fixture
async def job(store: Store) -> Job:
    """A command that runs on this host, for tenant `mine`."""
    return await running_command(store, tenant="mine")


Printer = Callable[..., Awaitable[int]]


@pytest.fixture
def prints(store: Store, tmp_path: Path, job: Job) -> Printer:
    """Add records to its log; return how long that is."""

    async def add(*records: bytes) -> int:
        return await ship_into(store, tmp_path, job, *records)

    return add


async def end(store: Store, job: Job, log: KeptOutput | None = None) -> Job:
    """End a running command well."""
    current = await stored(store, job.id)
    return await do(store, current, c.Complete(actor=owner_of(current), exit_code=0, log=log))


async def read_to_the_end(listener: Listener) -> list[str]:
    """Read all messages of a stream that ends by itself."""
    messages: list[str] = []
    while (block := await listener.event()).event != "end":
        messages.append(block.data["message"])
    assert block.data["code"] == "ended"
    return messages


async def test_a_page_and_a_text_of_what_a_command_printed(
    http: httpx.AsyncClient, job: Job, prints: Printer
) -> None:
    size = await prints(record("one"), record("two", "stderr"))
    log = (await http.get(f"/v1/jobs/{job.id}/logs", params={"stream": "stderr"})).json()
    [line] = log["lines"]
    assert line == {
        "position": size,
        "attempt": 1,
        "at": "2023-11-14T22:13:20.123456Z",
        "level": 20,
        "message": "two",
        "stream": "stderr",
        "partial": False,
    }
    assert (log["truncated"], log["total_bytes"], log["ended"]) == (False, size, False)
    output = (await http.get(f"/v1/jobs/{job.id}/output", params={"tail": 1})).json()
    assert output == {
        "job_id": str(job.id),
        "output": "two\n",
        "lines": 1,
        "truncated": False,
        "total_bytes": size,
    }


@pytest.mark.parametrize(
    "query", [{"tail": 0}, {"stream": "stdin"}, {"tail": "all"}, {"follow": 1}]
)
async def test_what_cannot_be_asked_for_is_refused(
    http: httpx.AsyncClient, job: Job, query: dict[str, object]
) -> None:
    params = {name: str(value) for name, value in query.items()}
    reply = await http.get(f"/v1/jobs/{job.id}/logs", params=params)
    assert reply.status_code == 422, reply.text


async def test_a_log_is_followed_to_the_end_of_its_job(
    server: Application, store: Store, job: Job, prints: Printer
) -> None:
    await prints(record("one"))
    async with listening(server, f"/v1/jobs/{job.id}/logs") as listener:
        assert (await listener.event()).data["message"] == "one"
        await prints(record("two", "stderr"), record("thr", tag="P"))
        assert (await listener.event()).data["stream"] == "stderr"
        await end(store, job)
        assert await read_to_the_end(listener) == ["thr"]


async def test_a_stream_is_resumed_without_gap_or_duplicate(
    server: Application, store: Store, job: Job, prints: Printer
) -> None:
    await prints(*(record(f"{number}") for number in range(20)))
    path, last, seen = f"/v1/jobs/{job.id}/logs", None, []
    for _ in range(3):
        async with listening(server, path, last=last) as listener:
            seen += [one["message"] for one in await listener.events(4)]
            last = listener.last_id
    await end(store, job)
    async with listening(server, path, last=last) as listener:
        seen += await read_to_the_end(listener)
        last = listener.last_id
    assert seen == [f"{number}" for number in range(20)]
    async with listening(server, path, last=last) as listener:
        assert listener.status == 204


async def test_a_stream_starts_near_the_end_if_asked_to(
    server: Application, store: Store, job: Job, prints: Printer
) -> None:
    await prints(*(record(f"{number}") for number in range(20)))
    await end(store, job)
    async with listening(server, f"/v1/jobs/{job.id}/logs", tail=2) as listener:
        assert await read_to_the_end(listener) == ["18", "19"]


async def test_a_stream_of_one_stream_keeps_its_place_in_the_other(
    server: Application, store: Store, job: Job, prints: Printer
) -> None:
    await prints(*(record(10_000 * "x") for _ in range(1000)), record("rare", "stderr"))
    await end(store, job)
    async with listening(server, f"/v1/jobs/{job.id}/logs", stream="stderr") as listener:
        placed = 0
        while (block := await listener.block()).data is None:
            placed += block.id is not None
        assert block.data["message"] == "rare"
    assert placed > 0


async def test_the_log_of_a_handler_is_followed_too(
    server: Application, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await job_in(store, State.SUCCEEDED)
    line = LogEntry(id=job.id, attempt=1, at=7, level=20, message="done")
    await store.keep_logs([line])
    async with listening(server, f"/v1/jobs/{job.id}/logs") as listener:
        assert await read_to_the_end(listener) == ["done"]


async def test_functions_and_commands_have_one_route(
    server: Application, store: Store, http: httpx.AsyncClient, job: Job, prints: Printer
) -> None:
    function = await job_in(store, State.SUCCEEDED, tenant="mine")
    await store.keep_logs([LogEntry(id=function.id, attempt=1, at=7, level=20, message="hello")])
    await prints(record("hello"))
    await end(store, job)
    for one in (function, job):
        page = (await http.get(f"/v1/jobs/{one.id}/logs")).json()
        assert [line["message"] for line in page["lines"]] == ["hello"]
        async with listening(server, f"/v1/jobs/{one.id}/logs") as listener:
            assert await read_to_the_end(listener) == ["hello"]


async def test_a_log_is_followed_across_shippers_servers_and_the_end_of_its_job(
    tmp_path: Path,
) -> None:
    address = Address(engine="sqlite", place=str(tmp_path / "jobs.db"))
    await migrate(address)
    seen: list[str] = []
    last: str | None = None
    async with opened(address) as store:
        job = await running_command(store, tenant="mine")
        box = make_box(job.id, job.attempt, tmp_path / "box")
        blobs = await plan_blobs(None, tmp_path)(store)
        for part in range(4):
            spool(box.directory, *(record(f"{part}.{n}") for n in range(20)))
            # A worker that has taken over the box, and a server that was started again.
            async with (
                shipping(LogShipper(blobs, box)),
                serving(address, tmp_path) as server,
                listening(server, f"/v1/jobs/{job.id}/logs", last=last) as listener,
            ):
                seen += [one["message"] for one in await listener.events(15)]
                last = listener.last_id
        async with (
            serving(address, tmp_path) as server,
            listening(server, f"/v1/jobs/{job.id}/logs", last=last) as listener,
        ):
            await end(store, job, await LogShipper(blobs, box).finish())
            seen += await read_to_the_end(listener)
    assert seen == [f"{part}.{n}" for part in range(4) for n in range(20)]


@asynccontextmanager
async def shipping(shipper: LogShipper) -> AsyncIterator[None]:
    """Ship a log until the worker dies."""
    task = asyncio.create_task(shipper.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def serving(address: Address, directory: Path) -> AsyncIterator[Application]:
    """Serve a store that others have open, too."""
    app = make_server(make_store(address), Names(), open_blobs=plan_blobs(None, directory))
    async with app.lifespan_context(app):
        yield app


async def refused(
    client: httpx.AsyncClient, job: object, last: str | None = None
) -> tuple[int, str]:
    """Ask for a stream that is not to be had; return status and code of the problem."""
    headers = {"accept": "text/event-stream"} | ({} if last is None else {"last-event-id": last})
    reply = await client.get(f"/v1/jobs/{job}/logs", headers=headers)
    return reply.status_code, reply.json()["code"]


@pytest.mark.parametrize("last", ["x", "-1", "1" * 30])
async def test_a_last_event_id_must_be_a_position(
    http: httpx.AsyncClient, job: Job, last: str
) -> None:
    assert await refused(http, job.id, last) == (422, "bad_data")


async def test_what_is_not_here_is_a_problem_and_not_a_stream(
    store: Store, job: Job, prints: Printer, call: Callable[[str | None], httpx.AsyncClient]
) -> None:
    await prints(record("secret"))
    lost = await running_command(store)
    await end(store, lost, KeptOutput(digest="ab", bytes=1))
    cleaned = await running_command(store)
    await do(store, await end(store, cleaned), c.Clean(actor=JANITOR))
    expected = {lost.id: (500, "log_unreadable"), cleaned.id: (410, "log_erased")}
    for one, problem in expected.items():
        assert await refused(call(None), one) == problem
        for what in ("logs", "output"):
            reply = await call(None).get(f"/v1/jobs/{one}/{what}")
            assert (reply.status_code, reply.json()["code"]) == problem
    assert await refused(call("viewer@theirs"), job.id) == (404, "no_such_job")
    assert await refused(call("worker@mine"), job.id) == (403, "forbidden")


async def test_a_silent_stream_is_kept_alive(
    server: Application, job: Job, prints: Printer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await prints()
    streams = server.state.streams
    streams.pace = type(streams.pace)(keep_alive_seconds=0.01)
    async with listening(server, f"/v1/jobs/{job.id}/logs") as listener:
        comments = [(await listener.block()).comment for _ in range(3)]
    assert comments[0] == "connected"
    assert comments[1:] == 2 * ["no line has come"]


async def test_a_follower_is_sent_no_more_than_its_share(
    server: Application, job: Job, prints: Printer, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = await prints(*(record(8000 * b"x") for _ in range(200)))
    monkeypatch.setattr(logs, "FOLLOWER_BYTES_PER_SECOND", 2 * size)
    now = asyncio.get_running_loop().time
    started = now()
    async with listening(server, f"/v1/jobs/{job.id}/logs") as listener:
        await listener.events(200)
    # All but the last page, whose pause comes after it, of what takes half a second.
    assert now() - started >= 0.3


async def test_twenty_followers_of_a_firehose_take_bounded_memory(
    server: Application, store: Store, job: Job, prints: Printer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "FOLLOWER_BYTES_PER_SECOND", 10**9)
    lines = 20
    await prints(*(record(8192 * b"y", tag="P") for _ in range(1000)))
    await prints(*(record(f"{number}") for number in range(lines)))
    await end(store, job)
    tracemalloc.start()
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(listening(server, f"/v1/jobs/{job.id}/logs"))
            for _ in range(20)
        ]
        async with asyncio.timeout(10 * LIMIT_SECONDS):
            sizes = await asyncio.gather(*(_count(listener) for listener in opened))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert {size // 8192 for size in sizes} == {1000}
    assert most < 100 * 1024 * 1024


async def _count(listener: Listener) -> int:
    """Read a stream to its end, and drop what it brings."""
    size = 0
    while (block := await listener.event()).event != "end":
        size += len(block.data["message"])
    return size
