"""What `serve` and `up` run: the gateway, alone or beside a worker. Imports the web framework."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from holdfast.app import Holdfast
from holdfast.cli.housekeeping import Housekeeping
from holdfast.cli.running import FOUND_PROBLEMS, on_signals
from holdfast.cli.worker import end_with, work
from holdfast.http.doors import check_door, make_doorkeeper
from holdfast.http.gateway import Gateway
from holdfast.http.limits import Limits
from holdfast.http.opening import Beside
from holdfast.http.server import make_server
from holdfast.outside import Outside
from holdfast.ports import Store
from holdfast.services.rounds import first_of
from holdfast.services.worker import Worker
from holdfast.telemetry import Meters
from holdfast.wiring import Address, make_store


class Door(Struct, frozen=True, kw_only=True):
    """Where and how the API is served."""

    host: str
    port: int
    grace_seconds: float
    access_log: bool
    limits: Limits
    outside: Outside

    def gateway(
        self,
        address: Address,
        app: Holdfast | None,
        *,
        meters: Meters | None = None,
        beside: Sequence[Beside] = (),
    ) -> Gateway:
        """Make the gateway of a store, on a socket that is its own already."""
        # That it starts and ends the command says itself.
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
        store = make_store(address)
        server = make_server(
            store,
            make_doorkeeper(store, self.host),
            check=partial(check_door, host=self.host),
            tasks=None if app is None else app.tasks,
            limits=self.limits,
            meters=meters,
            beside=beside,
            outside=self.outside,
        )
        return Gateway(
            server,
            host=self.host,
            port=self.port,
            grace_seconds=self.grace_seconds,
            access_log=self.access_log,
            limits=self.limits,
        )


async def serve(gateway: Gateway, announce: Callable[[], None]) -> None:
    """Serve until a signal or a late refusal; a second signal hurries."""

    def stop() -> None:
        gateway.stop()
        on_signals(gateway.hurry)

    on_signals(stop)
    await gateway.run(announce)


class Whole:
    """All roles in one process: the gateway with the sweeps beside it, and maybe a worker."""

    def __init__(
        self, door: Door, address: Address, app: Holdfast | None, keeping: Housekeeping
    ) -> None:
        """Take the address to serve at."""
        self._app = app
        self._worker: Worker | None = None
        self._meters = Meters() if app is None else app.meters
        self._keeping = keeping
        self._gateway = door.gateway(address, app, meters=self._meters, beside=[self._keep])

    def employ(self, worker: Worker) -> None:
        """Let a worker of the app run, too."""
        self._worker = worker

    @property
    def url(self) -> str:
        """Where it answers."""
        return self._gateway.url

    @property
    def worker_name(self) -> str | None:
        """The name that its claims are written under."""
        return None if self._worker is None else self._worker.name

    async def run(self, announce: Callable[[], None]) -> int:
        """Serve in a thread and work here, until a signal or the death of either."""
        begun, ended = asyncio.Event(), asyncio.Event()
        on_signals(ended.set)
        front = _Front(self._gateway, begun, ended)
        front.start()
        stopping = asyncio.create_task(self._stop_with(ended))
        # What refuses to serve refuses before a worker has claimed anything, unless the database
        # is slow or away: then it refuses once that is there, and takes the worker down with it.
        await first_of(begun.wait(), ended.wait())
        works = begun.is_set()
        if works:
            announce()
        code = await self._work(ended) if works else self._unbegun
        await stopping
        await asyncio.to_thread(front.join)
        if works and self._app is not None and self._worker is not None:
            await end_with(self._app, self._worker, code, front.died)
        if front.died is not None:
            raise front.died
        return code

    @property
    def _unbegun(self) -> int:
        """The exit code of one that was stopped before it served: no worker had its turn."""
        return 0 if self._worker is None else FOUND_PROBLEMS

    async def _stop_with(self, ended: asyncio.Event) -> None:
        await ended.wait()
        self._gateway.stop()
        on_signals(self._gateway.hurry)

    async def _work(self, ended: asyncio.Event) -> int:
        if self._worker is None:
            await ended.wait()
            return 0
        code = await work(self._worker, ended, hurry=self._hurry(self._worker))
        # A worker that ended by itself takes all down with it: whoever started it starts it anew.
        ended.set()
        return code

    def _hurry(self, worker: Worker) -> Callable[[], None]:
        def hurry() -> None:
            self._gateway.hurry()
            worker.hurry()

        return hurry

    async def _keep(self, store: Store) -> None:
        """Sweep, clean and tell webhooks until cancelled."""
        async with asyncio.TaskGroup() as group:
            for one in self._keeping.loops(store, meters=self._meters):
                group.create_task(one.run())


class _Front(threading.Thread):
    """The gateway on a loop of its own: a handler that blocks the worker's keeps nobody waiting.

    When it ends, whatever else runs is to end, too.
    """

    def __init__(self, gateway: Gateway, begun: asyncio.Event, ended: asyncio.Event) -> None:
        """Take what runs there, and what tells its beginning and its end to this loop."""
        super().__init__(name="holdfast-gateway", daemon=True)
        self.died: BaseException | None = None
        self._gateway = gateway
        self._begun, self._ended = begun, ended
        self._loop = asyncio.get_running_loop()

    def run(self) -> None:
        """Serve until the gateway is stopped."""
        try:
            asyncio.run(self._gateway.run(partial(self._tell, self._begun)))
        except BaseException as error:  # noqa: BLE001  told by whoever joins it
            self.died = error
        finally:
            self._tell(self._ended)

    def _tell(self, what: asyncio.Event) -> None:
        self._loop.call_soon_threadsafe(what.set)
