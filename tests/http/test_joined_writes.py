"""The head and the body of an answer leave together, and a slow client still holds its writer."""

from __future__ import annotations

import asyncio

import uvicorn
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from holdfast.http.joined_writes import HELD_BYTES, JoinedWrites
from holdfast.http.limits import ServerLimits
from holdfast.http.slow_clients import make_limited_protocol


class Sent(asyncio.Transport):
    """A transport that keeps what was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.writes.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


async def test_what_is_written_in_one_turn_is_sent_in_one_piece() -> None:
    sent = Sent()
    joined = JoinedWrites(sent)
    for part in (b"head ", b"body", b""):
        joined.write(part)
    assert sent.writes == []
    await asyncio.sleep(0)
    joined.write(b"the next answer")
    await asyncio.sleep(0)
    assert sent.writes == [b"head body", b"the next answer"]


async def test_more_than_is_held_is_sent_at_once() -> None:
    sent = Sent()
    joined = JoinedWrites(sent)
    joined.write(b"head ")
    joined.write(b"x" * HELD_BYTES)
    assert sent.writes == [b"head " + b"x" * HELD_BYTES]
    await asyncio.sleep(0)
    assert len(sent.writes) == 1


async def test_a_large_body_is_sent_behind_its_head_and_not_copied() -> None:
    sent = Sent()
    joined = JoinedWrites(sent)
    body = b"x" * (HELD_BYTES + 1)
    joined.write(b"head ")
    joined.write(body)
    assert sent.writes == [b"head ", body]
    assert sent.writes[1] is body
    await asyncio.sleep(0)
    assert len(sent.writes) == 2


async def test_a_connection_is_closed_behind_what_was_written() -> None:
    sent = Sent()
    joined = JoinedWrites(sent)
    joined.write(b"the last answer")
    joined.close()
    assert (sent.writes, sent.closed) == ([b"the last answer"], True)
    assert joined.is_closing()


async def test_an_answer_leaves_in_one_piece_as_soon_as_it_is_complete() -> None:
    sent, answered = Sent(), asyncio.Event()
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"body")(scope, receive, send)
        seen.extend(sent.writes)
        answered.set()

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    config.load()
    connection = make_limited_protocol(ServerLimits())(  # type: ignore[call-arg]
        config=config, server_state=ServerState(), app_state={}
    )
    connection.connection_made(sent)
    connection.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    async with asyncio.timeout(5):
        await answered.wait()
    assert len(seen) == 1
    assert seen[0].startswith(b"HTTP/1.1 200 ")
    assert seen[0].endswith(b"\r\n\r\nbody")
    connection.connection_lost(None)
