"""An S3 service that fails: what was asked for is retried or refused, and never half done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial

import pytest
import pytest_asyncio

from holdfast.blobs import objects
from holdfast.blobs.objects import ObjectBlobs, open_bucket
from holdfast.blobs.place import BucketPlace, read_place
from holdfast.errors import BlobsUnavailable
from holdfast.ports.blobs import Blobs, read_blob
from holdfast.testing.blob_contract import (
    LARGE,
    SourceFailed,
    broken_stream,
    data_of,
    keys_below,
    stored,
    stream,
)
from tests.support.s3 import CREDENTIALS, S3Server
from tests.support.s3_proxy import FaultyS3, Kind
from tests.support.waiting import wait_until

DATA = data_of(LARGE)
VERBS = ("PUT", "HEAD", "GET", "POST")
ALL = ["put", "size", "read", "range", "list", "delete"]


@pytest_asyncio.fixture
async def proxy(s3_server: S3Server) -> AsyncIterator[FaultyS3]:
    async with FaultyS3(s3_server.port) as proxy:
        yield proxy


@pytest.fixture
def blobs(
    s3_server: S3Server,
    s3_bucket: str,
    proxy: FaultyS3,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> ObjectBlobs:
    """Blobs behind the proxy; the library repeats a request three times, quickly."""
    request.getfixturevalue("s3_credentials")
    quick = {"init_backoff": timedelta(milliseconds=5), "max_backoff": timedelta(milliseconds=20)}
    retries = {"max_retries": 3, "retry_timeout": timedelta(seconds=20), "backoff": quick}
    monkeypatch.setattr(objects, "_RETRIES", retries)
    return open_place_through(s3_server.address(s3_bucket, port=proxy.port))


def open_place_through(address: str) -> ObjectBlobs:
    place = read_place(address)
    assert isinstance(place, BucketPlace)
    return open_bucket(place, "store")


def is_a(verb: str, line: str) -> bool:
    return line.startswith(verb)


async def use_all(blobs: Blobs) -> list[str]:
    """Make each kind of request; return which of them were refused as an outage."""
    refused: dict[str, str] = {}
    uses: dict[str, Callable[[], Awaitable[object]]] = {
        "put": lambda: blobs.put("a/b", b"12345"),
        "size": lambda: blobs.size("a/b"),
        "read": lambda: read_blob(blobs, "a/b"),
        "range": lambda: anext(blobs.read("a/b", start=1, end=3)),
        "list": lambda: keys_below(blobs, "a"),
        "delete": lambda: blobs.delete(["a/none"]),
    }
    for name, use in uses.items():
        try:
            await use()
        except BlobsUnavailable as error:
            refused[name] = str(error)
    for text in refused.values():
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in text
        assert "\n" not in text
    return list(refused)


@pytest.mark.parametrize("kind", [Kind.FAIL, Kind.CUT, Kind.LOSE_REPLY])
async def test_a_failure_that_passes_is_not_noticed(
    blobs: Blobs, proxy: FaultyS3, kind: Kind
) -> None:
    faults = [proxy.add(kind, partial(is_a, verb)) for verb in VERBS]

    assert await use_all(blobs) == []
    assert await keys_below(blobs, "a") == ["a/b"]
    assert [fault.met for fault in faults] == [1] * len(VERBS)


async def test_a_service_that_only_fails_is_an_outage(blobs: Blobs, proxy: FaultyS3) -> None:
    proxy.add(Kind.FAIL, times=None)

    assert await use_all(blobs) == ALL


async def test_a_service_that_never_answers_is_an_outage(
    blobs: Blobs, proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "WAIT_SECONDS", 0.3)
    proxy.add(Kind.HANG, times=None)

    assert await use_all(blobs) == ALL
    with pytest.raises(BlobsUnavailable, match="no answer"):
        await blobs.put("a/large", stream(DATA))


def test_no_wait_is_longer_than_half_a_minute() -> None:
    """The limits as they are without a test: the library gives up before the wait does."""
    read = objects._CLIENT["read_timeout"]
    retry = objects._RETRIES["retry_timeout"]
    assert isinstance(read, timedelta)
    assert (read + retry).total_seconds() <= objects.WAIT_SECONDS <= 30


async def test_a_service_that_is_not_there_is_an_outage(blobs: Blobs, proxy: FaultyS3) -> None:
    await proxy.__aexit__(None, None, None)

    assert await use_all(blobs) == ALL


@pytest.mark.parametrize("kind", [Kind.FAIL, Kind.CUT])
async def test_a_large_put_whose_parts_are_refused_leaves_nothing(
    blobs: Blobs, proxy: FaultyS3, s3_server: S3Server, s3_bucket: str, kind: Kind
) -> None:
    fault = proxy.add(kind, lambda line: "partNumber=2" in line, times=None)

    with pytest.raises(BlobsUnavailable, match="a/large was not written"):
        await blobs.put("a/large", stream(DATA))

    assert fault.met
    assert s3_server.keys(s3_bucket) == []
    assert s3_server.unfinished_uploads(s3_bucket) == []


@pytest.mark.parametrize("kind", [Kind.FAIL, Kind.CUT, Kind.LOSE_REPLY])
async def test_a_large_put_survives_a_part_that_is_sent_again(
    blobs: Blobs, proxy: FaultyS3, kind: Kind
) -> None:
    fault = proxy.add(kind, lambda line: "partNumber=2" in line)

    assert await blobs.put("a/large", stream(DATA)) == stored(DATA)
    assert fault.met == 1
    assert await read_blob(blobs, "a/large") == DATA


@pytest.mark.parametrize("kind", [Kind.FAIL, Kind.LOSE_REPLY])
async def test_a_large_put_that_is_not_completed_is_whole_or_not_there(
    blobs: Blobs, proxy: FaultyS3, kind: Kind
) -> None:
    proxy.add(kind, lambda line: line.startswith("POST") and "uploadId=" in line, times=None)

    with pytest.raises(BlobsUnavailable):
        await blobs.put("a/large", stream(DATA))

    proxy.faults.clear()
    assert await blobs.size("a/large") in (None, LARGE)
    assert await blobs.put("a/large", stream(DATA)) == stored(DATA)
    assert await read_blob(blobs, "a/large") == DATA


@pytest.mark.parametrize("times", [1, None])
async def test_a_read_that_is_cut_off_is_continued_or_raises(
    blobs: Blobs, proxy: FaultyS3, times: int | None
) -> None:
    await blobs.put("a/large", stream(DATA))
    fault = proxy.add(Kind.CUT_REPLY, lambda line: line.startswith("GET"), times=times)

    got = b""
    try:
        async for piece in blobs.read("a/large"):
            got += piece
    except BlobsUnavailable:
        assert len(got) < LARGE
    else:
        assert got == DATA

    assert fault.met
    assert DATA.startswith(got)


async def test_a_bucket_that_is_gone_is_not_a_blob_that_is_gone(
    blobs: Blobs, s3_server: S3Server, s3_bucket: str
) -> None:
    await blobs.put("a/b", b"1")
    s3_server.drop_bucket(s3_bucket)

    assert await use_all(blobs) == ALL
    with pytest.raises(BlobsUnavailable):
        await blobs.put("a/large", stream(DATA))

    s3_server.create_bucket(s3_bucket)
    assert await blobs.size("a/b") is None
    assert await use_all(blobs) == []


@pytest.mark.parametrize("how", ["broken", "cancelled"])
async def test_an_upload_that_is_given_up_leaves_no_parts(
    blobs: Blobs, s3_server: S3Server, s3_bucket: str, how: str
) -> None:
    def has_parts() -> bool:
        return s3_server.unfinished_uploads(s3_bucket) != []

    async def stuck() -> AsyncIterator[bytes]:
        yield DATA
        yield DATA
        await asyncio.Event().wait()

    if how == "broken":
        with pytest.raises(SourceFailed):
            await blobs.put("a/b", broken_stream(DATA))
    else:
        putting = asyncio.create_task(blobs.put("a/b", stuck()))
        await asyncio.to_thread(wait_until, has_parts, "a part to be sent")
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting

    assert s3_server.keys(s3_bucket) == []
    assert s3_server.unfinished_uploads(s3_bucket) == []
