"""The server on a socket: it listens, serves until it is stopped, and shuts down in order."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import ceil

import uvicorn

from holdfast.errors import CannotServe
from holdfast.http.lifespan import ServerShutdown
from holdfast.http.limits import ServerLimits
from holdfast.http.router import Application
from holdfast.http.slow_clients import make_limited_protocol

GRACE_SECONDS = 30.0
BACKLOG = 2048


class HttpServer:
    """One application at one address. `run` serves; `stop` and `hurry` may come from any thread."""

    def __init__(
        self,
        app: Application,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        grace_seconds: float = GRACE_SECONDS,
        access_log: bool = False,
        limits: ServerLimits | None = None,
    ) -> None:
        """Bind the address at once, so that one in use is reported before anything starts."""
        limits = limits or ServerLimits()
        self._app = app
        self._shutdown: ServerShutdown = app.state.shutdown
        self._socket = listen(host, port)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False
        self._server = _Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=access_log,
                server_header=False,
                # A request's token identifies its caller; no header of a proxy does.
                proxy_headers=False,
                ws="none",
                http=make_limited_protocol(limits),
                timeout_keep_alive=limits.idle_seconds,
                backlog=BACKLOG,
                timeout_graceful_shutdown=ceil(grace_seconds),
            )
        )

    @property
    def url(self) -> str:
        """Where it answers; with port 0, at the port that it was assigned."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def run(self, started: Callable[[], None] = lambda: None) -> None:
        """Serve until stopped; requests under way are answered, within the grace.

        `started` is called before it answers anything: once nothing refuses it, or while the
        database is slow or unavailable. A refusal that comes later stops it, and is raised.
        """
        self._loop = asyncio.get_running_loop()
        # Its start and its end are logged by the command that runs it.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        stopping = asyncio.create_task(self._stop_with_app())
        try:
            async with self._app.lifespan_context(self._app):
                if not self._stopped:
                    started()
                    await self._server.serve(sockets=[self._socket])
        finally:
            stopping.cancel()
            self._socket.close()

    def stop(self) -> None:
        """Accept no more connections, end long waits now, and answer what is under way."""
        self._stopped = True
        self._server.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._shutdown.start)

    async def _stop_with_app(self) -> None:
        """Stop as by `stop` when the application itself shuts down."""
        await self._shutdown.wait()
        self.stop()

    def hurry(self) -> None:
        """Do not wait for those requests any longer."""
        self._server.force_exit = True


class _Server(uvicorn.Server):
    """Leaves signals to the command that runs it."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Bind an address; CannotServe if that is not possible."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotServe(f"cannot serve on {host}:{port}: {error}") from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise CannotServe(
            f"cannot serve on {host}:{port}: {error.strerror}; choose another --host or --port"
        ) from error
    made.set_inheritable(False)
    return made
