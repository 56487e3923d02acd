"""A private S3 server on the loopback (moto), and places of blobs for tests.

Fixtures, for any test once its conftest imports them (`tests/conftest.py` does):

- `s3_server`: one server per test process, started when it is first asked for;
- `s3_address`: a new bucket, as the address that `--blobs`, `Holdfast(blobs=…)` and `plan_blobs`
  take. The credentials are in the environment, for this process and those that it starts;
- `local_address`: a directory of the test's own;
- `blobs_address`: each of the two in turn, so that a test runs once per kind of place.

To open one for an open store: `await plan_blobs(blobs_address)(store)`.
"""

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest

from tests.support.lifeline import Lifeline, free_port
from tests.support.waiting import wait_until

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "s3-secret-of-the-tests"}
# moto reads the account from the credential, and does not check the signature.
_AUTHORIZATION = (
    "AWS4-HMAC-SHA256 Credential=tester/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=none"
)


class S3Server:
    """One server; use it as a context manager. Buckets are made, emptied and removed directly."""

    def __init__(self) -> None:
        self.port = 0
        self._lifeline: Lifeline | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._buckets = count(1)

    def __enter__(self) -> Self:
        self._lifeline = Lifeline(end_signal=signal.SIGTERM)
        try:
            self._start(self._lifeline)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the server and remove its files."""
        if self._lifeline is None:
            return
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=20)
            self._process = None
            self._lifeline.forget_server()
        self._lifeline.close()
        self._lifeline = None

    def create_bucket(self, name: str | None = None) -> str:
        """Make an empty bucket, under a name of its own if none is given."""
        bucket = name or f"bucket-{next(self._buckets)}"
        self.request("PUT", f"/{bucket}")
        return bucket

    def drop_bucket(self, name: str) -> None:
        """Remove a bucket with all that is in it."""
        for key in self.keys(name):
            self.request("DELETE", f"/{name}/{key}")
        self.request("DELETE", f"/{name}")

    def buckets(self) -> list[str]:
        """List the buckets that are there."""
        return self._texts("/", "Buckets/Bucket/Name")

    def keys(self, bucket: str) -> list[str]:
        """List what is in a bucket, as another program sees it."""
        return self._texts(f"/{bucket}?list-type=2&max-keys=100000", "Contents/Key")

    def unfinished_uploads(self, bucket: str) -> list[str]:
        """List the keys of multipart uploads that were neither completed nor aborted."""
        return self._texts(f"/{bucket}?uploads", "Upload/Key")

    def address(self, bucket: str, prefix: str = "", *, port: int | None = None) -> str:
        """Return the address of a place in a bucket, through a proxy if its port is given."""
        query = {
            "endpoint": f"http://127.0.0.1:{port or self.port}",
            "region": "us-east-1",
            "allow_http": "true",
        }
        return f"s3://{bucket}/{prefix}?{urlencode(query, safe=':/')}"

    def request(self, method: str, path: str) -> bytes:
        """Send a request; raise if the server refuses it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, headers={"Authorization": _AUTHORIZATION})
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {body.decode()}")
        return body

    def _texts(self, path: str, element: str) -> list[str]:
        root = ElementTree.fromstring(self.request("GET", path))
        steps = "/".join(f"{{*}}{step}" for step in element.split("/"))
        return [one.text or "" for one in root.findall(f"./{steps}")]

    def _start(self, lifeline: Lifeline) -> None:
        self.port = free_port()
        log = lifeline.directory / "log"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = lifeline.spawn(command, log=log, as_ourselves=True)
        wait_until(self._answers, "moto to answer", limit_seconds=60)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"moto ended with {self._process.returncode}")
        try:
            self.request("GET", "/moto-api/")
        except OSError:
            return False
        return True


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """One server per test process, started when first asked for."""
    with S3Server() as server:
        yield server


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the server's credentials into the environment, and nothing else of S3."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3_bucket(s3_server: S3Server) -> Iterator[str]:
    """A bucket of the test's own, gone afterwards."""
    bucket = s3_server.create_bucket()
    yield bucket
    if bucket in s3_server.buckets():
        s3_server.drop_bucket(bucket)


@pytest.fixture
def s3_address(s3_server: S3Server, s3_bucket: str, request: pytest.FixtureRequest) -> str:
    """A place in a new bucket, as an address; the credentials are in the environment."""
    request.getfixturevalue("s3_credentials")
    return s3_server.address(s3_bucket, "holdfast")


@pytest.fixture
def local_address(tmp_path: Path) -> str:
    """A directory of the test's own that is not there yet, as an address."""
    return str(tmp_path / "place of blobs")


@pytest.fixture(params=["local", "s3"])
def blobs_address(request: pytest.FixtureRequest) -> str:
    """A local place, then one on S3: a test that asks for it runs once with each."""
    address: str = request.getfixturevalue(f"{request.param}_address")
    return address
