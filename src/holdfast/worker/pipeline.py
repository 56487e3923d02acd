"""The parts of one worker, and which of them knows which.

    claimer → waiting jobs → executor → outboxes → committer

They share the jobs that the worker owns and the queue of commands; none knows the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.ids import jitter
from holdfast.lifecycle.times import SECOND
from holdfast.ports.host import Host
from holdfast.ports.models import Announcement
from holdfast.ports.store import Store
from holdfast.telemetry import Meters
from holdfast.worker.claimer import Claimer
from holdfast.worker.committer import Committer
from holdfast.worker.durable_calls import DurableCalls
from holdfast.worker.executor import Executor
from holdfast.worker.failures import Failures, Hook
from holdfast.worker.host_loop import HostLoop
from holdfast.worker.lease_keeper import LeaseKeeper
from holdfast.worker.log_writer import LogWriter
from holdfast.worker.outbox import CommitQueue
from holdfast.worker.owned_job import OwnedJobs
from holdfast.worker.ownership_check import OwnershipCheck
from holdfast.worker.prefetch import Prefetch
from holdfast.worker.room import RoomClaimer
from holdfast.worker.run import HandlerCalls
from holdfast.worker.runner_table import RunnerTable
from holdfast.worker.stop import Stopper
from holdfast.worker.stop_request import StopRequest


class Pipeline:
    """All parts; make it on the worker's event loop."""

    def __init__(
        self,
        worker: Announcement,
        *,
        store: Store,
        keeper_store: Store,
        runners: RunnerTable,
        owned: OwnedJobs,
        stop_request: StopRequest,
        meters: Meters,
        host: Host | None = None,
        on_failure: Sequence[Hook] = (),
        poll_seconds: float,
        tick_seconds: float,
    ) -> None:
        """Connect the parts; none is started."""
        commands, prefetch = CommitQueue(), Prefetch(worker.concurrency)
        log_writer = LogWriter(store)
        failures = Failures(log_writer.write, on_failure)
        stopper = Stopper(owned=owned, commands=commands, meters=meters, failures=failures)
        durable_calls = DurableCalls(store, commands, meters)
        self.worker = worker
        self.store = store
        self.runners = runners if host is None else runners.join(host.runners)
        self.owned = owned
        self.log_writer = log_writer
        self.failures = failures
        self.stopper = stopper
        self.tick_seconds = tick_seconds
        self.committer = Committer(
            store=store,
            owned=owned,
            commands=commands,
            stopper=stopper,
            meters=meters,
            failures=failures,
        )
        self.executor = Executor(
            owned=owned,
            commands=commands,
            runners=self.runners,
            concurrency=worker.concurrency,
            stopper=stopper,
            stop_request=stop_request,
            durable_calls=durable_calls,
            handler_calls=HandlerCalls(commands, durable_calls, log_writer.write),
            prefetch=prefetch,
            meters=meters,
            failures=failures,
            jitter=jitter,
        )
        self.claimer = Claimer(
            store=store,
            owned=owned,
            commands=commands,
            worker=worker,
            runners=runners,
            stopper=stopper,
            stop_request=stop_request,
            prefetch=prefetch,
            meters=meters,
            poll_seconds=poll_seconds,
        )
        self.keeper = LeaseKeeper(keeper_store, owned, stopper, meters)
        self.ownership_check = OwnershipCheck(
            store=store,
            owned=owned,
            worker=worker.name,
            announcement=self.announcement,
            stopper=stopper,
            stop_request=stop_request,
            meters=meters,
            tick_seconds=tick_seconds,
        )
        self.host_loop = None if host is None else self._make_host_loop(host)

    def _make_host_loop(self, host: Host) -> HostLoop:
        """Return what cares for the host: its claims are apart from those of functions."""
        functions = self.claimer
        claimer = RoomClaimer(
            store=self.store,
            owned=self.owned,
            commands=functions.commands,
            worker=replace(self.worker, queues=host.queues, capabilities=host.capabilities),
            runners=RunnerTable(host.runners),
            stopper=self.stopper,
            stop_request=functions.stop_request,
            prefetch=functions.prefetch,
            meters=functions.meters,
            poll_seconds=functions.poll_seconds,
            total=host.room,
            patience=int(host.patience_seconds * SECOND),
        )
        return HostLoop(
            store=self.store,
            owned=self.owned,
            host=host,
            worker=self.worker.name,
            claimer=claimer,
            executor=self.executor,
            stop_request=functions.stop_request,
            pause_seconds=host.pause_seconds,
        )

    def announcement(self) -> Announcement:
        """Return what the worker reports about itself now: commands only while it may run them."""
        loop = self.host_loop
        if loop is None or not loop.claimer.is_open:
            return self.worker
        left = loop.claimer.left()
        return replace(
            self.worker,
            queues=(*self.worker.queues, *loop.host.queues),
            capabilities=self.worker.capabilities | loop.host.capabilities,
            tasks=self.runners.offers(),
            cpus=loop.host.room.cpus,
            memory_mb=loop.host.room.memory_mb,
            # Less than none where a worker with more room left boxes behind.
            free_cpus=max(left.cpus, 0),
            free_memory_mb=max(left.memory_mb, 0),
        )

    async def claim_and_start(self) -> None:
        """Claim for all that this worker runs, until it is stopped."""
        if self.host_loop is None:
            await self._claim_functions()
        else:
            commands = self.host_loop.claim_and_start(self.keeper.attend)
            await asyncio.gather(self._claim_functions(), commands)

    async def _claim_functions(self) -> None:
        """Claim as much as there is room for and start it, again and again, until stopped."""
        while (room := await self.claimer.room()) > 0:
            claimed = await self.claimer.claim(room)
            self.keeper.attend(claimed)
            self.executor.start_waiting()
            if len(claimed) < room:
                await self.claimer.wait_for_work()

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """Return the loops that run beside claims and commits, until cancelled."""
        loops = [
            self.ownership_check.run(),
            self.ownership_check.watch_leases(),
            self.claimer.release_surplus(self.tick_seconds),
            self.log_writer.run(),
            self.keeper.watch(self.tick_seconds),
        ]
        if self.host_loop is not None:
            loops += [self.host_loop.run(), self.host_loop.remove_ended()]
        return loops
