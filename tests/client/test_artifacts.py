"""Artifacts by the methods of an app, a client and a handle; over a connection that breaks."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Client, Holdfast
from holdfast.client.remote import RemoteOperations
from holdfast.client.transport import Transport, make_http
from holdfast.errors import ArtifactsDamaged, ServerFailed, ServerUnavailable
from holdfast.http.app import make_server
from holdfast.operations.requests import GetArtifact
from holdfast.wiring import make_store, migrate, plan_blobs, read_address
from tests.client.conftest import Names
from tests.support.artifacts import end_with

DATA = os.urandom(500_000)
FILES = {"one": b"1", "d/two": DATA}


async def use(home: Holdfast | Client, job: str, to: Path) -> None:
    """Use every method on artifacts."""
    listed = await home.artifacts(job)
    assert [one.path for one in listed.artifacts] == ["d/two", "one"]
    handle = await home.get(job)
    assert await handle.artifacts() == listed
    assert b"".join([piece async for piece in handle.read_artifact("d/two")]) == DATA
    assert await home.download_artifacts(job, to, ["d"]) == [to / "d" / "two"]
    written = await handle.download_artifacts(str(to), overwrite=True)
    assert {str(path.relative_to(to)): path.read_bytes() for path in written} == FILES


async def test_an_app_and_a_client_have_the_same_methods(tmp_path: Path) -> None:
    place, blobs = str(tmp_path / "jobs.db"), str(tmp_path / "place")
    await migrate(read_address(place))
    app = Holdfast(place, blobs=blobs)
    async with app:
        store = await app.store()
        opened = await plan_blobs(blobs)(store)
        job = await end_with(store, opened, tmp_path, FILES, job_id="done")
        await use(app, "done", tmp_path / "app")
        server = make_server(make_store(read_address(place)), Names(), open_blobs=plan_blobs(blobs))
        async with server.lifespan_context(server):
            transport = httpx.ASGITransport(server)
            async with Client("http://test", transport=transport) as client:
                await use(client, str(job.id), tmp_path / "client")


def test_threads_without_a_loop_have_twins(tmp_path: Path) -> None:
    place, blobs = str(tmp_path / "jobs.db"), str(tmp_path / "place")
    app = Holdfast(place, blobs=blobs)

    async def make() -> None:
        store = await app.store()
        await end_with(store, await plan_blobs(blobs)(store), tmp_path, FILES, job_id="done")

    app.run_sync(make(), "make()")
    assert app.artifacts_sync("done").total_bytes == 500_001
    assert len(app.download_artifacts_sync("done", tmp_path / "one")) == 2
    handle = app.get_sync("done")
    assert handle.artifacts_sync() == app.artifacts_sync("done")
    assert len(handle.download_artifacts_sync(tmp_path / "two", ["one"])) == 1
    assert b"".join(handle.read_artifact_sync("d/two")) == DATA
    begun = handle.read_artifact_sync("d/two")
    assert DATA.startswith(next(begun))
    begun.close()
    app.close_sync()


class BreakingOff(httpx.AsyncByteStream):
    """A body that breaks off after some bytes."""

    def __init__(self, data: bytes, *, breaks: bool) -> None:
        self._data = data
        self._breaks = breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data
        if self._breaks:
            raise httpx.RemoteProtocolError("peer closed connection")


def server_of(
    data: bytes, *, breaks: int, step: int = 200_000, wrong: Mapping[str, str] | None = None
) -> Any:
    """Answer with a file, `breaks` times with a part of what was asked for."""
    asked: list[httpx.Headers] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers)
        start = int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        rest, is_broken = data[start:], len(asked) <= breaks
        shown = {"etag": f'"{sha256(DATA).hexdigest()}"', "content-length": str(len(rest))}
        if start:
            shown["content-range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        sent = rest[:step] if is_broken else rest
        body = BreakingOff(sent, breaks=is_broken)
        return httpx.Response(
            206 if start else 200, headers={**shown, **(wrong or {})}, stream=body
        )

    return answer, asked


async def read_from(answer: Callable[..., Any], patience_seconds: float = 5.0) -> bytes:
    """Read a file from a server."""
    http = make_http("http://test", {}, httpx.MockTransport(answer))
    async with http:
        operations = RemoteOperations(Transport(http, patience_seconds=patience_seconds))
        opened = await operations.do(GetArtifact(job="j", name="a/b"))
        return b"".join([piece async for piece in opened.read()])


async def test_a_connection_that_breaks_is_continued_where_it_broke() -> None:
    answer, asked = server_of(DATA, breaks=2)
    assert await read_from(answer) == DATA
    assert [one.get("range") for one in asked] == [None, "bytes=200000-", "bytes=400000-"]
    assert asked[1]["if-range"] == f'"{sha256(DATA).hexdigest()}"'


async def test_a_connection_that_never_lasts_is_given_up() -> None:
    answer, _ = server_of(DATA, breaks=1000, step=0)
    with pytest.raises(ServerUnavailable):
        await read_from(answer, patience_seconds=0.3)


async def test_other_bytes_than_announced_are_an_error() -> None:
    answer, _ = server_of(bytes(reversed(DATA)), breaks=1)
    with pytest.raises(ArtifactsDamaged):
        await read_from(answer)


async def test_an_answer_with_another_part_is_an_error() -> None:
    wrong = {"content-range": f"bytes 7-{len(DATA) - 1}/{len(DATA)}"}
    answer, _ = server_of(DATA, breaks=1, wrong=wrong)
    with pytest.raises(ServerFailed, match="part that was asked for"):
        await read_from(answer)


async def test_answers_without_data_are_given_up() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        shown = {"etag": f'"{sha256(DATA).hexdigest()}"', "content-length": str(len(DATA))}
        return httpx.Response(200, headers=shown, stream=BreakingOff(b"", breaks=False))

    with pytest.raises(ServerUnavailable, match="no data"):
        await read_from(answer, patience_seconds=0.3)
