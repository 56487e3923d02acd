"""Directories sent by a client and by an app: the same upload, and nothing left of a failed one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from holdfast import Client, Holdfast
from holdfast.client.remote import RemoteOperations
from holdfast.client.transport import Transport, make_http
from holdfast.errors import BadData, ServerFailed, ServerUnavailable
from holdfast.http.app import make_server
from holdfast.http.router import Application
from holdfast.operations import pack_directory as packing
from holdfast.operations.requests import FinalizeUpload, WriteUpload
from holdfast.ports.uploads import Upload, UploadState
from holdfast.wiring import Address, make_store, plan_blobs
from tests.client.conftest import Names


@pytest.fixture
async def server(place: str, tmp_path: Path) -> AsyncIterator[Application]:
    """A server with a place of blobs."""
    store = make_store(Address(engine="sqlite", place=place))
    made = make_server(store, Names(), open_blobs=plan_blobs(os.fspath(tmp_path / "blobs")))
    async with made.lifespan_context(made):
        yield made


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory to send: more than fits into one piece."""
    root = tmp_path / "tree"
    root.mkdir()
    for number in range(5):
        (root / f"{number}.bin").write_bytes(os.urandom(200_000))
    return root


async def uploads_of(server: Application) -> list[Upload]:
    """Return all uploads of a server."""
    return await server.state.session.store.uploads()


class BreakingTransport(httpx.AsyncBaseTransport):
    """A network that breaks in the middle of a body, some times."""

    def __init__(self, server: Application, times: int) -> None:
        self._inner = httpx.ASGITransport(server)
        self._left = times
        self.broken = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Break off, or pass on."""
        if request.method == "PUT" and self._left:
            self._left -= 1
            self.broken += 1
            assert isinstance(request.stream, httpx.AsyncByteStream)
            async for _ in request.stream:
                break
            raise httpx.WriteError("the connection broke")
        return await self._inner.handle_async_request(request)


@pytest.mark.req("D3")
async def test_a_client_uploads_a_directory(server: Application, tree: Path) -> None:
    async with Client("http://test", transport=httpx.ASGITransport(server)) as client:
        upload = await client.upload(tree, exclude=["4.*"])
    [kept] = await uploads_of(server)
    assert (kept.id, kept.state, kept.files) == (upload, UploadState.FINALIZED, 4)


async def test_an_app_uploads_the_same(server: Application, tree: Path, place: str) -> None:
    async with Client("http://test", transport=httpx.ASGITransport(server)) as client:
        await client.upload(tree)
    app = Holdfast(place, blobs=os.fspath(Path(place).with_name("blobs")))
    async with app:
        await app.upload(tree)
    one, other = await uploads_of(server)
    assert one.digest == other.digest is not None


def test_an_app_uploads_without_an_event_loop(tree: Path, tmp_path: Path) -> None:
    app = Holdfast(str(tmp_path / "sync.db"), blobs=os.fspath(tmp_path / "blobs"))
    try:
        assert app.upload_sync(tree)
    finally:
        app.close_sync()


async def test_a_body_that_was_broken_off_is_sent_again(server: Application, tree: Path) -> None:
    network = BreakingTransport(server, times=2)
    async with Client("http://test", transport=network) as client:
        await client.upload(tree)
    [kept] = await uploads_of(server)
    assert network.broken == 2
    assert kept.state is UploadState.FINALIZED


async def test_a_stream_that_cannot_be_read_again_is_sent_once(
    server: Application, tree: Path
) -> None:
    network = BreakingTransport(server, times=1)

    async def once() -> AsyncIterator[bytes]:
        yield b"x"

    async with Client("http://test", transport=network) as client:
        operations = await client.operations()
        with pytest.raises(ServerUnavailable, match="the connection broke"):
            await operations.do(WriteUpload(upload="x", data=once()))
    assert network.broken == 1


async def test_the_digest_of_a_stream_goes_with_it(server: Application) -> None:
    seen: list[str] = []

    class Listening(httpx.ASGITransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            seen.append(request.headers.get("content-digest", ""))
            return await super().handle_async_request(request)

    async def once() -> AsyncIterator[bytes]:
        yield b"x"

    async with Client("http://test", transport=Listening(server)) as client:
        operations = await client.operations()
        wanted = WriteUpload(upload="x", data=once(), digest=sha256(b"y").hexdigest())
        with pytest.raises(Exception, match="no upload x"):
            await operations.do(wanted)
    assert seen[-1].startswith("sha-256=:")


async def test_a_file_that_changes_leaves_no_upload(
    server: Application, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = packing.pack_directory(tree)
    (tree / "3.bin").write_bytes(b"shorter")
    monkeypatch.setattr("holdfast.app.job_methods.pack_directory", lambda *_, **__: made)
    async with Client("http://test", transport=httpx.ASGITransport(server)) as client:
        with pytest.raises(BadData, match=r"'3.bin' changed") as refused:
            await client.upload(tree)
    assert refused.value.code == "file_changed"
    assert [one.state for one in await uploads_of(server)] == [UploadState.DELETED]


async def test_a_finalize_may_take_its_time() -> None:
    allowed: list[float] = []

    def answer(request: httpx.Request) -> httpx.Response:
        allowed.append(request.extensions["timeout"]["read"])
        if len(allowed) == 1:
            time.sleep(0.2)  # Longer than the client is patient.
            raise httpx.RemoteProtocolError("peer closed connection")
        return httpx.Response(422, content=b"no answer of a server of ours")

    async with make_http("http://test", {}, httpx.MockTransport(answer)) as http:
        remote = RemoteOperations(Transport(http, patience_seconds=0.15))
        with pytest.raises(ServerFailed):
            await remote.do(FinalizeUpload(upload="1", request_id="r1"))
    assert len(allowed) == 2
    assert min(allowed) >= 600


async def test_patience_is_counted_from_the_last_byte_of_progress() -> None:
    """A body that takes longer than the client is patient, over a connection that breaks."""
    tries: list[int] = []

    class Body:
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _ in range(8):
                yield b"x"
                await asyncio.sleep(0.1)

    class Network(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            assert isinstance(request.stream, httpx.AsyncByteStream)
            tries.append(len([piece async for piece in request.stream]))
            if len(tries) < 2:
                raise httpx.WriteError("broken")
            return httpx.Response(422, content=b"no answer of a server of ours")

    async with make_http("http://test", {}, Network()) as http:
        remote = RemoteOperations(Transport(http, patience_seconds=0.5))
        with pytest.raises(ServerFailed):
            await remote.do(WriteUpload(upload="1", data=Body(), announced=8))
    assert tries == [8, 8]
