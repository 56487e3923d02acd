"""Clients that never come to ask, and those that are too many: over a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.auth.authorization import LOCAL
from holdfast.errors import RateLimited
from holdfast.http.app import make_server
from holdfast.http.authentication import make_authenticator
from holdfast.http.lifespan import ServerShutdown
from holdfast.http.limits import ServerLimits
from holdfast.http.listener import HttpServer
from holdfast.http.middleware import Guard
from holdfast.http.rate_limit import RateLimiter
from holdfast.http.slow_clients import make_limited_protocol
from holdfast.telemetry.counters import DoorMeters
from holdfast.wiring import Address, make_store
from tests.support.waiting import wait_until


@asynccontextmanager
async def gateway(limits: ServerLimits) -> AsyncIterator[tuple[str, int]]:
    """Serve on a free port."""
    store = make_store(Address(engine="sqlite", place=":memory:"))
    app = make_server(store, make_authenticator(store, "127.0.0.1"), limits=limits)
    served = HttpServer(app, port=0, limits=limits)
    running = asyncio.create_task(served.run())
    url = httpx.URL(served.url)
    assert url.port is not None
    try:
        async with httpx.AsyncClient(base_url=url) as http:
            assert (await http.get("/healthz")).status_code == 200
        yield url.host, url.port
    finally:
        served.stop()
        await running


async def answer(place: tuple[str, int], said: bytes) -> bytes:
    """Say something, then nothing more, until the server ends it."""
    reader, writer = await asyncio.open_connection(*place)
    try:
        writer.write(said)
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /healthz HT", id="half a line"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nhost: x\r\n", id="half a head"),
    ],
)
async def test_a_client_that_never_comes_to_ask_is_let_go(said: bytes) -> None:
    async with gateway(ServerLimits(head_seconds=0.2)) as place:
        assert (await answer(place, said)).startswith(b"HTTP/1.1 408 ")


async def test_a_half_request_on_a_used_connection_is_let_go() -> None:
    whole = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    async with gateway(ServerLimits(head_seconds=0.2)) as place:
        reader, writer = await asyncio.open_connection(*place)
        writer.write(whole)
        assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"GET /hea")
        async with asyncio.timeout(30):
            assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()


@pytest.mark.parametrize("begun", [b"", b'{"task": '], ids=["nothing of it", "half of it"])
async def test_a_body_that_does_not_arrive_is_refused_in_time(begun: bytes) -> None:
    head = (
        b"POST /v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        b"content-type: application/json\r\ncontent-length: 100\r\n\r\n"
    )
    async with gateway(ServerLimits(body_seconds=0.2)) as place:
        refused = await answer(place, head + begun)
    assert refused.startswith(b"HTTP/1.1 408 ")
    assert b"the body did not arrive within 0.2 s" in refused


async def test_more_connections_than_are_held_are_told_to_come_again() -> None:
    async with gateway(ServerLimits(connections=3)) as place:
        held = [await asyncio.open_connection(*place) for _ in range(3)]
        refused = await answer(place, b"")
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1" in refused
        held[0][1].close()
        await held[0][0].read()
        async with httpx.AsyncClient(base_url=f"http://{place[0]}:{place[1]}") as http:
            assert (await http.get("/healthz")).status_code == 200
        for _, writer in held:
            writer.close()


async def test_a_client_that_takes_nothing_of_an_answer_is_let_go() -> None:
    async def lavish(scope: Scope, receive: Receive, send: Send) -> None:
        # More than the kernel keeps for both of them.
        await Response(b"x" * 64_000_000)(scope, receive, send)

    config = uvicorn.Config(
        lavish,
        lifespan="off",
        log_config=None,
        http=make_limited_protocol(ServerLimits(unread_seconds=0.5)),
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        state = server.server_state
        await asyncio.to_thread(
            wait_until,
            lambda: state.total_requests > 0 and not state.connections,
            "it to be let go",
        )
        server.should_exit = True
        await serving
        writer.transport.abort()


async def test_more_requests_than_may_be_under_way_are_told_to_come_again() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            begun.set()
            await go_on.wait()
        await Response()(scope, receive, send)

    guard = Guard(slow, ServerLimits(requests=1), DoorMeters(), ServerShutdown())
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(guard), base_url="http://test"
    ) as http:
        first = asyncio.create_task(http.get("/slow"))
        await begun.wait()
        busy = await http.get("/v1/jobs")
        assert (busy.status_code, busy.json()["code"]) == (503, "overloaded")
        assert busy.headers["retry-after"] == "1"
        assert (await http.get("/healthz")).status_code == 200
        go_on.set()
        assert (await first).status_code == 200
        assert (await http.get("/v1/jobs")).status_code == 200


class Still:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(take: Callable[[], None]) -> int:
    """Count how often something may be done at once."""
    for number in range(1000):
        try:
            take()
        except RateLimited:
            return number
    return 1000


def test_a_token_has_its_burst_then_its_rate() -> None:
    clock = Still()
    rates = RateLimiter(ServerLimits(requests_per_second=10, burst=5), clock)
    assert taken(lambda: rates.take("a")) == 5
    assert taken(lambda: rates.take("b")) == 5
    with pytest.raises(RateLimited) as refused:
        rates.take("a")
    assert refused.value.retry_in == pytest.approx(0.1)
    clock.now += 0.2
    assert taken(lambda: rates.take("a")) == 2
    clock.now += 3600
    assert taken(lambda: rates.take("a")) == 5


def test_whoever_has_no_token_and_whoever_sets_no_rate_is_not_counted() -> None:
    assert taken(lambda: RateLimiter(ServerLimits(burst=1)).take(LOCAL)) == 1000
    unlimited = RateLimiter(ServerLimits(requests_per_second=0))
    assert taken(lambda: unlimited.take("a")) == 1000


def test_tokens_that_have_not_asked_for_a_while_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.http.rate_limit.BUCKETS_LIMIT", 3)
    clock = Still()
    rates = RateLimiter(ServerLimits(requests_per_second=1, burst=2), clock)
    for token in "abc":
        assert taken(lambda token=token: rates.take(token)) == 2  # type: ignore[misc]
    clock.now += 1
    rates.take("c")
    clock.now += 1.5
    rates.take("d")
    # What had filled up again is as good as new; what had not is remembered.
    assert taken(lambda: rates.take("c")) == 1
    assert len(rates._buckets) == 2
