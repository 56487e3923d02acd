"""What `serve` and `up` run: the gateway, alone or beside a worker. Imports the web framework."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

from holdfast.admission.topics import NO_TOPICS, Topics
from holdfast.app.app import Holdfast
from holdfast.cli.runtime import FOUND_PROBLEMS, handle_signals
from holdfast.cli.settings import CommandFileOptions, ListenOptions
from holdfast.cli.worker import close_app, work_until
from holdfast.http.app import make_server
from holdfast.http.authentication import check_exposure, make_authenticator
from holdfast.http.lifespan import Beside
from holdfast.http.listener import HttpServer
from holdfast.ports.store import Store
from holdfast.services.loop import wait_for_first
from holdfast.telemetry import Meters
from holdfast.wiring import Address, make_store, plan_blobs
from holdfast.worker.worker import Worker


def make_gateway(
    listen: ListenOptions,
    address: Address,
    app: Holdfast | None,
    *,
    meters: Meters | None = None,
    beside: Sequence[Beside] = (),
    files: CommandFileOptions,
    prepare: Beside | None = None,
    topics: Topics = NO_TOPICS,
) -> HttpServer:
    """Make the gateway of a store, on a socket that it already owns.

    `prepare` is awaited before the first request.
    """
    # The command itself prints when it starts and stops.
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    store, limits = make_store(address), listen.limits()
    directory = files.command_dir if app is None else app.command_dir
    blobs = files.blobs if app is None else app.blobs

    async def check(store: Store) -> None:
        await check_exposure(store, host=listen.host)
        if prepare is not None:
            await prepare(store)

    server = make_server(
        store,
        make_authenticator(store, listen.host),
        check=check,
        tasks=None if app is None else app.tasks,
        topics=topics if app is None else app.topics,
        limits=limits,
        meters=meters,
        beside=beside,
        outside=listen.outside(),
        open_blobs=plan_blobs(blobs, directory),
    )
    return HttpServer(
        server,
        host=listen.host,
        port=listen.port,
        grace_seconds=listen.grace,
        access_log=listen.access_log,
        limits=limits,
    )


async def serve(gateway: HttpServer, announce: Callable[[], None]) -> None:
    """Serve until a signal or a late refusal; a second signal hurries."""

    def stop() -> None:
        gateway.stop()
        handle_signals(gateway.hurry)

    handle_signals(stop)
    await gateway.run(announce)


class AllRoles:
    """All roles in one process: the gateway with the loops beside it, and maybe a worker."""

    def __init__(self, gateway: HttpServer, app: Holdfast | None, worker: Worker | None) -> None:
        self._gateway = gateway
        self._app = app
        self._worker = worker

    async def run(self, announce: Callable[[], None]) -> int:
        """Serve in a thread and work here, until a signal or the death of either."""
        started, ended = asyncio.Event(), asyncio.Event()
        handle_signals(ended.set)
        thread = _GatewayThread(self._gateway, started, ended)
        thread.start()
        stopping = asyncio.create_task(self._stop_after(ended))
        # A server that refuses to serve does so before a worker has claimed anything, unless the
        # database is slow or away: then it refuses later, and takes the worker down with it.
        await wait_for_first(started.wait(), ended.wait())
        serves = started.is_set()
        if serves:
            announce()
            code = await self._work(ended)
        else:
            # Stopped before it served: no worker had its turn.
            code = 0 if self._worker is None else FOUND_PROBLEMS
        await stopping
        await asyncio.to_thread(thread.join)
        if serves and self._app is not None and self._worker is not None:
            await close_app(self._app, self._worker, code, thread.died)
        if thread.died is not None:
            raise thread.died
        return code

    async def _stop_after(self, ended: asyncio.Event) -> None:
        await ended.wait()
        self._gateway.stop()
        handle_signals(self._gateway.hurry)

    async def _work(self, ended: asyncio.Event) -> int:
        if self._worker is None:
            await ended.wait()
            return 0
        code = await work_until(ended, self._worker, hurry=self._hurry)
        # A worker that ended by itself takes all down with it: a supervisor starts it again.
        ended.set()
        return code

    def _hurry(self) -> None:
        self._gateway.hurry()
        if self._worker is not None:
            self._worker.hurry()


class _GatewayThread(threading.Thread):
    """The gateway on a loop of its own: a handler that blocks the worker's delays no request.

    When it ends, everything else must end, too.
    """

    def __init__(self, gateway: HttpServer, started: asyncio.Event, ended: asyncio.Event) -> None:
        """Run `gateway`; its start and its end set these events of the current loop."""
        super().__init__(name="holdfast-gateway", daemon=True)
        self.died: BaseException | None = None
        self._gateway = gateway
        self._on_start, self._on_end = started, ended
        self._loop = asyncio.get_running_loop()

    def run(self) -> None:
        """Serve until the gateway is stopped."""
        try:
            asyncio.run(self._gateway.run(partial(self._set, self._on_start)))
        except BaseException as error:  # noqa: BLE001  raised by the code that joins it
            self.died = error
        finally:
            self._set(self._on_end)

    def _set(self, event: asyncio.Event) -> None:
        self._loop.call_soon_threadsafe(event.set)
