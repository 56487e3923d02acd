"""Peers of another version of the SDK, on the same bus (case 46)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cap.pb.cordum.agent.v1 import job_pb2
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from holdfast.buses.rules import SenderRule
from holdfast.buses.trust import Trust
from tests.buses.site import Site, refused, settings_of, succeed, until

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
_SIGNING_WORKER = """
import asyncio, sys
from pathlib import Path
from cap.worker import run_worker
from cap.pb.cordum.agent.v1 import job_pb2
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

async def handle(request):
    return job_pb2.JobResult(
        job_id=request.job_id,
        status=job_pb2.JOB_STATUS_SUCCEEDED,
        result_ptr=f"old://{request.memory_id}/{request.meta.labels['a']}/{request.compensation.topic}",
    )

keys = Path(sys.argv[3])
asyncio.run(
    run_worker(
        sys.argv[1],
        sys.argv[2],
        handle,
        public_keys={"holdfast-main": load_pem_public_key((keys / "bridge.pub.pem").read_bytes())},
        private_key=load_pem_private_key((keys / "worker.pem").read_bytes(), None),
        sender_id="old-worker",
    )
)
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


@pytest.mark.req("A9", "A12", "A19")
async def test_an_old_worker_verifies_what_it_is_sent_and_its_signed_result_is_believed(
    site: Site, old_sdk: Path, tmp_path: Path
) -> None:
    own, theirs, wrong = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    public = own.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "bridge.pub.pem").write_bytes(public)
    rules = {"client": SenderRule(), "old-worker": SenderRule()}
    keys = {"old-worker": theirs.public_key()}
    trust = Trust("holdfast-main", rules=rules, keys=keys, private_key=own)
    # Fields that the old version does not know (`dispatch`, `context_ref`) are signed, too.
    given: dict[str, Any] = {
        "memory_id": "m",
        "meta": job_pb2.JobMetadata(labels={"z": "1", "a": "2"}, requires=["docker"]),
        "compensation": job_pb2.Compensation(topic="job.undo"),
        "context_ref": {"uri": "s3://context"},
    }
    settings = settings_of(capabilities=frozenset({"docker"}))
    async with site.bridge(settings, trust=trust) as bridge:
        _write_key(tmp_path / "worker.pem", wrong)
        with _program(_SIGNING_WORKER, old_sdk, site.server.url, "job.any.old", str(tmp_path)):
            await site.submit("forged", "job.any.old", **given)
            await until(lambda: refused(bridge, "result", "signature") == 1, "its refusal")
            assert not (await site.job("forged")).terminal
        _write_key(tmp_path / "worker.pem", theirs)
        with _program(_SIGNING_WORKER, old_sdk, site.server.url, "job.any.old", str(tmp_path)):
            await site.submit("j", "job.any.old", **given)
            job = await site.ended("j")
    assert (job.succeeded, job.result_ptr) == (True, "old://m/2/job.undo")
    assert (await site.events("j"))[-1].facts.worker == "old-worker"


async def test_an_old_worker_takes_no_job_from_another_bridge(
    site: Site, old_sdk: Path, tmp_path: Path
) -> None:
    own, theirs, other = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    public = own.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "bridge.pub.pem").write_bytes(public)
    _write_key(tmp_path / "worker.pem", theirs)
    with _program(_SIGNING_WORKER, old_sdk, site.server.url, "job.any.old", str(tmp_path)):
        async with site.bridge(trust=Trust("holdfast-main", private_key=other)) as bridge:
            await site.submit("forged", "job.any.old")
            await until(lambda: bridge.meters.bus.sent.get("sent") == 1, "it to be sent")
        async with site.bridge(trust=Trust("holdfast-main", private_key=own)):
            await site.submit("j", "job.any.old")
            assert (await site.ended("j")).succeeded
            # A worker handles its messages in their order.
            assert not (await site.job("forged")).terminal


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
