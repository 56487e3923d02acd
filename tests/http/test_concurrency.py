"""What a client may hold of a server: bodies, places and streams, and from when on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from holdfast.http.app import make_server
from holdfast.http.limits import ServerLimits
from holdfast.http.router import Application
from holdfast.wiring import Address, make_store
from tests.crashes.waiting import until
from tests.http.conftest import Names
from tests.http.listening import listening

LIMITS = ServerLimits(body_bytes=1000, bodies_bytes=4000, body_seconds=30, requests=40, streams=8)
LIMIT_SECONDS = 20.0
Message = MutableMapping[str, Any]


@pytest.fixture
async def server() -> AsyncIterator[Application]:
    """A running application with little room."""
    app = make_server(
        make_store(Address(engine="sqlite", place=":memory:")), Names(), limits=LIMITS
    )
    async with app.lifespan_context(app):
        yield app


class Request:
    """One request by hand, whose body comes and whose client leaves when the test says so."""

    def __init__(self, path: str, who: str, *, body: int | None = None, query: str = "") -> None:
        headers = {"authorization": f"Bearer {who}", "content-type": "application/json"}
        if body is not None:
            headers["content-length"] = str(body)
        self.scope: Message = {
            "type": "http",
            "http_version": "1.1",
            "method": "GET" if body is None else "POST",
            "scheme": "http",
            "server": ("test", 80),
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        self.reads = 0
        self.reading = asyncio.Event()
        self.status = 0
        self.answer = b""
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        if body is None:
            self.send_body(b"")

    def send_body(self, body: bytes, *, more: bool = False) -> None:
        """Have a part of the body arrive."""
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": more})

    def leave(self) -> None:
        """Disconnect."""
        self._messages.put_nowait({"type": "http.disconnect"})

    async def receive(self) -> Message:
        """Hand over what has arrived."""
        self.reads += 1
        self.reading.set()
        return await self._messages.get()

    async def send(self, message: Message) -> None:
        """Take the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.answer += message.get("body", b"")

    @property
    def code(self) -> str:
        """The code of the problem that was answered."""
        return str(json.loads(self.answer)["code"])

    @asynccontextmanager
    async def under_way(self, app: Application) -> AsyncIterator[asyncio.Task[None]]:
        """Send it, and wait until its body is being read or it has been answered."""
        task = asyncio.create_task(app(self.scope, self.receive, self.send))
        reading = asyncio.create_task(self.reading.wait())
        async with asyncio.timeout(LIMIT_SECONDS):
            await asyncio.wait({task, reading}, return_when=asyncio.FIRST_COMPLETED)
        try:
            yield task
        finally:
            self.leave()
            async with asyncio.timeout(LIMIT_SECONDS):
                await task
            reading.cancel()


@pytest.mark.parametrize(("who", "status"), [("nobody", 401), ("viewer@mine", 403)])
async def test_nothing_of_a_body_is_read_before_the_token_is_checked(
    server: Application, who: str, status: int
) -> None:
    request = Request("/v1/jobs", who, body=900)
    async with request.under_way(server) as answered:
        async with asyncio.timeout(LIMIT_SECONDS):
            await answered
    assert (request.status, request.reads) == (status, 0)


async def test_a_body_that_never_comes_holds_no_place_without_a_token(server: Application) -> None:
    meters = server.state.meters.door
    for _ in range(2 * LIMITS.requests):
        request = Request("/v1/jobs", "nobody", body=900)
        async with request.under_way(server) as answered:
            await answered
    assert meters.under_way == 0


async def test_bodies_of_all_requests_share_one_budget(
    server: Application, http: httpx.AsyncClient
) -> None:
    async with (
        Request("/v1/jobs", "submitter@a", body=1000).under_way(server),
        Request("/v1/jobs", "submitter@b", body=1000).under_way(server),
        Request("/v1/jobs", "submitter@c", body=1000).under_way(server),
        Request("/v1/jobs", "submitter@d", body=900).under_way(server),
    ):
        assert server.state.bodies.held == 3900
        refused = Request("/v1/jobs", "submitter@e", body=500)
        async with refused.under_way(server) as answered:
            await answered
        assert (refused.status, refused.code, refused.reads) == (503, "overloaded", 0)
        small = await http.post("/v1/jobs", json={"task": "t"})
        assert small.status_code == 201
    assert server.state.bodies.held == 0


async def test_a_body_without_a_length_counts_as_it_arrives(server: Application) -> None:
    request = Request("/v1/jobs", "submitter@a", body=0)
    request.scope["headers"] = [
        one for one in request.scope["headers"] if one[0] != b"content-length"
    ]
    request.send_body(b"x" * 600, more=True)
    async with request.under_way(server) as answered:
        await until(lambda: server.state.bodies.held == 600, "the first part to count")
        request.send_body(b"x" * 600, more=True)
        await answered
    assert (request.status, request.code) == (413, "too_large")
    assert server.state.bodies.held == 0


async def test_one_token_holds_a_fourth_of_the_budget(server: Application) -> None:
    async with Request("/v1/jobs", "submitter@a", body=800).under_way(server):
        refused = Request("/v1/jobs", "submitter@a", body=800)
        async with refused.under_way(server) as answered:
            await answered
        assert (refused.status, refused.code) == (429, "rate_limited")
        other = Request("/v1/jobs", "submitter@b", body=800)
        async with other.under_way(server):
            assert other.reads == 1


@asynccontextmanager
async def polling(
    server: Application, job: str, who: str, number: int
) -> AsyncIterator[list[Request]]:
    """Have so many long polls under way."""
    polls = [Request(f"/v1/jobs/{job}", who, query="wait=60") for _ in range(number)]
    tasks = [asyncio.create_task(server(one.scope, one.receive, one.send)) for one in polls]
    for one in polls:
        async with asyncio.timeout(LIMIT_SECONDS):
            await one.reading.wait()
    try:
        yield polls
    finally:
        for one in polls:
            one.leave()
        async with asyncio.timeout(LIMIT_SECONDS):
            await asyncio.gather(*tasks)


async def test_one_tokens_long_polls_leave_places_to_others(
    server: Application, http: httpx.AsyncClient
) -> None:
    job = (await http.post("/v1/jobs", json={"task": "t", "tenant": "b"})).json()["job_id"]
    async with polling(server, job, "viewer@b", LIMITS.requests // 4):
        mine = await http.get("/v1/jobs", headers={"authorization": "Bearer viewer@b"})
        assert (mine.status_code, mine.json()["code"]) == (429, "rate_limited")
        assert "retry-after" in mine.headers
        theirs = await http.get("/v1/jobs", headers={"authorization": "Bearer viewer@a"})
        assert theirs.status_code == 200
        # Another token of the tenant has its own share, up to a half for the tenant.
        async with polling(server, job, "submitter@b", LIMITS.requests // 4):
            third = await http.get("/v1/jobs", headers={"authorization": "Bearer operator@b"})
            assert (third.status_code, third.json()["code"]) == (429, "rate_limited")
            theirs = await http.get("/v1/jobs", headers={"authorization": "Bearer viewer@a"})
            assert theirs.status_code == 200


@pytest.mark.parametrize("path", ["", "/result"])
async def test_a_long_poll_whose_client_has_left_gives_its_place_back(
    server: Application, http: httpx.AsyncClient, path: str
) -> None:
    job = (await http.post("/v1/jobs", json={"task": "t", "tenant": "b"})).json()["job_id"]
    async with polling(server, job + path, "viewer@b", 5) as polls:
        assert server.state.meters.door.under_way == 5
        for one in polls:
            one.leave()
        await until(lambda: not server.state.meters.door.under_way, "all to be given back")


async def test_one_token_holds_a_fourth_of_the_streams(
    server: Application, http: httpx.AsyncClient
) -> None:
    async with (
        listening(server, "/v1/events", who="viewer@b"),
        listening(server, "/v1/events", who="viewer@b"),
    ):
        stream = {"accept": "text/event-stream", "authorization": "Bearer viewer@b"}
        refused = await http.get("/v1/events", headers=stream)
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        async with listening(server, "/v1/events", who="viewer@a") as other:
            assert other.status == 200
