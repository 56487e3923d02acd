"""What strangers may send over a real socket: refused with a reason, in bounded memory."""

from __future__ import annotations

import gzip
import json
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.test_serving import Running, running

ROOM = 96 * 1024 * 1024
"""What the server may need beyond what it has at rest: a dozen times the largest body."""
DEEP = 100_000
BIDI = "\u202egnp.exe\u2066"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server in a process of its own; it answers well, and is no larger, after all of it."""
    with running(tmp_path_factory.mktemp("hostile"), "up") as server:
        assert said(server, b'{"task":"t"}')[0] == 201
        before = peak(server)
        yield server
        assert peak(server) - before < ROOM
        assert said(server, b'{"task":"t"}')[0] == 201
        # Of all that was sent, only what was answered so is there.
        assert len(server.http.get("/v1/jobs", params={"task": "t"}).json()["jobs"]) == 2


def peak(server: Running) -> int:
    """Tell the most memory that the process has ever had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


def asked(server: Running, request: bytes) -> bytes:
    """Say something, to the byte, and hear everything until the server closes."""
    address = urlsplit(str(server.http.base_url))
    with socket.create_connection((address.hostname, address.port), timeout=30) as line:
        heard = b""
        # It may answer and close before all was said; then some of its answer may be lost, too.
        with suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(request)
        with suppress(ConnectionResetError):
            while part := line.recv(65536):
                heard += part
    return heard


def said(
    server: Running, body: bytes, *headers: str, path: str = "/v1/jobs"
) -> tuple[int, dict[str, object]]:
    """Post a body; tell the status and the answer."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {server.http.base_url.host}",
        "Connection: close",
        f"Content-Length: {len(body)}",
        *(headers or ("Content-Type: application/json",)),
    ]
    reply = asked(server, "\r\n".join([*lines, "", ""]).encode() + body)
    head, _, rest = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(rest)


def labels(number: int) -> bytes:
    return json.dumps({"task": "t", "labels": {f"k{n}": "v" for n in range(number)}}).encode()


def needs(number: int) -> bytes:
    return json.dumps({"task": "t", "needs": [f"n{n}" for n in range(number)]}).encode()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"[" * DEEP, 422, id="deep"),
        pytest.param(b'{"task":"t","args":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}", 422,
                     id="deep arguments"),
        pytest.param(b'{"task":"t","args":{"a":NaN}}', 422, id="not a number"),
        pytest.param(b'{"task":"t","args":{"a":-Infinity}}', 422, id="infinite"),
        pytest.param(b'{"task":"t","args":{"a":1e999}}', 422, id="too large for a float"),
        pytest.param(b'{"task":"t","args":{"a":1,"a":2}}', 422, id="a key twice"),
        pytest.param(b'{"task":"s","task":"t"}', 422, id="a field twice"),
        pytest.param(b'{"task":"t","labels":{"a":"b","a":"c"}}', 422, id="a label twice"),
        pytest.param(b'{"task":"t","args":{"a":' + b"9" * 7_000_000 + b"}}", 422, id="huge number"),
        pytest.param(b'{"task":"t","priority":' + b"9" * 7_000_000 + b"}", 422, id="huge field"),
        pytest.param(b'{"task":"t","args":{"a":18446744073709551616}}', 422, id="beyond 64 bits"),
        pytest.param(rb'{"task":"t\u0000"}', 422, id="nul in a name"),
        pytest.param(rb'{"task":"t","args":{"a\u0000":1}}', 422, id="nul in a key"),
        pytest.param(rb'{"task":"t","args":{"a":"\udc00"}}', 422, id="half a character"),
        pytest.param(b'{"task":"\xff\xfe"}', 422, id="no utf-8"),
        pytest.param(labels(100_000), 422, id="labels"),
        pytest.param(needs(100_000), 422, id="needs"),
        pytest.param(b" " * (8 * 1024 * 1024 + 1), 413, id="large"),
    ],
)  # fmt: skip
def test_a_hostile_body_is_refused(served: Running, body: bytes, status: int) -> None:
    code, problem = said(served, body)
    assert (code, problem["status"]) == (status, status), problem
    assert problem["code"] in ("validation_failed", "bad_data", "too_large")


def test_too_many_at_once_are_refused(served: Running) -> None:
    many = b'{"jobs":[' + b'{"task":"t"},' * 100_000 + b'{"task":"t"}]}'
    assert said(served, many, path="/v1/jobs/batch")[0] == 413
    reports = b'{"session":"local.1","reports":[%b]}' % b",".join(
        [b'{"say":"heartbeat","internal_id":"00000000-0000-7000-8000-000000000000","attempt":1}']
        * 50_000
    )
    assert said(served, reports, path="/v1/worker/report")[0] == 413


def test_a_bomb_is_not_unpacked(served: Running) -> None:
    bomb = gzip.compress(b" " * 300_000_000, compresslevel=1)
    headers = ("Content-Type: application/json", "Content-Encoding: gzip")
    for body in (bomb, gzip.compress(b'{"task":"t"}')):
        code, problem = said(served, body, *headers)
        assert (code, problem["code"]) == (415, "unsupported_media")


def test_a_body_without_a_length_ends_at_the_limit(served: Running) -> None:
    head = b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
    head += b"Content-Type: application/json\r\n\r\n"
    chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
    reply = asked(served, head + chunk * 200)
    # It may be gone before it is read: then the connection is, too.
    assert reply == b"" or reply.startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n", id="a long path"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"a" * 50_000_000, id="an endless header"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1_000_000, id="headers without end"),
        pytest.param(b"POST /v1/jobs HTTP/1.1\r\nContent-Length: -1\r\n\r\n", id="less than none"),
        pytest.param(b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
                     b"Content-Length: 6\r\n\r\n{}", id="two lengths"),
        pytest.param(b"\x00\x01\x02\r\n\r\n", id="no http"),
    ],
)  # fmt: skip
def test_a_hostile_head_is_refused(served: Running, head: bytes) -> None:
    reply = asked(served, head)
    assert reply == b"" or reply.startswith(b"HTTP/1.1 4"), reply[:200]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs/%00",
        "/v1/jobs/%ff%fe",
        "/v1/jobs/" + "%E2%80%AE" * 500,
        "/v1/jobs?queue=%00",
        "/v1/jobs?created_from=9999-12-31T23:59:59.999999%2B00:00",
        "/v1/jobs?created_from=0001-01-01T00:00:00%2B23:59",
        "/v1/events?after=%00",
        "/v1/webhooks/%00",
        "/v1/workers?seen_since=0001-01-01T00:00:00Z",
    ],
)
def test_a_hostile_path_is_no_fault_of_the_server(served: Running, path: str) -> None:
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    reply = asked(served, head.encode())
    assert int(reply.split()[1]) < 500, reply


def test_a_name_that_reads_backwards_is_kept_as_it_is(served: Running) -> None:
    body = {"task": BIDI, "queue": "elsewhere", "labels": {BIDI: BIDI}}
    code, answer = said(served, json.dumps(body).encode())
    assert code == 201
    job = served.http.get(f"/v1/jobs/{answer['job_id']}").json()
    assert job["task"] == BIDI
