"""A TCP proxy on the loopback between a client and PostgreSQL, with faults to order.

It runs in a thread of its own, so blocking and asynchronous tests can both use it. Cutting and
freezing work for any protocol; the faults that name a statement understand PostgreSQL's.
"""

import asyncio
import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeVar

from tests.support.lifeline import free_port
from tests.support.pgwire import RequestStream, ends_an_answer

_CHUNK = 65536
_CALL_SECONDS = 10.0
# Closing then sends a reset at once, as when a host is gone: no goodbye, nothing flushed.
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Answer = TypeVar("Answer")


class Fault:
    """An ordered fault; a test waits for it to have really bitten before it asserts anything."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._bitten = threading.Event()
        self.count = 0

    @property
    def bitten(self) -> bool:
        return self._bitten.is_set()

    def bite(self) -> None:
        """Note that the fault took effect; called by the proxy."""
        self.count += 1
        self._bitten.set()

    def wait(self, limit_seconds: float = 10.0) -> None:
        """Block until the fault has bitten; raise TimeoutError when it does not."""
        if not self._bitten.wait(limit_seconds):
            raise TimeoutError(f"{self._what}: did not happen within {limit_seconds:g} s")

    async def happened(self, limit_seconds: float = 10.0) -> None:
        """`wait`, for a test whose client lives on the same event loop."""
        await asyncio.to_thread(self.wait, limit_seconds)


class StatementFault(Fault):
    """A fault that bites the first statement which contains its pattern, once."""

    def __init__(self, what: str, pattern: bytes) -> None:
        super().__init__(f"{what} {pattern!r}")
        self._pattern = pattern

    def matches(self, executed: list[bytes]) -> bool:
        return any(self._pattern in text for text in executed)


@dataclass(eq=False, kw_only=True)
class _Connection:
    """One client's connection and its continuation to the server."""

    client: asyncio.StreamReader
    to_client: asyncio.StreamWriter
    server: asyncio.StreamReader
    to_server: asyncio.StreamWriter
    requests: RequestStream = field(default_factory=RequestStream)
    reply_lost_by: StatementFault | None = None
    swallowed: bytes = b""

    def cut(self) -> None:
        _reset(self.to_client)
        _reset(self.to_server)


class FaultProxy:
    """Forwards to one address; use it as a context manager. Every method may be called anywhere."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self._listener: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._frozen: Fault | None = None
        self._lost_replies: list[StatementFault] = []
        self._lost_requests: list[StatementFault] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self._flowing.set()
        self._run(self._listen())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._run(self._shut_down())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_SECONDS)
        self._loop.close()

    def url(self, url: str) -> str:
        """The same URL, but through this proxy."""
        return re.sub(r"@[^/]*/", f"@127.0.0.1:{self.port}/", url, count=1)

    @property
    def connected(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    def retarget(self, host: str, port: int) -> None:
        """Send new connections elsewhere, as a failover does; those that exist stay."""
        self._target = (host, port)

    def cut(self) -> int:
        """Reset every connection now; how many there were."""
        return self._call(self._cut_all)

    def refuse(self) -> None:
        """Let nobody connect until `accept`; those that exist stay."""
        self._run(self._stop_listening())

    def accept(self) -> None:
        """Let clients connect again."""
        self._run(self._listen())

    def freeze(self) -> Fault:
        """Forward nothing, not even a close, until `thaw`: every connection is half-open.

        The fault counts the pieces held back; they go on their way with the thaw.
        """
        fault = Fault("the freeze held something back")
        self._call(lambda: self._freeze(fault))
        return fault

    def thaw(self) -> None:
        """Forward again, first what was held back."""
        self._call(self._flowing.set)

    def drop_reply_after(self, pattern: bytes) -> Fault:
        """Let the next statement that contains `pattern` be done, but lose the server's reply.

        The statement's whole answer is awaited and swallowed, so its commit has happened; then
        the connection is reset. Prepared statements count by their text each time they run.
        """
        fault = StatementFault("a reply was lost after", pattern)
        self._call(lambda: self._lost_replies.append(fault))
        return fault

    def drop_next_reply(self) -> Fault:
        """Lose the reply to whatever statement runs next; preparing one is not running it."""
        return self.drop_reply_after(b"")

    def drop_request(self, pattern: bytes) -> Fault:
        """Reset the connection instead of forwarding the next statement that contains `pattern`.

        To the client this looks just like a lost reply, but here nothing was done.
        """
        fault = StatementFault("a request was lost at", pattern)
        self._call(lambda: self._lost_requests.append(fault))
        return fault

    def _run(self, work: Coroutine[object, object, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)

    def _call(self, function: Callable[[], Answer]) -> Answer:
        async def call() -> Answer:
            return function()

        return self._run(call())

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _shut_down(self) -> None:
        await self._stop_listening()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._cut_all()
        # A turn of the loop lets the aborted transports report their end before the loop closes.
        await asyncio.sleep(0)

    def _cut_all(self) -> int:
        cut = list(self._connections)
        for connection in cut:
            connection.cut()
        return len(cut)

    def _freeze(self, fault: Fault) -> None:
        self._frozen = fault
        self._flowing.clear()

    async def _pass_freeze(self) -> None:
        if not self._flowing.is_set():
            if self._frozen is not None:
                self._frozen.bite()
            await self._flowing.wait()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._connect_and_forward(client, to_client)
        except (OSError, asyncio.CancelledError):
            # A reset on either side, or the end of the test: the other side hears of it here.
            _reset(to_client)
        finally:
            self._tasks.discard(task)

    async def _connect_and_forward(
        self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        await self._pass_freeze()
        server, to_server = await asyncio.open_connection(*self._target)
        connection = _Connection(
            client=client, to_client=to_client, server=server, to_server=to_server
        )
        self._connections.add(connection)
        try:
            await self._forward(connection)
        finally:
            self._connections.discard(connection)
            to_client.close()
            to_server.close()

    async def _forward(self, connection: _Connection) -> None:
        """Pump both ways until either side ends."""
        pumps = [
            asyncio.create_task(self._pump_requests(connection)),
            asyncio.create_task(self._pump_replies(connection)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump_requests(self, connection: _Connection) -> None:
        while chunk := await connection.client.read(_CHUNK):
            await self._pass_freeze()
            executed = connection.requests.feed(chunk)
            if lost := _take(self._lost_requests, executed):
                connection.cut()
                return lost.bite()
            if connection.reply_lost_by is None:
                connection.reply_lost_by = _take(self._lost_replies, executed)
            connection.to_server.write(chunk)
            await connection.to_server.drain()
        await self._pass_freeze()
        return None

    async def _pump_replies(self, connection: _Connection) -> None:
        while chunk := await connection.server.read(_CHUNK):
            await self._pass_freeze()
            if fault := connection.reply_lost_by:
                connection.swallowed += chunk
                if ends_an_answer(connection.swallowed):
                    connection.cut()
                    return fault.bite()
            else:
                connection.to_client.write(chunk)
                await connection.to_client.drain()
        await self._pass_freeze()
        return None


def _take(faults: list[StatementFault], executed: list[bytes]) -> StatementFault | None:
    for fault in faults:
        if executed and fault.matches(executed):
            faults.remove(fault)
            return fault
    return None


def _reset(writer: asyncio.StreamWriter) -> None:
    connected: socket.socket | None = writer.get_extra_info("socket")
    if connected is not None:
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
