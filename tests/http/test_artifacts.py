"""A command's artifacts over HTTP: listed, and read as a whole or in ranges."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from holdfast.errors import ArtifactsDamaged
from holdfast.http.app import make_server
from holdfast.http.artifacts import choose_range, write_disposition
from holdfast.http.router import Application
from holdfast.lifecycle.record import Job
from holdfast.ports.blobs import Blobs
from holdfast.ports.store import Store
from holdfast.wiring import Address, make_store, plan_blobs
from tests.http.conftest import Names
from tests.support.artifacts import end_with

DATA = os.urandom(600_000)
FILES = {"log.txt": b"0123456789", "out/a b/größe?#%.bin": DATA, "empty": b""}
TAG = f'"{sha256(FILES["log.txt"]).hexdigest()}"'
Call = Callable[[str | None], httpx.AsyncClient]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Application]:
    """A server with a place of blobs."""
    store = make_store(Address(engine="sqlite", place=":memory:"))
    app = make_server(store, Names(), open_blobs=plan_blobs(str(tmp_path / "place")))
    async with app.lifespan_context(app):
        yield app


@pytest.fixture
def store(server: Application) -> Store:
    """The store of the server."""
    return server.state.session.store


@pytest.fixture
async def blobs(server: Application) -> Blobs:
    """Its place of blobs."""
    return await server.state.session.blobs()


@pytest.fixture
async def job(store: Store, blobs: Blobs, tmp_path: Path) -> Job:
    """A command that has ended and left files, for tenant `mine`."""
    return await end_with(store, blobs, tmp_path, FILES, tenant="mine")


@pytest.fixture
def at(job: Job) -> str:
    """Where its artifacts are."""
    return f"/v1/jobs/{job.id}/artifacts"


@pytest.mark.req("D13")
async def test_artifacts_are_listed_and_read(http: httpx.AsyncClient, job: Job, at: str) -> None:
    listed = (await http.get(at)).json()
    assert listed == {
        "job_id": str(job.id),
        "internal_id": str(job.id),
        "artifacts": [
            {"path": path, "bytes": len(FILES[path]), "sha256": sha256(FILES[path]).hexdigest()}
            for path in sorted(FILES)
        ],
        "total_bytes": 600_010,
        "truncated": False,
        "skipped": [],
        "skipped_counts": {},
    }
    reply = await http.get(f"{at}/log.txt")
    assert (reply.status_code, reply.content) == (200, b"0123456789")
    expected = {
        "content-type": "application/octet-stream",
        "content-length": "10",
        "content-disposition": "attachment; filename=\"log.txt\"; filename*=UTF-8''log.txt",
        "etag": TAG,
        "accept-ranges": "bytes",
        "cache-control": "private, no-cache",
        "x-content-type-options": "nosniff",
    }
    assert {name: reply.headers[name] for name in expected} == expected


@pytest.mark.parametrize(
    "name", ["out/a%20b/gr%C3%B6%C3%9Fe%3F%23%25.bin", "out%2Fa%20b%2fgr%C3%B6%C3%9Fe%3F%23%25.bin"]
)
async def test_the_slashes_of_a_path_may_be_plain_or_escaped(
    http: httpx.AsyncClient, at: str, name: str
) -> None:
    reply = await http.get(f"{at}/{name}")
    assert reply.status_code == 200, reply.text
    assert reply.content == DATA
    disposition = reply.headers["content-disposition"]
    assert disposition.endswith("filename*=UTF-8''gr%C3%B6%C3%9Fe%3F%23%25.bin")


@pytest.mark.parametrize(
    "name",
    ["nothing", "out", "out/a%20b", "log.txt/", "/log.txt", "%2e%2e/log.txt", "%2e/log.txt", "0"],
)
async def test_what_is_not_an_artifact_is_not_found(
    http: httpx.AsyncClient, at: str, name: str
) -> None:
    reply = await http.send(httpx.Request("GET", httpx.URL("http://test").join(f"{at}/{name}")))
    assert reply.status_code == 404, reply.text
    assert reply.json()["code"] in ("no_such_artifact", "no_such_route")


@pytest.mark.parametrize(
    ("asked", "found", "part"),
    [
        ("bytes=0-3", "bytes 0-3/10", b"0123"),
        ("bytes=4-4", "bytes 4-4/10", b"4"),
        ("bytes=7-", "bytes 7-9/10", b"789"),
        ("bytes=7-99", "bytes 7-9/10", b"789"),
        ("bytes=-3", "bytes 7-9/10", b"789"),
        ("bytes=-99", "bytes 0-9/10", b"0123456789"),
        (" bytes = 2 - 3 ", "bytes 2-3/10", b"23"),
    ],
)
async def test_a_range_is_answered_with_that_part(
    http: httpx.AsyncClient, at: str, asked: str, found: str, part: bytes
) -> None:
    reply = await http.get(f"{at}/log.txt", headers={"range": asked})
    assert (reply.status_code, reply.content) == (206, part)
    assert reply.headers["content-range"] == found
    assert reply.headers["content-length"] == str(len(part))


@pytest.mark.parametrize(
    "asked", ["bytes=0-1,3-4", "bytes=4-2", "lines=1-2", "bytes=a-b", "bytes=", "bytes=-", "x" * 99]
)
async def test_what_is_not_one_range_of_bytes_is_answered_with_the_whole_file(
    http: httpx.AsyncClient, at: str, asked: str
) -> None:
    reply = await http.get(f"{at}/log.txt", headers={"range": asked})
    assert (reply.status_code, reply.content) == (200, b"0123456789")


@pytest.mark.parametrize(
    ("name", "asked", "size"),
    [("log.txt", "bytes=10-", 10), ("log.txt", "bytes=-0", 10), ("empty", "bytes=0-0", 0)],
)
async def test_a_range_beyond_the_end_is_refused(
    http: httpx.AsyncClient, at: str, name: str, asked: str, size: int
) -> None:
    reply = await http.get(f"{at}/{name}", headers={"range": asked})
    assert reply.status_code == 416
    assert reply.headers["content-range"] == f"bytes */{size}"
    assert reply.json()["code"] == "range_not_satisfiable"


async def test_a_range_of_a_large_file_in_its_middle(http: httpx.AsyncClient, at: str) -> None:
    reply = await http.get(
        f"{at}/out%2Fa%20b%2Fgr%C3%B6%C3%9Fe%3F%23%25.bin",
        headers={"range": "bytes=262100-524400"},
    )
    assert reply.content == DATA[262100:524401]


async def test_an_empty_file_has_no_bytes(http: httpx.AsyncClient, at: str) -> None:
    reply = await http.get(f"{at}/empty")
    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["content-length"] == "0"


@pytest.mark.parametrize("tags", [TAG, f"W/{TAG}", f'"other", {TAG}', "*"])
async def test_a_client_that_has_the_file_is_not_sent_it_again(
    http: httpx.AsyncClient, at: str, tags: str
) -> None:
    headers = {"if-none-match": tags, "range": "bytes=0-3"}
    reply = await http.get(f"{at}/log.txt", headers=headers)
    assert (reply.status_code, reply.content) == (304, b"")
    assert reply.headers["etag"] == TAG


@pytest.mark.parametrize(
    ("condition", "status"),
    [(TAG, 206), ('"other"', 200), (f"W/{TAG}", 200), ("Tue, 17 Nov 2026 21:00:00 GMT", 200)],
)
async def test_a_range_of_another_file_is_not_continued(
    http: httpx.AsyncClient, at: str, condition: str, status: int
) -> None:
    headers = {"if-range": condition, "range": "bytes=5-", "if-none-match": '"other"'}
    reply = await http.get(f"{at}/log.txt", headers=headers)
    assert reply.status_code == status
    assert reply.content == (b"56789" if status == 206 else b"0123456789")


async def test_head_describes_the_file_without_its_bytes(http: httpx.AsyncClient, at: str) -> None:
    reply = await http.head(f"{at}/log.txt", headers={"range": "bytes=0-3"})
    assert (reply.status_code, reply.content) == (200, b"")
    assert (reply.headers["content-length"], reply.headers["etag"]) == ("10", TAG)
    assert (await http.head(f"{at}/nothing")).status_code == 404
    assert (await http.post(f"{at}/log.txt")).headers["allow"] == "GET, HEAD"


async def test_another_tenants_artifacts_are_not_there(call: Call, job: Job, at: str) -> None:
    for path in (at, f"{at}/log.txt"):
        assert (await call("viewer@theirs").get(path)).json()["code"] == "no_such_job"
        assert (await call("viewer@mine").get(path)).status_code == 200
        assert (await call("worker@mine").get(path)).status_code == 403


async def test_a_reader_during_cleaning_gets_an_error_and_not_half_a_file(
    http: httpx.AsyncClient, blobs: Blobs, job: Job, at: str
) -> None:
    keys = [one.key async for one in blobs.list(f"artifacts/{job.id}/1")]
    await blobs.delete(keys[:1])
    assert (await http.get(f"{at}/empty")).status_code == 410
    # Not the one that was collected, and as long: found only once it was read.
    changed = bytes(reversed(DATA))
    await blobs.put(f"artifacts/{job.id}/1/2", changed)
    with pytest.raises(ArtifactsDamaged):
        async with http.stream("GET", f"{at}/out%2Fa%20b%2Fgr%C3%B6%C3%9Fe%3F%23%25.bin") as reply:
            await reply.aread()
    await blobs.put(f"artifacts/{job.id}/1/1", b"shorter")
    reply = await http.get(f"{at}/log.txt")
    assert (reply.status_code, reply.json()["code"]) == (500, "artifacts_damaged")
    await blobs.delete(keys)
    for path in (at, f"{at}/log.txt"):
        assert (await http.get(path)).json()["code"] == "artifacts_erased"


@pytest.mark.parametrize("size", [0, 1, 10])
def test_every_range_is_within_the_file(size: int) -> None:
    assert choose_range(None, size) is None
    for first in range(size):
        for last in range(first, size + 2):
            assert choose_range(f"bytes={first}-{last}", size) == (first, min(last + 1, size))


def test_a_name_cannot_leave_its_header() -> None:
    written = write_disposition('a"; x=\\"b%41\r\nset-cookie: é')
    assert written == (
        'attachment; filename="a_; x=__b_41__set-cookie: _"; '
        "filename*=UTF-8''a%22%3B%20x%3D%5C%22b%2541%0D%0Aset-cookie%3A%20%C3%A9"
    )
