"""The bridge: all loops between one store and one bus. Any number may serve the same bus.

The bus owns its jobs, not the bridge: one that dies leaves nothing that another cannot continue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from holdfast.buses.trust import Trust
from holdfast.errors import BadConfig, HoldfastError
from holdfast.ids import mint_worker
from holdfast.ports.bus import Bus, BusChannel
from holdfast.ports.store import Store
from holdfast.services.bus_bridge.cancel_orders import CancelOrders
from holdfast.services.bus_bridge.cancels import Cancels
from holdfast.services.bus_bridge.dispatch import Dispatcher
from holdfast.services.bus_bridge.intake import Intake, all_or_none
from holdfast.services.bus_bridge.known_jobs import KnownJobs
from holdfast.services.bus_bridge.leases import LeaseLoop, Leases
from holdfast.services.bus_bridge.listeners import Listeners
from holdfast.services.bus_bridge.publish import Publisher
from holdfast.services.bus_bridge.refusals import Refusals
from holdfast.services.bus_bridge.results import Results
from holdfast.services.bus_bridge.settings import BridgeParts, BridgeSettings
from holdfast.services.bus_bridge.submits import Submits
from holdfast.services.bus_bridge.turn import DispatchTurn
from holdfast.services.loop import Loop, rest_until, wait_for_first
from holdfast.telemetry import Meters

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class BusBridge:
    """One bridge between an open store and a bus that it opens itself."""

    def __init__(
        self,
        store: Store,
        bus: Bus,
        settings: BridgeSettings,
        trust: Trust,
        *,
        meters: Meters | None = None,
    ) -> None:
        self.meters = meters or Meters()
        self.ready = asyncio.Event()
        """Set once it listens to the bus."""
        self._parts = BridgeParts(
            settings=settings, store=store, bus=bus, trust=trust, meters=self.meters
        )
        self._turn = DispatchTurn(store, settings.name, mint_worker())
        self._stopping = asyncio.Event()
        self._loops: list[Loop] = []

    async def run(self) -> None:
        """Serve the bus until stopped or cancelled."""
        try:
            if await self._open():
                await self._serve()
        finally:
            await self._parts.bus.close()

    async def _open(self) -> bool:
        """Open the bus, however long its server is away; return False if stopped before."""
        opening = asyncio.create_task(self._insist(self._parts.bus.open))
        try:
            await wait_for_first(asyncio.wait([opening]), self._stopping.wait())
            if not opening.done() or self._stopping.is_set():
                return False
            opening.result()
            return True
        finally:
            opening.cancel()

    async def _serve(self) -> None:
        leases, publisher, intakes, others = self._make_parts()
        # Before any result is read: one of a job whose lease has passed would be refused.
        await self._insist(leases.adopt_lost)
        await self._insist(publisher.start)
        for intake in intakes:
            await self._insist(intake.open)
        # Before any submit is read: a cancel that waits behind its submit must not come too late.
        await self._insist(intakes[0].receive_backlog)
        self._loops = [*intakes, *others, publisher]
        if self._stopping.is_set():
            return
        self.ready.set()
        async with asyncio.TaskGroup() as group:
            for one in self._loops:
                group.create_task(one.run())
        with suppress(HoldfastError):
            await self._turn.give_back()

    def stop(self) -> None:
        """Stop after what is under way. Jobs stay with the bus, for other bridges or the next."""
        self._stopping.set()
        for one in self._loops:
            one.stop()

    def _make_parts(self) -> tuple[Leases, Publisher, list[Intake], list[Loop]]:
        parts = self._parts
        refusals = Refusals(self.meters, parts.settings.name)
        known = KnownJobs(parts)
        leases = Leases(parts, Cancels(parts))
        orders = CancelOrders(parts, refusals, known)
        # Set when a job came, a job ended, or a worker listens again.
        look = asyncio.Event()
        listeners = Listeners(look.set)
        dispatcher = Dispatcher(
            parts, self._turn, listeners, known, leases, orders=orders, look=look
        )

        async def note_submitted(job_ids: Sequence[str]) -> None:
            await orders.cancel_known(job_ids)
            look.set()

        submits = Submits(parts, refusals, note_submitted)
        results = Results(parts, refusals, known, leases, look.set)
        hear = all_or_none(listeners.handle)
        intakes = [
            # First: see `_serve`.
            Intake(parts, BusChannel.CANCEL, orders.handle, refusals, kept=True),
            Intake(parts, BusChannel.SUBMIT, all_or_none(submits.handle), refusals, kept=True),
            Intake(
                parts,
                *(BusChannel.RESULT, results.handle, refusals),
                kept=True,
                on_read=leases.note_read,
            ),
            Intake(parts, BusChannel.PROGRESS, results.handle, refusals),
            # Every bridge must know which topics are served.
            Intake(parts, BusChannel.HEARTBEAT, hear, refusals, shared=False),
            Intake(parts, BusChannel.HANDSHAKE, hear, refusals, shared=False),
        ]
        return leases, Publisher(parts, self._turn), intakes, [dispatcher, LeaseLoop(parts, leases)]

    async def _insist(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do something until it succeeds, or the bridge is stopped."""
        while not self._stopping.is_set():
            try:
                await work()
                return
            except BadConfig:
                raise
            except HoldfastError as error:
                log.warning("the bridge of %s waits: %s", self._parts.settings.name, error)
            await rest_until(self._stopping, RETRY_SECONDS)
