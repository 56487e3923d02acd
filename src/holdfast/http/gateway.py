"""The server on a socket: it listens, serves until it is stopped, and ends in order."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import ceil

import uvicorn
from fastapi import FastAPI

from holdfast.errors import CannotServe
from holdfast.http.connections import held_within
from holdfast.http.ending import Ending
from holdfast.http.limits import Limits

GRACE_SECONDS = 30.0
BACKLOG = 2048


class Gateway:
    """One application at one address. `run` serves; `stop` and `hurry` may come from any thread."""

    def __init__(
        self,
        app: FastAPI,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        grace_seconds: float = GRACE_SECONDS,
        access_log: bool = False,
        limits: Limits | None = None,
    ) -> None:
        """Take the address at once, so that one that is taken is told before anything begins."""
        limits = limits or Limits()
        self._app = app
        self._ending: Ending = app.state.house.ending
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
                # Whoever a request is from, its token tells; no header of a proxy's does.
                proxy_headers=False,
                ws="none",
                http=held_within(limits),
                timeout_keep_alive=limits.idle_seconds,
                backlog=BACKLOG,
                timeout_graceful_shutdown=ceil(grace_seconds),
            )
        )

    @property
    def url(self) -> str:
        """Where it answers; with port 0, at the port that it was given."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def run(self, begun: Callable[[], None] = lambda: None) -> None:
        """Serve until stopped; requests under way are answered, within the grace.

        `begun` is called before it answers anything: once nothing refuses it, or with a database
        that is slow or away. A refusal that comes with that later ends it, and is raised.
        """
        self._loop = asyncio.get_running_loop()
        # Its beginning and its end are told by whoever runs it.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        ending = asyncio.create_task(self._stop_with_app())
        try:
            async with self._app.router.lifespan_context(self._app):
                if not self._stopped:
                    begun()
                    await self._server.serve(sockets=[self._socket])
        finally:
            ending.cancel()
            self._socket.close()

    def stop(self) -> None:
        """Take no more connections, let long waits end now, and answer what is under way."""
        self._stopped = True
        self._server.should_exit = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ending.begin)

    async def _stop_with_app(self) -> None:
        """Stop as if told to when the app itself begins to end."""
        await self._ending.wait()
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
    """Take an address; CannotServe if that is not possible."""
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
