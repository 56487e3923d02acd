"""Uploads over HTTP: bodies that are streamed, with limits of their own."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.http.app import make_server
from holdfast.http.lifespan import ServerShutdown
from holdfast.http.limits import ServerLimits
from holdfast.http.router import Application
from holdfast.http.streamed_body import read_pieces
from holdfast.ports.models import Limits
from holdfast.wiring import Address, make_store, plan_blobs
from tests.http.conftest import Names
from tests.support.archives import entry, pack

LIMITS = ServerLimits(body_bytes=200_000, body_seconds=0.3, upload_idle_seconds=0.5, uploads=8)
TAR = {"content-type": "application/x-tar"}
BYTES = {"content-type": "application/octet-stream"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Application]:
    """A running application with a place of blobs."""
    store = make_store(Address(engine="sqlite", place=":memory:"))
    place = plan_blobs(os.fspath(tmp_path / "blobs"), None)
    app = make_server(store, Names(), limits=LIMITS, open_blobs=place)
    async with app.lifespan_context(app):
        yield app


async def create(http: httpx.AsyncClient) -> str:
    """Create an upload and return where it is."""
    made = await http.post("/v1/uploads", json={})
    assert made.status_code == 201, made.text
    return f"/v1/uploads/{made.json()['id']}"


async def in_pieces(data: bytes, size: int = 65_536) -> AsyncIterator[bytes]:
    """Send data without its length."""
    for at in range(0, len(data), size):
        yield data[at : at + size]


@pytest.mark.req("D3")
async def test_an_archive_is_streamed_and_finalized(http: httpx.AsyncClient) -> None:
    """Beyond the limit of bodies that are held, with its length announced and without."""
    place = await create(http)
    archive = pack(entry("data", bytes(300_000)))
    for content in (archive, in_pieces(archive)):
        written = await http.put(f"{place}/content", content=content, headers=TAR)
        assert (written.status_code, written.json()["bytes"]) == (200, len(archive))
    done = (await http.post(f"{place}/finalize", json={})).json()
    assert (done["state"], done["files"]) == ("finalized", 1)
    assert done["digest"] == sha256(archive).hexdigest()


async def test_single_files_are_written_under_their_paths(http: httpx.AsyncClient) -> None:
    place = await create(http)
    for name in ("src/main.py", "ö and more"):
        written = await http.put(f"{place}/files/{name}", content=b"x", headers=BYTES)
        assert written.status_code == 200, written.text
    assert (await http.post(f"{place}/finalize", json={})).json()["files"] == 2


async def test_a_hostile_archive_is_refused_at_finalize_with_its_entry(
    http: httpx.AsyncClient,
) -> None:
    place = await create(http)
    await http.put(f"{place}/content", content=pack(entry("../out")), headers=TAR)
    refused = await http.post(f"{place}/finalize", json={})
    assert (refused.status_code, refused.json()["code"]) == (422, "entry_leaves")
    assert "'../out'" in refused.json()["detail"]
    # What is not finalized may be written again.
    await http.put(f"{place}/content", content=pack(entry("in")), headers=TAR)
    assert (await http.post(f"{place}/finalize", json={})).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        (lambda data: {"content-digest": f"sha-256=:{b64(data)}:"}, 200, None),
        (lambda data: {"digest": f"SHA-256={b64(data)}"}, 200, None),
        (lambda data: {"content-digest": "sha-512=:AAAA:"}, 200, None),
        (lambda data: {"content-digest": f"sha-256=:{b64(data + b'!')}:"}, 422, "digest_mismatch"),
        (lambda data: {"digest": f"sha-256={b64(data + b'!')}"}, 422, "digest_mismatch"),
        (lambda data: {"content-digest": "sha-256=:short:"}, 422, "bad_data"),
        (lambda data: {"content-encoding": "gzip"}, 415, "unsupported_media"),
        (lambda data: {"content-type": "application/json"}, 415, "unsupported_media"),
        (lambda data: {"content-type": ""}, 415, "unsupported_media"),
    ],
)
async def test_what_is_announced_must_be_what_comes(
    http: httpx.AsyncClient,
    headers: Callable[[bytes], dict[str, str]],
    status: int,
    code: str | None,
) -> None:
    place = await create(http)
    data = pack(entry("a"))
    written = await http.put(f"{place}/content", content=data, headers=TAR | headers(data))
    assert (written.status_code, written.json().get("code")) == (status, code)
    bytes_kept = (await http.get(place)).json()["bytes"]
    assert bytes_kept == (len(data) if status == 200 else 0)


def b64(data: bytes) -> str:
    """Return the digest of data as a header has it."""
    return b64encode(sha256(data).digest()).decode()


async def test_too_many_announced_bytes_are_refused_before_they_come(
    server: Application, http: httpx.AsyncClient
) -> None:
    await server.state.session.store.set_limits(Limits(upload_bytes=1_000_000))
    place = await create(http)
    read = asyncio.Event()

    async def unread() -> AsyncIterator[bytes]:
        read.set()
        yield b""

    headers = TAR | {"content-length": str(1_000_001)}
    refused = await http.put(f"{place}/content", content=unread(), headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (413, "upload_too_large")
    assert not read.is_set()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/jobs"),
        ("POST", "/v1/uploads"),
        ("POST", "/v1/uploads/x/finalize"),
        ("PUT", "/v1/uploads/x"),
        ("PUT", "/v1/jobs/x/content"),
    ],
)
async def test_the_limit_of_bodies_holds_on_all_other_routes(
    http: httpx.AsyncClient, method: str, path: str
) -> None:
    json = {"content-type": "application/json"}
    reply = await http.request(method, path, content=bytes(200_001), headers=json)
    assert (reply.status_code, reply.json()["code"]) == (413, "too_large")


async def test_an_unlimited_body_without_a_length_is_still_bounded_elsewhere(
    http: httpx.AsyncClient,
) -> None:
    json = {"content-type": "application/json"}
    reply = await http.post("/v1/jobs", content=in_pieces(bytes(250_000)), headers=json)
    assert (reply.status_code, reply.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize("who", ["viewer@mine", "submitter@other"])
async def test_an_upload_of_another_tenant_or_role_is_not_written_to(
    call: Callable[[str | None], httpx.AsyncClient], who: str
) -> None:
    place = await create(call("submitter@mine"))
    refused = await call(who).put(f"{place}/content", content=pack(), headers=TAR)
    assert refused.status_code == (403 if who.startswith("viewer") else 404)


class Sender:
    """A client that sends its body by hand."""

    def __init__(self, app: Application, path: str, who: str = "submitter@mine") -> None:
        """Start a request; nothing of its body is sent yet."""
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.taken = asyncio.Event()
        self.status = 0
        self.body = b""
        headers = TAR | {"authorization": f"Bearer {who}"}
        scope = {
            "type": "http",
            "method": "PUT",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), text.encode()) for name, text in headers.items()],
        }
        self._serving = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        message = await self._messages.get()
        self.taken.set()
        return message

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")

    def send(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece."""
        self._messages.put_nowait({"type": "http.request", "body": data, "more_body": more})

    def leave(self) -> None:
        """Break off."""
        self._messages.put_nowait({"type": "http.disconnect"})

    async def answer(self) -> int:
        """Wait for the answer."""
        async with asyncio.timeout(30):
            await self._serving
        return self.status


async def test_a_sender_that_pauses_too_long_is_refused_and_may_repeat(
    server: Application, call: Callable[[str | None], httpx.AsyncClient]
) -> None:
    http = call("submitter@mine")
    place = await create(http)
    slow = Sender(server, f"{place}/content")
    slow.send(b"half")
    assert await slow.answer() == 408
    left = Sender(server, f"{place}/content")
    left.send(b"half")
    left.leave()
    assert await left.answer() == 408
    assert (await http.get(place)).json()["bytes"] == 0
    again = await http.put(f"{place}/content", content=pack(entry("a")), headers=TAR)
    assert again.status_code == 200


async def test_one_token_has_a_share_of_all_bodies_at_once(
    server: Application, call: Callable[[str | None], httpx.AsyncClient]
) -> None:
    http = call("submitter@mine")
    places = [await create(http) for _ in range(3)]
    held = [Sender(server, f"{place}/content") for place in places[:2]]
    for sender in held:
        sender.send(b"x")
        await sender.taken.wait()
    refused = await http.put(f"{places[2]}/content", content=pack(), headers=TAR)
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    for sender in held:
        sender.leave()
        await sender.answer()
    again = await http.put(f"{places[2]}/content", content=pack(), headers=TAR)
    assert again.status_code == 200


async def test_a_server_that_stops_ends_a_body_that_still_comes() -> None:
    shutdown = ServerShutdown()

    async def never() -> dict[str, Any]:
        shutdown.start()
        return await asyncio.Future[dict[str, Any]]()

    with pytest.raises(Exception, match="the server is stopping"):
        await anext(aiter(read_pieces(never, shutdown, 30)))


async def test_a_large_body_is_never_in_memory(http: httpx.AsyncClient) -> None:
    place = await create(http)
    piece, count = bytes(65_536), 1024

    async def body() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield piece

    tracemalloc.start()
    try:
        written = await http.put(f"{place}/files/large", content=body(), headers=BYTES)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (written.status_code, written.json()["bytes"]) == (200, len(piece) * count)
    assert peak < 16 * 1024 * 1024


async def test_methods_of_the_new_routes_are_announced(http: httpx.AsyncClient) -> None:
    reply = await http.get("/v1/uploads/x/content")
    assert (reply.status_code, reply.headers["allow"]) == (405, "PUT")
