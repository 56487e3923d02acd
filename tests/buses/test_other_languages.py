"""A peer that shares no code with the SDK, in another language, on the same bus (case 46)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cap.pb.cordum.agent.v1 import buspacket_pb2
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from tests.buses.site import Site, succeed, until

SOURCE = Path(__file__).with_name("node_peer")


@pytest.fixture(scope="session")
def node_peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The peer with its packages, by the hashes of its lock file, and what describes messages."""
    place = tmp_path_factory.mktemp("node-peer") / "peer"
    shutil.copytree(SOURCE, place)
    done = subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.returncode:
        # Not skipped: nobody would notice that such peers are not tested any more.
        pytest.fail(f"npm could not install the peer, is there a registry? {done.stderr[-500:]}")
    files: dict[str, FileDescriptor] = {}
    _collect(buspacket_pb2.DESCRIPTOR, files)
    described = FileDescriptorSet()
    for file in files.values():
        file.CopyToProto(described.file.add())
    (place / "messages.pb").write_bytes(described.SerializeToString())
    return place


def _collect(file: FileDescriptor, files: dict[str, FileDescriptor]) -> None:
    """Add a file behind those that it imports."""
    for one in file.dependencies:
        _collect(one, files)
    files.setdefault(file.name, file)


@contextmanager
def _running(peer: Path, verb: str, url: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        ["node", "peer.mjs", verb, url, "messages.pb", *more],
        cwd=peer,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.req("A2", "A4", "A9")
async def test_a_client_and_a_worker_in_another_language_take_part(
    site: Site, node_peer: Path
) -> None:
    url = site.server.url
    async with site.bridge():
        await site.worker("job.any.python", succeed)
        with _running(node_peer, "work", url, "job.any.node") as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "listening\n"
            with _running(node_peer, "submit", url, "job.any.node", "node-to-node") as client:
                await until(lambda: client.poll() is not None, "the client to end")
                assert client.returncode == 0
            job = await site.ended("node-to-node")
            first, *_, end = await site.events("node-to-node")
            assert (job.succeeded, job.result_ptr) == (True, "node://context/result")
            assert (first.correlation_id, end.facts.worker) == ("node-trace", "node-worker")
            await site.submit("python-to-node", "job.any.node", context_ptr="x:%00%ff?")
            assert (await site.ended("python-to-node")).result_ptr == "x:%00%ff?/result"
        with _running(node_peer, "submit", url, "job.any.python", "node-to-python"):
            assert (await site.ended("node-to-python")).succeeded
