"""What the doctor finds at the place of blobs."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.blobs.place import read_place
from holdfast.maintenance.blob_health import examine_blobs
from holdfast.ports.store import Store
from holdfast.wiring import migrate, open_place, opened, plan_blobs, read_address
from tests.support.s3 import S3Server


@pytest_asyncio.fixture
async def store(sqlite_path: Path) -> AsyncIterator[Store]:
    address = read_address(str(sqlite_path))
    await migrate(address)
    async with opened(address) as store:
        yield store


async def verdicts(store: Store, address: str) -> dict[str, tuple[str, str]]:
    """Examine a place; return what was found by what was examined."""
    place = read_place(address)
    found = await examine_blobs(store, place, partial(open_place, place))
    return {one.check: (str(one.verdict), f"{one.text} {one.mend}") for one in found}


async def test_a_store_without_blobs_is_fine_and_nothing_is_made(
    store: Store, blobs_address: str, s3_server: S3Server, local_address: str
) -> None:
    verdict, text = (await verdicts(store, blobs_address))["blobs"]

    assert verdict == "ok"
    assert "none yet" in text
    assert not await asyncio.to_thread(Path(local_address).exists)
    assert all(s3_server.keys(bucket) == [] for bucket in s3_server.buckets())


async def test_the_stores_own_place_is_fine(store: Store, blobs_address: str) -> None:
    await plan_blobs(blobs_address, for_worker=True)(store)

    verdict, text = (await verdicts(store, blobs_address))["blobs"]

    assert verdict == "ok"
    assert "are kept at" in text


async def test_another_place_is_a_problem_that_names_the_right_one(
    store: Store, blobs_address: str, tmp_path: Path
) -> None:
    await plan_blobs(str(tmp_path / "right"), for_worker=True)(store)

    verdict, text = (await verdicts(store, blobs_address))["blobs"]

    assert verdict == "problem"
    assert str(tmp_path / "right") in text.partition(" not at ")[0]
    assert "set --blobs to file://" in text


async def test_a_bucket_that_is_not_there_is_a_problem(
    store: Store, s3_address: str, s3_server: S3Server, s3_bucket: str
) -> None:
    s3_server.drop_bucket(s3_bucket)

    verdict, text = (await verdicts(store, s3_address))["blobs"]

    assert verdict == "problem"
    assert "AWS_ACCESS_KEY_ID" in text
    assert "NoSuchBucket" in text or "not found" in text


async def test_a_place_that_is_a_file_is_a_problem(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert (await verdicts(store, str(tmp_path / "file")))["blobs"][0] == "problem"


async def test_a_disk_that_is_nearly_full_is_a_problem(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda directory: usage._replace(free=10_000_000))

    found = await verdicts(store, str(tmp_path / "place"))

    assert found["blobs disk"][0] == "problem"
    assert found["blobs"][0] == "ok"
