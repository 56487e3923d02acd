"""Peers of another version of the SDK, on the same bus (case 46)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.buses.site import Site, succeed, until

OLD = Path(__file__).with_name("old_sdk.txt")
_WORKER = """
import asyncio, sys
from cap.worker import run_worker
from cap.pb.cordum.agent.v1 import job_pb2

async def handle(request):
    return job_pb2.JobResult(
        job_id=request.job_id, status=job_pb2.JOB_STATUS_SUCCEEDED, result_ptr="old://result"
    )

asyncio.run(run_worker(sys.argv[1], sys.argv[2], handle, sender_id="old-worker"))
"""
_CLIENT = """
import asyncio, sys, nats
from cap.client import submit_job
from cap.pb.cordum.agent.v1 import job_pb2

async def main():
    nc = await nats.connect(sys.argv[1])
    request = job_pb2.JobRequest(job_id=sys.argv[3], topic=sys.argv[2], context_ptr="old://ctx")
    await submit_job(nc, request, "old-trace", "old-client")
    await nc.flush()
    await nc.close()

asyncio.run(main())
"""


@pytest.fixture(scope="session")
def old_sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first version of the SDK, installed once into a directory of its own."""
    place = tmp_path_factory.mktemp("old-sdk")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-input"),
            *("--disable-pip-version-check", "--only-binary", ":all:", "--require-hashes"),
            *("--target", str(place), "--requirement", str(OLD)),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode:
        # Not skipped: nobody would notice that old peers are not tested any more.
        pytest.fail(f"pip could not install {OLD.name}, is there an index? {done.stderr[-500:]}")
    return place


@contextmanager
def _program(text: str, sdk: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", text, *arguments],
        env={**os.environ, "PYTHONPATH": str(sdk)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.req("A2", "A9", "A19")
async def test_old_and_new_clients_and_workers_work_side_by_side(site: Site, old_sdk: Path) -> None:
    url = site.server.url
    async with site.bridge():
        await site.worker("job.any.new", succeed)
        with _program(_WORKER, old_sdk, url, "job.any.old"):
            await site.submit("new-to-old", "job.any.old")
            job = await site.ended("new-to-old")
            assert (job.succeeded, job.result_ptr) == (True, "old://result")
            assert (await site.events("new-to-old"))[-1].facts.worker == "old-worker"
            with _program(_CLIENT, old_sdk, url, "job.any.new", "old-to-new") as client:
                await until(lambda: client.poll() is not None, "the old client to end")
                assert client.returncode == 0
            job = await site.ended("old-to-new")
            assert job.succeeded
            assert (await site.events("old-to-new"))[0].correlation_id == "old-trace"
